"""Connections: those that do nothing lock nobody out, and no head is larger than its limit."""

import re
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest
from page.pages import client

from attnlab.checks import fuzz
from attnlab.page.connections import LARGEST_HEAD, Places, head_size
from attnlab.page.guard import HEADERS
from attnlab.page.server import Server, ServerSettings

ROOM = 5
BEGINNINGS = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    "no token": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",  # refused, and kept open for another request
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """With few places, and a deadline that no test reaches."""
    root = tmp_path_factory.mktemp("nothing")
    settings = ServerSettings(root=root, port=0, slowest=600, connections=ROOM, warm=False)
    with Server(settings).running() as running:
        yield running


def connect(server):
    return socket.create_connection(("127.0.0.1", server.known.port), timeout=60)


def about(server):
    return fuzz.request(server, "GET", "/api/about", headers={"Connection": None})


def status(one, data):
    """Of the answer on a connection that stays open."""
    one.sendall(data)
    received = b""
    while not fuzz.is_whole(received):
        piece = one.recv(1 << 16)
        assert piece, "the server hung up"
        received += piece
    return int(received.split()[1])


def hung_up(one):
    """Waits until it is."""
    with suppress(ConnectionError):
        while one.recv(1 << 16):
            pass
    return True


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_many_idle_connections_lock_nobody_out(server, beginning):
    with ExitStack() as kept:
        idle = [kept.enter_context(connect(server)) for _ in range(4 * ROOM)]
        for one in idle:
            with suppress(ConnectionError):
                one.sendall(beginning)
        with client(server) as person:
            for _ in range(3):
                assert person.get("/api/about").status_code == 200


def test_the_oldest_idle_connection_makes_room_and_the_others_stay(server):
    with ExitStack() as kept:
        every = [kept.enter_context(connect(server)) for _ in range(ROOM + 2)]
        assert hung_up(every[0]) and hung_up(every[1])
        assert [status(one, about(server)) for one in every[2:]] == [200] * ROOM


def test_a_connection_that_was_used_is_younger_than_one_that_was_not(server):
    with ExitStack() as kept:
        every = [kept.enter_context(connect(server)) for _ in range(ROOM)]
        assert status(every[0], about(server)) == 200
        kept.enter_context(connect(server))
        assert hung_up(every[1])
        assert status(every[0], about(server)) == 200


def test_a_connection_that_is_being_answered_is_not_closed_for_another(server, monkeypatch):
    """All places are taken by such ones, and whoever comes then is answered too."""
    gate = threading.Event()
    listed = server.page.runs.list_all
    monkeypatch.setattr(server.page.runs, "list_all", lambda: (gate.wait(60), listed())[1])
    slow = fuzz.request(server, "GET", "/api/runs", headers={"Connection": None})
    with ExitStack() as kept:
        busy = []
        for _ in range(ROOM):
            one = kept.enter_context(connect(server))
            one.sendall(slow)
            busy.append(one)
            with client(server) as person:  # answered after the other was taken in
                assert person.get("/api/about").status_code == 200
        idle = [kept.enter_context(connect(server)) for _ in range(2 * ROOM)]
        with client(server) as person:
            assert person.get("/api/about").status_code == 200
        assert all(hung_up(one) for one in idle[:-1])
        gate.set()
        assert [status(one, b"") for one in busy] == [200] * ROOM


class Waiter:
    def __init__(self, waits):
        self.waits, self.aborted, self.transport = waits, 0, self

    def abort(self):
        self.aborted += 1


def test_who_waits_longest_goes_first_and_nobody_who_is_being_answered():
    places = Places(2)
    busy, first, second, third = (Waiter(waits) for waits in (False, True, True, True))
    for one in (busy, first, second):
        places.take(one)
    assert [one.aborted for one in (busy, first, second)] == [0, 1, 0]
    places.move_to_end(first)  # gone: it takes no place again
    places.take(third)
    assert [one.aborted for one in (busy, first, second, third)] == [0, 1, 1, 0]
    full = Places(1)
    every = [Waiter(False), Waiter(False), Waiter(True)]
    for one in every:
        full.take(one)
    assert not any(one.aborted for one in every)


def test_a_client_that_sends_on_and_takes_no_answer_is_dropped(tmp_path):
    """Without a token; its answers fill what the kernel holds, and the next one waits."""
    settings = ServerSettings(root=tmp_path, port=0, slowest=0.4, warm=False)
    made = Server(settings)
    made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # of each connection
    with made.running(), socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(60)
        deaf.connect(("127.0.0.1", made.known.port))
        with suppress(ConnectionError):  # only one that is dropped ends this, or its timeout
            while True:
                deaf.sendall(BEGINNINGS["no token"] * 100)
        with client(made) as person:
            assert person.get("/api/about").status_code == 200


def head(size):
    """A request line and headers of so many bytes, their end included."""
    short = b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: \r\n\r\n"
    return short.replace(b"X-Long: ", b"X-Long: " + b"y" * (size - len(short)))


def many_lines(size):
    line = b"X-Line: " + b"y" * 90 + b"\r\n"
    return b"GET / HTTP/1.1\r\nHost: x\r\n" + line * (1 + size // len(line)) + b"\r\n"


def raw(server, data):
    with connect(server) as one:
        with suppress(ConnectionError):
            one.sendall(data)
        with suppress(ConnectionError):
            return b"".join(iter(lambda: one.recv(1 << 16), b""))
    return b""


LARGE = {
    "one line": head(40_000),
    "many lines": many_lines(40_000),
    "one byte over": head(LARGEST_HEAD + 1),
    "a long path": b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "spaces that a parser takes away": b"GET / HTTP/1.1\r\nHost:" + b" " * 40_000 + b"x\r\n\r\n",
    "bare line feeds": head(40_000).replace(b"\r\n", b"\n"),
    "no end": head(LARGEST_HEAD + 20)[:-4],
    "behind another request": BEGINNINGS["no token"] + head(40_000),
}


@pytest.mark.parametrize("data", LARGE.values(), ids=LARGE)
def test_a_head_over_the_limit_is_431_however_it_is_made(server, data):
    received = raw(server, data)
    assert re.findall(rb"HTTP/1.1 (\d+)", received)[-1] == b"431"
    last = received[received.rindex(b"HTTP/1.1 431") :].decode().lower()
    for name, value in HEADERS.items():
        assert f"{name}: {value}".lower() in last
    assert "at most 16,384 bytes" in last


def test_a_head_behind_a_body_is_measured_too(server):
    """The first request is refused before its body; the parser goes from that to the next head."""
    first = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"
    with connect(server) as one:
        assert status(one, first) == 403
        with suppress(ConnectionError):
            one.sendall(b"{ }" + head(40_000))
        assert b"HTTP/1.1 431 " in b"".join(iter(lambda: one.recv(1 << 16), b""))


def test_nonsense_behind_a_good_head_is_answered_once(server, caplog):
    """The answer to the head, which comes later, goes nowhere and is no failure of the server."""
    chunked = {"Transfer-Encoding": "chunked", "Connection": None}
    path = f"/?token={server.known.token}"  # answered before the server sees that it has hung up
    asked = fuzz.request(server, "GET", path, headers=chunked)
    received = raw(server, asked + b"no size of a chunk\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"400"]
    with client(server) as person:
        assert person.get("/api/about").status_code == 200  # the other is over by now
    assert not [record for record in caplog.records if record.name == "attnlab.page"]


def test_a_head_of_the_limit_is_read_in_one_piece_or_several(server):
    exact = head(LARGEST_HEAD)
    assert len(exact) == head_size(exact) == LARGEST_HEAD
    with connect(server) as one:
        assert status(one, exact) == 403  # for its host
        for start in range(0, LARGEST_HEAD - 1000, 1000):
            one.sendall(exact[start : start + 1000])
        assert status(one, exact[start + 1000 :]) == 403


def test_what_follows_a_head_that_is_too_large_is_taken_and_thrown_away(server):
    """So that the answer is not lost in a reset connection."""
    with connect(server) as one:
        one.sendall(head(40_000)[:-4])
        assert status(one, b"") == 431
        for _ in range(50):
            one.sendall(b"y" * 100_000)
            time.sleep(0.001)
