"""The guard: who comes in, with how much, how slowly, and what every answer carries."""

import socket
import time
from contextlib import suppress

import httpx
import pytest
from page.pages import client

from attnlab.checks import fuzz
from attnlab.page.guard import HEADERS, LARGEST_BODY
from attnlab.page.server import Server, ServerSettings


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Of no runs, and impatient."""
    root = tmp_path_factory.mktemp("nothing")
    with Server(ServerSettings(root=root, port=0, slowest=0.4, warm=False)).running() as running:
        yield running


@pytest.fixture
def opened(server):
    with client(server) as one:
        yield one


def test_every_route_refuses_a_foreign_host_a_missing_token_and_a_foreign_origin(server):
    assert fuzz.open_doors(server, ["x"]) == []


def test_without_the_guard_every_door_is_found_open(tmp_path):
    settings = ServerSettings(root=tmp_path, port=0, warm=False)
    with Server(settings, guard=fuzz.unguarded).running() as bare:
        assert len(fuzz.open_doors(bare, ["x"])) == 3 * len(fuzz.ROUTES)


def test_the_printed_address_moves_its_token_into_a_cookie_that_scripts_cannot_read(server):
    with httpx.Client(base_url=f"http://127.0.0.1:{server.known.port}") as stranger:
        answer = stranger.get(server.known.address)
        assert answer.status_code == 303 and answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"attnlab-{server.known.port}=")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert stranger.get("/api/about").status_code == 200


@pytest.mark.parametrize("token", ["", "x", "é", "x" * 43])
def test_another_token_opens_nothing(server, token):
    bare = httpx.get(f"http://127.0.0.1:{server.known.port}/", params={"token": token})
    assert bare.status_code == 401 and "set-cookie" not in bare.headers
    assert "address" in bare.json()["error"]


def test_the_cookie_of_a_page_on_another_port_opens_nothing(server):
    other = {f"attnlab-{server.known.port + 1}": server.known.token}
    assert httpx.get(f"http://127.0.0.1:{server.known.port}/", cookies=other).status_code == 401


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_every_name_of_this_machine_is_a_host_and_its_own_origin(opened, server, name):
    host = f"{name}:{server.known.port}"
    own = {"Host": host, "Origin": f"http://{host}"}
    assert opened.get("/api/about", headers=own).status_code == 200
    mixed = {"Host": host, "Origin": "http://127.0.0.2:1"}
    assert opened.get("/api/about", headers=mixed).status_code == 403


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:1", "127.0.0.1:{port}.x", "LOCALHOST:{port}"]
)
def test_a_host_is_taken_to_the_letter(opened, server, host):
    host = host.format(port=server.known.port)
    answer = opened.get("/", headers={"Host": host, "Origin": f"http://{host}"})
    assert answer.status_code == 403


def test_a_post_needs_an_origin_and_json(opened):
    assert opened.post("/api/look", json={}).status_code == 400
    del opened.headers["Origin"]
    assert opened.get("/api/about").status_code == 200
    assert opened.post("/api/look", json={}).status_code == 403
    opened.headers["Origin"] = str(opened.base_url).rstrip("/")
    form = opened.post("/api/look", content=b"{}", headers={"Content-Type": "text/plain"})
    assert form.status_code == 415


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_do_nothing(opened, method):
    assert opened.request(method, "/api/about").status_code == 405


def test_a_body_of_a_megabyte_is_read_and_no_more(opened):
    def sized(size):
        return b'{"certificate": "' + b"x" * (size - 19) + b'"}'

    json = {"Content-Type": "application/json"}
    fits = opened.post("/api/audit/certificate", content=sized(LARGEST_BODY), headers=json)
    assert fits.status_code == 400 and "certificate is the JSON" in fits.json()["error"]
    over = opened.post("/api/audit/certificate", content=sized(LARGEST_BODY + 1), headers=json)
    assert over.status_code == 413
    pieces = (b" " * (1 << 18) for _ in range(5))
    assert opened.post("/api/look", content=pieces, headers=json).status_code == 413


def test_every_answer_has_the_headers_that_keep_it_to_itself(opened, server):
    answers = [
        opened.get("/"),
        opened.get("/api/about"),
        opened.get("/nothing"),
        opened.put("/"),
        httpx.get(f"http://127.0.0.1:{server.known.port}/"),
        httpx.get(server.known.address),
    ]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (answer.url, name)
        assert "server" not in answer.headers
    assert "script-src 'self'" in HEADERS["content-security-policy"]
    assert "unsafe" not in HEADERS["content-security-policy"]


def connect(server):
    return socket.create_connection(("127.0.0.1", server.known.port), timeout=30)


def raw(server, data):
    """What comes back until the server closes the connection; an error if it does not."""
    with connect(server) as one:
        with suppress(ConnectionError):  # disconnected while sending
            one.sendall(data)
            return whole(one)
    return b""


def whole(one):
    return b"".join(iter(lambda: one.recv(4096), b""))


BODY = b'{"text": 7}'  # JSON, so that a whole body is refused for what it says


def head_of(server, connection=None):
    """A request up to its body, which is to follow."""
    headers = {"Content-Length": str(len(BODY)), "Connection": connection}
    return fuzz.request(server, "POST", "/api/look", {}, headers).removesuffix(b"{}")


@pytest.mark.parametrize("early", [0, 5])
def test_the_body_is_not_waited_for_longer_than_the_limit(server, early):
    received = raw(server, head_of(server) + BODY[:early])
    assert b" 408 " in received.splitlines()[0]


@pytest.mark.parametrize("data", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_the_head_is_not_waited_for_longer_than_the_limit(server, data):
    assert raw(server, data) == b""


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """The same, with a limit that no test reaches."""
    root = tmp_path_factory.mktemp("nothing")
    with Server(ServerSettings(root=root, port=0, slowest=600, warm=False)).running() as running:
        yield running


@pytest.mark.parametrize("early", [0, 8, 40])
def test_until_the_limit_the_head_is_waited_for(patient, early):
    """Meanwhile another client is answered: the server was not blocked, and did not hang up."""
    received = late(patient, fuzz.request(patient, "GET", "/api/about"), early)
    assert b" 200 " in received.splitlines()[0]


@pytest.mark.parametrize("early", [0, 5])
def test_until_the_limit_the_body_is_waited_for(patient, early):
    head = head_of(patient, "close")
    received = late(patient, head + BODY, len(head) + early)
    assert b" 400 " in received.splitlines()[0] and b"text is 7" in received


def late(server, data, early):
    """The answer to a request whose end is sent after another client was answered."""
    with connect(server) as one:
        one.sendall(data[:early])
        with client(server) as other:
            assert other.get("/api/about").status_code == 200
        one.sendall(data[early:])
        return whole(one)


def test_a_head_in_time_is_answered_however_often_a_connection_is_used(opened):
    for _ in range(3):
        assert opened.get("/api/about").status_code == 200
        time.sleep(0.3)


def test_a_large_head_is_refused(server):
    received = raw(server, b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000)
    assert b" 431 " in received.splitlines()[0]


def test_two_hosts_are_none(server):
    data = fuzz.request(server, "GET", "/").replace(b"\r\n", b"\r\nHost: localhost\r\n", 1)
    assert b" 400 " in raw(server, data).splitlines()[0]
