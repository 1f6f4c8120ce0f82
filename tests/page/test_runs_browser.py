"""The view of runs in a browser: a long list, links to it, and a training that is started there."""

import json
import os
import re

import pytest
from page.conftest import PATIENCE, Tab
from page.pages import end_children, serving

from attnlab.training import runs

MANY = 61  # single runs; and a comparison of seven

RESULT = json.dumps(
    {"step": 2, "loss": 2.5, "best_loss": None, "seconds": 1.0, "step_seconds": 1.0}
)


def write_run(folder, number):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"steps": 90}')
    loss = None if number == 5 else 1 + (number * 37 % 61) / 100
    line = runs.line({"step": number + 1, "loss": loss}) if loss else b""
    (folder / "metrics.jsonl").write_bytes(line)
    if number % 2:
        (folder / "result.json").write_text(RESULT)
    for name in ("config.json", "metrics.jsonl"):
        os.utime(folder / name, (1.7e9 - number, 1.7e9 - number))


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    root = tmp_path_factory.mktemp("many") / "runs"
    for number in range(MANY):
        preset = "elman" if number % 3 else "tiny"
        write_run(root / f"20260101-0000{number:02d}-{preset}-{number:06x}", number)
    for number in range(7):
        write_run(root / "compare-abc123" / "runs" / f"learned,-seed-{number}", 70 + number)
    (root / "compare-abc123" / "parts").mkdir()
    (root / "compare-abc123" / "parts" / "samples.json").write_text("{}")
    (root / "compare-abc123" / "jobs.json").write_text(json.dumps(["samples", "memory"]))
    (root / "compare-abc123" / "report.html").write_text("<!doctype html><title>R</title>")
    return root


@pytest.fixture(autouse=True)
def _ending(tmp_path):
    yield
    end_children(tmp_path)


@pytest.fixture
def visit(browser):
    """A tab on a page of one's own; nothing may have gone wrong in it."""
    opened = []

    def begin(server, width=1280):
        context = browser.new_context(viewport={"width": width, "height": 860})
        first = context.new_page()
        first.set_default_timeout(PATIENCE)
        first.goto(server.known.address)
        first.close()
        opened.append((context, Tab(context, f"http://127.0.0.1:{server.known.port}/")))
        return opened[-1][1]

    yield begin
    for context, tab in opened:
        context.close()
        assert tab.problems == []


COUNT = "document.querySelector('.count').textContent"
NAMES = "[...document.querySelectorAll('[data-run]')].map((one) => one.dataset.run)"


def test_a_long_list_is_sorted_filtered_grouped_and_restored_by_its_link(many, visit):
    with serving(many) as server:
        tab = visit(server)
        page = tab.open("runs")
        tab.wait(f"{COUNT} === '25 of 68 runs'")
        names = page.evaluate(NAMES)
        assert names == sorted(names) and len(names) == 25  # the newest first

        for column in ("run", "state", "steps", "loss", "best", "parameters", "last written"):
            head = page.locator("th", has=page.get_by_role("button", name=column, exact=True))
            head.get_by_role("button").click()
            first = head.get_attribute("aria-sort")
            head.get_by_role("button").focus()
            page.keyboard.press("Enter")
            assert {first, head.get_attribute("aria-sort")} == {"ascending", "descending"}
            assert page.locator("th[aria-sort]").count() == 1
        page.get_by_role("button", name="loss", exact=True).click()
        page.get_by_role("button", name="Show all 68").click()
        tab.wait(f"{COUNT} === '68 of 68 runs'")
        shown = page.locator(".run-table tbody td:nth-child(4)").all_text_contents()
        losses = [float(one) for one in shown if one != "–"]
        assert losses == sorted(losses) and shown[-1] == "–" and len(shown) == 68

        page.get_by_label("Filter").fill("ELMAN-00001 2026")
        tab.wait(f"{COUNT} === '11 of 11 that match, of 68 runs'")
        page.get_by_label("State").select_option("stopped")
        tab.wait(f"{COUNT} === '5 of 5 that match, of 68 runs'")
        names, hash_then = page.evaluate(NAMES), page.evaluate("location.hash")
        page = tab.open(hash_then.removeprefix("#/"))
        tab.wait(f"{COUNT} === '5 of 5 that match, of 68 runs'")
        assert page.evaluate(NAMES) == names
        assert page.get_by_label("Filter").input_value() == "ELMAN-00001 2026"
        assert page.locator("th[aria-sort=ascending]").inner_text().strip().startswith("loss")
        page.get_by_label("Filter").fill("nobody")
        tab.wait(f"{COUNT} === 'None of 68 runs match.'")

        page = tab.open("runs?group=1&select=compare-abc123/gone")
        page.wait_for_selector("text=There is no run “compare-abc123/gone” here")
        group = page.get_by_role("button", name="compare-abc123")
        assert group.get_attribute("aria-expanded") == "false"
        group.click()
        assert page.locator("tr.inside").count() == 7
        assert "1 of 2 parts" in tab.text(".group-row")
        link = page.locator(".group-row a")
        assert link.get_attribute("href") == "/report/compare-abc123"
        page.get_by_role("button", name="Show its curves").click()
        tab.wait("document.querySelectorAll('.legend > span').length === 7")
        assert page.locator("text=There is no run").count() == 0
        chosen, hash_then = page.evaluate(CHECKED), page.evaluate("location.hash")
        page = tab.open(hash_then.removeprefix("#/"))  # names with a comma among them
        tab.wait("document.querySelectorAll('.legend > span').length === 7")
        assert page.evaluate(CHECKED) == chosen

        page.set_viewport_size({"width": 390, "height": 800})
        page.get_by_label("Sort by").select_option("-step")
        assert "sort=-step" in page.url and tab.sideways() <= 0
        page.goto("about:blank")  # before its server goes


CHECKED = "[...document.querySelectorAll('[data-run]:checked')].map((one) => one.dataset.run)"


def test_a_training_is_started_watched_and_stopped(tmp_path, visit):
    with serving(tmp_path / "runs") as server:
        tab = visit(server)
        page = tab.open("runs")
        page.get_by_text("Start a training or a comparison").click()
        field = page.locator("[data-key='steps'] input").first
        field.fill("0")
        page.wait_for_selector("[data-key='steps'] .field-problem")
        assert page.locator("[data-key='steps'] .field-problem").inner_text() == (
            "steps is 0; use 1 or more"
        )
        start = page.get_by_role("button", name="Start", exact=True)
        assert start.is_disabled() and field.get_attribute("aria-invalid") == "true"

        what = page.get_by_label("What", exact=True)
        old = field.element_handle()
        what.focus()
        what.select_option("compare")
        assert what.evaluate("one => one === document.activeElement")
        page.wait_for_function("old => !old.isConnected", arg=old)  # drawn anew for a comparison
        assert field.input_value() == "0"
        field.fill("30")
        tab.wait("document.querySelector('.outcome code').textContent.includes('compare')")
        said = "attnlab compare tiny tiny:model.positions=learned steps=30"
        assert tab.text(".outcome code").startswith(said)
        page.get_by_label("Change a setting of variant 1").select_option("model.window")
        page.locator(".variant").first.locator("[data-key='model.window'] input").fill("0")
        page.wait_for_selector(".variant:first-child [data-key='model.window'] .field-problem")

        page.get_by_label("What", exact=True).select_option("train")
        page.get_by_text("More: model").click()
        page.get_by_text("More: text").click()
        page.locator("[data-key='corpus'] select").first.select_option("biographies")
        for key, value in SMALL.items():
            page.locator(f"[data-key='{key}'] input").first.fill(value)
        tab.wait(f"{COMMAND}.includes('model.context=17') && {COMMAND}.includes('people=9')")
        tab.wait("!document.querySelector('.outcome .main').disabled")
        command = tab.text(".outcome code")
        start.click()
        page.wait_for_selector(".launch-card")
        assert page.locator(".launch-card .command").inner_text() == command
        tab.wait("document.querySelector('.log').textContent.includes('parameters')")
        page.wait_for_selector(".plot .line[d^=M]")  # its curve is drawn without being asked for
        drawn = page.locator(".plot .line").first.get_attribute("d")
        tab.wait("document.querySelector('.plot .line').getAttribute('d') !== old", drawn)
        page.reload()
        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector(".launch-card .mark:has-text('stopped')")
        assert re.search(r"SIGTERM at step .*\nresume with:", tab.text(".log"), re.DOTALL)
        page.wait_for_selector(".run-table .mark:has-text('stopped')")
        assert page.get_by_role("button", name="Stop").count() == 0
        page.goto("about:blank")


COMMAND = "document.querySelector('.outcome code').textContent"
SMALL = {
    "corpus.people": "9",
    "model.width": "8",
    "model.depth": "1",
    "model.context": "17",
    "batch": "3",
    "steps": "100000000",
}
