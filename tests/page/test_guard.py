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


def raw(server, data, wait=30.0):
    """What comes back, and how long the connection stayed open; an error if it is not closed."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.known.port), wait) as one:
        received = b""
        with suppress(ConnectionError):  # hung up on while sending
            one.sendall(data)
            while piece := one.recv(4096):
                received += piece
    return received, time.monotonic() - began


def test_a_body_that_does_not_arrive_is_not_waited_for(server):
    head = {"Content-Length": "50", "Connection": None}
    data = fuzz.request(server, "POST", "/api/look", {}, head)
    received, seconds = raw(server, data)
    assert b"408" in received.splitlines()[0] and seconds > 0.3


@pytest.mark.parametrize("data", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_head_that_does_not_arrive_is_not_waited_for(server, data):
    received, seconds = raw(server, data)
    assert received == b"" and seconds > 0.3


def test_a_head_in_time_is_answered_however_often_a_connection_is_used(opened):
    for _ in range(3):
        assert opened.get("/api/about").status_code == 200
        time.sleep(0.3)


def test_a_large_head_is_refused(server):
    received, _ = raw(server, b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000)
    assert received == b"" or b" 400 " in received.splitlines()[0]


def test_two_hosts_are_none(server):
    data = fuzz.request(server, "GET", "/").replace(b"\r\n", b"\r\nHost: localhost\r\n", 1)
    assert b" 400 " in raw(server, data)[0].splitlines()[0]
