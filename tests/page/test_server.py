"""The server: its port, its address, how it begins and ends, and clients that do not listen."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from page.pages import client

from attnlab.checks import fuzz
from attnlab.page import server as module
from attnlab.page.server import Server, ServerSettings, bind_socket


def test_a_port_in_use_is_passed_over_and_two_pages_run_side_by_side(tmp_path):
    first = Server(ServerSettings(root=tmp_path, port=0, warm=False))
    second = Server(ServerSettings(root=tmp_path, port=first.known.port, warm=False))
    assert second.known.port > first.known.port
    assert first.known.cookie != second.known.cookie and first.known.token != second.known.token
    with first.running(), second.running():
        for one, other in ((first, second), (second, first)):
            with client(one) as opened:
                assert opened.get("/api/about").status_code == 200
                cookies = {one.known.cookie: other.known.token}
                wrong = httpx.get(f"http://127.0.0.1:{one.known.port}/", cookies=cookies)
                assert wrong.status_code == 401


def test_it_listens_on_this_machine_only(tmp_path):
    with bind_socket(0) as opened:
        assert opened.getsockname()[0] == "127.0.0.1"


def test_small_answers_are_sent_at_once():
    """asyncio asks for that only where a socket names its protocol; else bodies come 40 ms late."""
    with bind_socket(0) as opened:
        assert opened.proto == socket.IPPROTO_TCP


def test_no_free_port_is_one_line_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(module, "TRIED", 0)
    with (
        bind_socket(0) as taken,
        pytest.raises(ValueError, match="in use or refused; choose one with"),
    ):
        bind_socket(taken.getsockname()[1])


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(
        ValueError, match=f"^port is {port}; 0 takes any free port, so use 0 to 65535$"
    ):
        ServerSettings(port=port)


def test_runs_must_be_a_folder_or_nothing_yet(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="is no folder"):
        ServerSettings(root=file)
    with Server(ServerSettings(root=tmp_path / "later", port=0, warm=False)).running() as server:
        with client(server) as opened:
            assert opened.get("/api/runs").json() == []


@pytest.mark.parametrize(
    "before", [signal.default_int_handler, signal.SIG_IGN], ids=["handled", "ignored"]
)
def test_the_command_says_its_address_and_ends_with_ctrl_c(tmp_path, before):
    """Also in the background of a shell, where SIGINT is ignored until the server handles it."""
    with bind_socket(0) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "attnlab", "page", "--no-open", "--port", str(port)]
        process = subprocess.Popen(
            [*command, "--runs", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, before),
            text=True,
        )
        assert process.stdout is not None
        said = process.stdout.readline()
        assert re.match(rf"port {port} is in use; this is \d+", said)
    address = re.search(r"http://127.0.0.1:\d+/\?token=\S+", process.stdout.readline())
    assert address
    with httpx.Client(timeout=30) as opened:
        assert opened.get(address[0], follow_redirects=True).status_code in (200, 404)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0, rest
    assert rest.endswith("closed\n") and "Traceback" not in rest


def test_a_client_that_does_not_take_its_answer_is_dropped(tmp_path, monkeypatch):
    """The kernel takes some megabytes for it; a longer answer waits, then the client is cut off."""
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_bytes(b"x" * (64 << 20))
    monkeypatch.setattr(module, "Page", lambda root, key, **more: fuzz.Page(root, key, static))
    with Server(ServerSettings(root=tmp_path, port=0, slowest=0.4, warm=False)).running() as server:
        with socket.create_connection(("127.0.0.1", server.known.port), 10) as deaf:
            deaf.sendall(fuzz.request(server, "GET", "/"))
            time.sleep(2)
            got = 0
            with suppress(ConnectionError):
                while piece := deaf.recv(1 << 20):
                    got += len(piece)
            assert got < 64 << 20
    patient = Server(ServerSettings(root=tmp_path, port=0, warm=False))
    with patient.running(), client(patient) as opened:
        assert len(opened.get("/").content) == 64 << 20  # to who takes it, all is given


def test_without_its_packages_the_page_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ValueError, match=r"the page needs \w+: pip install 'attnlab\[web\]'"):
        Server(ServerSettings(root=Path("x"), port=0, warm=False))


def test_a_text_that_is_not_there_is_refused_before_the_page_begins(tmp_path):
    (tmp_path / "text.txt").write_text("words")
    assert ServerSettings(texts=(tmp_path / "text.txt",)).texts
    with pytest.raises(ValueError, match="--text needs a file or a folder"):
        ServerSettings(texts=(tmp_path / "nothing.txt",))
