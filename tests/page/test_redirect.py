"""The way into a browser: no token in a command line, and one visit for each one-time token."""

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from page.pages import serving

from attnlab.page import redirect
from attnlab.page.redirect import redirect_file


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("nothing")) as running:
        yield running


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Of nobody who uses snaps; temporary files go there too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def address_in(path):
    return re.search(r'url=([^"]+)"', path.read_text())[1]


def test_the_file_and_its_folder_are_their_owners_alone_whatever_the_umask(server):
    before = os.umask(0)
    try:
        with redirect_file(server.known) as path:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert server.known.token not in path.read_text() + str(path)
    finally:
        os.umask(before)
    assert not path.parent.exists()


def test_the_file_stays_until_it_was_used_and_its_token_gets_a_cookie_once(server):
    with redirect_file(server.known) as path:
        address = address_in(path)
        for wrong in ("", "x", server.known.token):
            assert httpx.get(address.partition("=")[0] + f"={wrong}").status_code == 401
        assert httpx.head(address).status_code == 401  # looks, and spends nothing
        assert httpx.get(address, headers={"Host": "x"}).status_code == 403
        assert path.exists()
        with httpx.Client() as browser:
            answer = browser.get(address)
            assert answer.status_code == 200 and 'content="0; url=/"' in answer.text
            assert "SameSite=Strict" in answer.headers["set-cookie"]
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert not path.parent.exists()
            home = f"http://127.0.0.1:{server.known.port}"
            assert browser.get(f"{home}/api/about").status_code == 200
            assert browser.get(address).status_code == 200  # back: the cookie lets them in
        again = httpx.get(address)
        assert again.status_code == 401 and "works once" in again.json()["error"]
        assert "set-cookie" not in again.headers


def test_one_token_opens_nothing_for_another_and_is_not_the_one_of_the_cookie(server):
    with redirect_file(server.known) as first, redirect_file(server.known) as second:
        tokens = [address_in(path).partition("once=")[2] for path in (first, second)]
        assert len({*tokens, server.known.token}) == 3
        for name in ("token", "x"):
            one = httpx.get(f"http://127.0.0.1:{server.known.port}/?{name}={tokens[0]}")
            assert one.status_code == 401
        assert httpx.get(address_in(second)).status_code == 200
        assert first.exists() and not second.exists()


def test_the_printed_address_can_be_used_again(server):
    for _ in range(2):
        assert httpx.get(server.known.address).status_code == 303


def test_where_snaps_are_used_the_file_is_in_a_folder_that_they_can_read(server, home, monkeypatch):
    elsewhere = home / "tmp"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    with redirect_file(server.known) as path:
        assert path.parents[1] == elsewhere
    (home / "snap").mkdir()
    with redirect_file(server.known) as path:
        assert path.parents[1] == home and not path.parent.name.startswith(".")
    monkeypatch.setattr(redirect.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    with redirect_file(server.known) as path:
        assert path.parents[1] == elsewhere


BROWSER = """#!{python}
import sys
open({seen!r}, "w").write(chr(10).join(sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_command_line_of_a_browser_has_no_token_and_no_file_stays(tmp_path, kind):
    seen, program = tmp_path / "seen", tmp_path / "browser"
    program.write_text(BROWSER.format(python=sys.executable, seen=str(seen)))
    program.chmod(0o755)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "attnlab", "page", "--port", "0", "--runs", str(tmp_path)]
    env = {**os.environ, "BROWSER": f"{program} %s", "TMPDIR": str(temporary), "COLUMNS": "200"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            printed = re.search(r"token=(\S+)", process.stdout.readline())[1]
            assert "Ctrl-C ends it; if no page opens" in process.stdout.readline()
            [given] = seen.read_text().splitlines()
            file = Path(given.removeprefix("file://"))
            assert given.startswith("file:///") and file.exists()
            assert printed not in given and "once=" not in given and printed not in file.read_text()
            process.send_signal(kind)
            process.communicate(timeout=60)
        finally:
            process.kill()  # else a failure would wait for it
    assert process.returncode == (0 if kind == signal.SIGINT else 128 + kind)
    assert list(temporary.glob("attnlab-page-*")) == []
