"""A page with a few small runs, served by a process of its own, and a browser to look at it."""

import importlib.util
import json
import math
import shutil
import signal
import subprocess
import sys

import pytest

from attnlab import files

LONG = 100_000  # logged steps of a run that was never trained
WIDE = (1280, 860)
PATIENCE = 90_000  # milliseconds to wait for what appears; a machine may be busy
SAMPLE = "The list holds the items in the order in which they came. "


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """`attnlab page` as a person starts it: its folder of runs, and the address that it printed."""
    root = tmp_path_factory.mktemp("page") / "runs"
    command = [sys.executable, "-m", "attnlab", "page", "--no-open", "--port", "0", "--runs", root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            yield root, line.removeprefix("the page: ").strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


@pytest.fixture(scope="session")
def run_folders(served):
    """Two language models, one that answers questions, one with a very long log."""
    from training.recipes import begin, small, text_recipe

    root, _ = served
    root.mkdir()
    text = root.parent / "text.txt"
    text.write_text(SAMPLE * 60)
    words = ["steps=20", "evaluate_every=10", "save_every=20", "sample_every=20"]
    for number, rate in enumerate(("0.01", "0.003")):
        run, _ = begin(root, text_recipe(text, *words, f"optimiser.rate={rate}"), f"text{number}")
    begin(root, small("steps=20", "evaluate_every=10"), "people")
    _write_long(run.folder, root / "20260101-000000-long-000000")
    return root


def _write_long(like, folder):
    shutil.copytree(like, folder)
    lines, losses = [], []
    for step in range(1, LONG + 1):
        loss = 1.2 + 3 * math.exp(-step / 6_000) + 0.2 * math.sin(step) * math.cos(step / 7)
        lines.append(f'{{"step": {step}, "loss": {loss:.6f}}}\n')
        if step % 5_000 == 0:
            losses.append(json.dumps({"step": step, "loss": loss}) + "\n")
    files.write_whole(folder / "metrics.jsonl", "".join(lines).encode())
    files.write_whole(folder / "eval.jsonl", "".join(losses).encode())


@pytest.fixture(scope="module")  # while it is open nothing else here can run an event loop
def browser():
    from page import chromium

    if importlib.util.find_spec("playwright") is None:
        pytest.skip(chromium.NO_PLAYWRIGHT)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        path = chromium.find(tools.chromium.executable_path)
        if path is None:
            pytest.skip(chromium.HOW)
        opened = tools.chromium.launch(executable_path=path, args=chromium.ARGUMENTS)
        yield opened
        opened.close()


class Tab:
    """A page of the browser, with what went wrong in it."""

    def __init__(self, context, base):
        self.page, self.base, self.problems = context.new_page(), base, []
        self.page.set_default_timeout(PATIENCE)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("console", self._heard)
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._answered)

    def _heard(self, message):
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _failed(self, request):
        if request.failure != "net::ERR_ABORTED":  # we take back what nobody waits for
            self.problems.append(f"failed: {request.url} {request.failure}")

    def _answered(self, response):
        if response.status >= 400:
            self.problems.append(f"{response.status}: {response.url}")

    def open(self, address=""):
        """A fresh visit: another address after # alone would only be a step within the page."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.base}#/{address}")
        return self.page

    def text(self, selector):
        return self.page.locator(selector).first.inner_text()

    def wait(self, expression, argument=None):
        """Until it is true of the page, where `old` is the argument; parts may not be there yet."""
        self.page.wait_for_function(
            f"(old) => {{ try {{ return {expression} }} catch {{ return false }} }}", arg=argument
        )

    def sideways(self):
        """By how much the page is wider than the screen."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )


@pytest.fixture(scope="module")
def context(browser, served, run_folders):
    opened = browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]})
    first = opened.new_page()
    first.goto(served[1])  # the token becomes a cookie
    first.close()
    yield opened
    opened.close()


@pytest.fixture
def tab(context, served):
    opened = Tab(context, served[1].partition("?")[0])
    yield opened
    opened.page.close()
    assert opened.problems == []
