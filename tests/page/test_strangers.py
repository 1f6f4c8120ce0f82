"""Run folders from strangers on the page: links, FIFOs, names and settings meant to do harm."""

import json
import os
from urllib.parse import quote

import pytest
from page.odd_names import NAMES, make_runs
from page.pages import client, serving

from attnlab.page import reports as module
from attnlab.page.guard import Refused
from attnlab.page.reports import Reports
from attnlab.page.runs import Log, Runs
from attnlab.printable import distinct
from attnlab.training import runs

SECRET = "do not show this"
FILES = ["config.json", "manifest.json", "result.json", "metrics.jsonl", "eval.jsonl"]
FILES += ["speed.jsonl", "samples.jsonl", "lock", "report.md"]


def plant(folder, name, kind, secret):
    """In place of a file of ours: a link to another file, or a FIFO that nobody writes to."""
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(secret)
    else:
        os.mkfifo(path)


@pytest.fixture
def secret(tmp_path):
    """What somebody else's file holds: as a log, as settings, as a report of ours would be read."""
    path = tmp_path / "secret"
    said = {"step": 7, "loss": 0.5, "tokens_per_second": 0.5, "text": SECRET, "name": SECRET}
    path.write_text(json.dumps(said) + "\n")
    return path


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "runs" / "study-hostile-1"
    made.mkdir(parents=True)
    (made / "config.json").write_text('{"steps": 10}')
    (made / "report.html").write_text("<!doctype html><title>Report</title>")
    return made


@pytest.mark.parametrize("kind", ["link", "fifo"])
@pytest.mark.parametrize("name", FILES)
def test_a_link_or_a_fifo_in_a_run_is_neither_read_nor_waited_for(folder, secret, name, kind):
    plant(folder, name, kind, secret)
    known = Runs(folder.parent)
    if (name, kind) == ("config.json", "fifo"):
        assert known.list_all() == []  # without a checkpoint nothing else makes it a run
        return
    [row] = known.list_all()
    assert row["step"] == 0 and row["best_loss"] is None
    curve = known.curve(folder.name, -1, 10)
    assert (curve["steps"], curve["eval"], curve["speed"]) == ([], [], None)
    seen = [row, known.details(folder.name), curve]
    seen += Reports(folder.parent, str).list_all()
    assert SECRET not in json.dumps(seen)


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_report_that_is_a_link_or_a_fifo_is_refused_with_a_reason(folder, secret, kind):
    plant(folder, "report.html", kind, secret)
    with pytest.raises(Refused, match=r"study-hostile-1 is not shown: it is a link") as refused:
        Reports(folder.parent, str).report(folder.name)
    assert refused.value.status == 404


def test_a_report_that_is_too_large_is_refused(folder, monkeypatch):
    monkeypatch.setattr(module, "MOST_REPORT", 35)
    with pytest.raises(Refused, match="more than 35 bytes"):
        Reports(folder.parent, str).report(folder.name)


def test_a_log_that_becomes_a_link_is_forgotten(folder, secret):
    path = folder / "metrics.jsonl"
    path.write_bytes(runs.line({"step": 1, "loss": 2.0}))
    log = Log(path)
    log.read_on()
    assert list(log.steps) == [1]
    plant(folder, "metrics.jsonl", "link", secret)
    log.read_on()
    assert list(log.steps) == []


def test_checkpoints_that_cannot_be_listed_stop_nothing(folder, monkeypatch):
    def refused(parent):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("attnlab.training.checkpoint.all_in", refused)
    assert [row["writable"] for row in Runs(folder.parent).list_all()] == [False]


def test_names_are_escaped_so_that_no_two_are_shown_alike():
    shown = {os.fsdecode(name): text for name, text in NAMES.items()}
    assert {name: distinct(name) for name in shown} == shown
    assert distinct("a\nb") != distinct(r"a\nb")


@pytest.fixture
def odd_names(tmp_path):
    return make_runs(tmp_path / "runs")


def test_whatever_a_folder_is_called_its_run_and_report_are_reached(odd_names):
    shown = [*NAMES.values(), *(f"study-{name}/{name}" for name in NAMES.values())]
    with serving(odd_names) as server, client(server) as opened:
        assert {row["name"] for row in opened.get("/api/runs").json()} == set(shown)
        for name in shown:
            one = opened.get(f"/api/runs/{quote(name)}")
            assert one.status_code == 200 and one.json()["name"] == name
            assert opened.get(f"/api/runs/{quote(name)}/curve").json()["last"] == 3
        reports = {row["id"] for row in opened.get("/api/reports").json()}
        assert reports == {f"study-{name}" for name in NAMES.values()}
        for name in reports:
            assert "Report" in opened.get(f"/report/{quote(name, safe='')}").text


def test_a_run_of_an_odd_name_that_cannot_be_opened_is_a_line_and_no_failure(odd_names):
    with serving(odd_names) as server, client(server) as opened:
        for name in NAMES.values():
            answer = opened.post("/api/generate", json={"run": name, "prompt": "a"})
            assert answer.status_code == 400 and answer.json()["error"], name
