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
        pytest.skip("no playwright, so the page is not tested in a browser: pip install playwright")
    path = chromium.found()
    if path is None:
        pytest.skip(chromium.HOW)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=path, args=chromium.ARGUMENTS)
        yield opened
        opened.close()
