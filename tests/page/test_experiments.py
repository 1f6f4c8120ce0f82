"""Studies and comparisons on the page: parts that are done, of how many, and a report."""

import json

from attnlab.experiments.progress import Progress
from attnlab.experiments.workspace import Job, open_workspace
from attnlab.page.experiments import Experiments
from attnlab.training import runs


def test_parts_are_counted_while_an_experiment_runs(tmp_path):
    workspace = open_workspace(tmp_path, "", "abc123", Progress(), False, kind="compare")
    known, seen = Experiments(tmp_path), []

    def work():
        seen.extend(known.list_all())
        return 3

    with runs.Run(workspace.folder).locked():
        workspace.run_jobs([Job("step times", lambda: 1), Job("Trainings", work)])
    about = {"name": "compare-abc123", "kind": "compare", "parts": 2, "report": False}
    assert seen == [{**about, "state": "running", "done": 1, "next": "trainings"}]
    assert known.list_all() == [{**about, "state": "stopped", "done": 2, "next": None}]
    (workspace.folder / "report.html").write_text("<!doctype html>")
    (found,) = known.list_all()
    assert found["state"] == "finished" and found["report"]


def test_an_experiment_without_a_list_of_its_parts_says_what_is_done(tmp_path):
    parts = tmp_path / "study-window-1" / "parts"
    parts.mkdir(parents=True)
    (parts / "one.json").write_text("{}")
    for junk in (None, b"\xff", b"{}", b"[1]", b"[" * 100_000):
        if junk is not None:
            (parts.parent / "jobs.json").write_bytes(junk)
        (found,) = Experiments(tmp_path).list_all()
        assert (found["done"], found["parts"], found["next"]) == (1, None, None)
    (parts.parent / "jobs.json").write_text(json.dumps(["one", "two\n"]))
    (found,) = Experiments(tmp_path).list_all()
    assert (found["done"], found["parts"], found["next"]) == (1, 2, "two\\n")


def test_links_and_other_folders_are_no_experiments(tmp_path):
    (tmp_path / "elsewhere" / "parts").mkdir(parents=True)
    (tmp_path / "compare-1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "study-2").mkdir()
    (tmp_path / "study-2" / "parts").symlink_to(tmp_path / "elsewhere" / "parts")
    assert Experiments(tmp_path).list_all() == []
