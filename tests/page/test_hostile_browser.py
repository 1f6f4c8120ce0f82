"""In a real browser: a report and names from strangers do nothing, and a one-time token lets in."""

import socket
import threading

import pytest
from page.conftest import PATIENCE
from page.odd_names import NAMES, make_runs
from page.pages import serving

from attnlab.page import routes
from attnlab.page.redirect import redirect_file

REPORT = """<!doctype html>
<title>before</title>
<meta http-equiv="refresh" content="0; url=http://{elsewhere}/refresh">
<link rel="stylesheet" href="http://{elsewhere}/style">
<link rel="icon" href="http://{elsewhere}/icon">
<link rel="prefetch" href="http://{elsewhere}/prefetch">
<style>@import "http://{elsewhere}/import"; body {{ background: url(http://{elsewhere}/picture) }}
@font-face {{ font-family: f; src: url(http://{elsewhere}/font) }} p {{ font-family: f }}</style>
<script>document.title = "ran"; fetch("/api/about"); localStorage.a = 1</script>
<script src="http://{elsewhere}/script"></script>
<script src="/static/main.js"></script>
<img src="http://{elsewhere}/img"><img src="x" onerror="document.title = 'ran'">
<img src="/api/runs">
<svg onload="document.title = 'ran'"><image href="http://{elsewhere}/svg"/></svg>
<iframe src="http://{elsewhere}/frame"></iframe>
<iframe srcdoc="<script>parent.document.title = 'ran'</script>"></iframe>
<iframe src="/api/about"></iframe>
<object data="http://{elsewhere}/object"></object><embed src="http://{elsewhere}/embed">
<video src="http://{elsewhere}/video" poster="http://{elsewhere}/poster" autoplay></video>
<form action="http://{elsewhere}/form"><button id="form">send</button></form>
<form action="/api/claims/copy" method="post"><button id="own">send</button></form>
<a id="script" href="javascript:document.title = 'ran'">a</a>
<a id="ping" href="#here" ping="http://{elsewhere}/ping">a</a>
<a id="blank" href="http://{elsewhere}/blank" target="_blank">a</a>
<p id="here">shown</p>
"""
BUTTONS = ["form", "own", "script", "ping", "blank"]


class Elsewhere:
    """Another host: it notes who connects."""

    def __init__(self):
        self.asked = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                one, _ = self._socket.accept()
            except OSError:
                return
            with one:
                one.settimeout(5)
                try:
                    self.asked.append(one.recv(1 << 12).partition(b" HTTP")[0])
                    one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n..")
                except OSError:
                    self.asked.append(b"connected")

    def close(self):
        self._socket.close()


@pytest.fixture
def elsewhere():
    opened = Elsewhere()
    yield opened
    opened.close()


@pytest.fixture
def page(browser):
    with browser.new_context() as context:
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE)
        yield opened


@pytest.fixture
def hostile(tmp_path, elsewhere):
    folder = tmp_path / "study-hostile"
    folder.mkdir()
    (folder / "report.html").write_text(REPORT.format(elsewhere=elsewhere.address))
    with serving(tmp_path) as server:
        yield server


def test_a_hostile_report_shows_its_text_and_does_nothing(hostile, page, elsewhere):
    page.goto(hostile.known.address)
    ours, opened = f"http://127.0.0.1:{hostile.known.port}", []
    page.goto(f"{ours}/report/study-hostile")
    page.context.on("page", lambda other: opened.append(other.url))
    for name in BUTTONS:
        page.locator(f"#{name}").click(no_wait_after=True)
    assert page.locator("#here").inner_text() == "shown"
    assert page.title() == "before" and page.url.startswith(f"{ours}/report/study-hostile")
    page.goto(f"{ours}/api/about")  # what was begun before has been sent by now
    assert elsewhere.asked == [] and opened == []
    assert page.evaluate("localStorage.length") == 0


def test_without_its_headers_the_same_report_does_harm(hostile, page, elsewhere, monkeypatch):
    """The control: it is the headers that keep it still."""
    free = {"content-security-policy": "default-src * 'unsafe-inline' data:"}
    monkeypatch.setattr(routes, "REPORT_HEADERS", free)
    page.goto(hostile.known.address)
    page.goto(f"http://127.0.0.1:{hostile.known.port}/report/study-hostile", wait_until="commit")
    page.wait_for_url(f"http://{elsewhere.address}/refresh", wait_until="commit")
    assert len(elsewhere.asked) > 1


def test_a_file_lets_a_browser_in_and_nobody_after_it(tmp_path, page, browser):
    with serving(tmp_path) as server, redirect_file(server.known) as path:
        copy = tmp_path / "copy.html"
        copy.write_text(path.read_text())
        page.goto(path.as_uri())
        page.wait_for_selector("#views a")
        assert page.url.split("#")[0] == f"http://127.0.0.1:{server.known.port}/"
        assert not path.exists()
        assert page.evaluate("document.referrer + document.cookie") == ""
        with browser.new_context() as stranger:
            other = stranger.new_page()
            other.goto(copy.as_uri())
            other.wait_for_function("document.body.innerText.includes('works once')")


def test_names_from_strangers_are_shown_as_text(tmp_path, page):
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("response", lambda answer: answer.status >= 400 and problems.append(answer.url))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    with serving(make_runs(tmp_path / "runs")) as server:
        page.goto(server.known.address)
        page.goto(f"http://127.0.0.1:{server.known.port}/#/runs")
        page.wait_for_selector(".run-name")
        shown = page.locator(".run-name").all_text_contents()
        assert sorted(shown) == sorted(
            [*NAMES.values(), *(f"study-{n}/{n}" for n in NAMES.values())]
        )
        for name in NAMES.values():  # the list is drawn anew each time
            page.locator("label.tick").filter(has_text=name).first.click()
        page.wait_for_selector(".cards a")
        assert page.locator(".cards strong").count() == len(NAMES)
        assert page.locator("main img, main script").count() == 0
        page.goto("about:blank")
    assert problems == []
