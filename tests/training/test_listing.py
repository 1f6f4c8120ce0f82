"""The list of runs: every state is told apart, and nothing in a folder can stop it."""

import json
import os
import shutil

import pytest
from training.recipes import begin, small

from attnlab.training import runs
from attnlab.training.listing import summaries


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return begin(tmp_path_factory.mktemp("runs"), small("steps=3", "evaluate_every=2"))[0]


@pytest.fixture
def run(trained, tmp_path):
    """Of one's own, to damage."""
    folder = tmp_path / trained.folder.name
    shutil.copytree(trained.folder, folder)
    return runs.Run(folder)


def only(run):
    (row,) = summaries(run.folder.parent)
    json.dumps(row, allow_nan=False)
    return row


def test_a_finished_run_is_told_with_its_losses(run):
    row = only(run)
    assert (row["state"], row["step"], row["steps"]) == ("finished", 3, 3)
    assert row["loss"] == run.read("metrics")[-1]["loss"]
    assert row["best_loss"] == min(r["loss"] for r in run.read("eval"))
    assert row["checkpoints"][0] == "step_000003"


def test_running_stopped_and_unreadable_are_told_apart(run):
    with run.locked():
        assert only(run)["state"] == "running"
    (run.folder / "result.json").unlink()
    assert only(run)["state"] == "stopped"
    (run.folder / "config.json").write_text("{")
    assert only(run)["state"] == "stopped", "its checkpoint has the settings"
    shutil.rmtree(run.checkpoints)
    assert only(run)["state"] == "unreadable"


def test_a_run_without_its_config_is_listed_by_its_checkpoint(run):
    before = only(run)
    (run.folder / "config.json").unlink()
    assert only(run) == before


def test_looking_at_runs_writes_nothing(run):
    (run.folder / "lock").unlink()
    before = sorted(run.folder.rglob("*"))
    only(run)
    assert sorted(run.folder.rglob("*")) == before


@pytest.mark.parametrize(
    "row",
    [{"step": 9}, {"step": 9, "loss": "x"}, {"step": 9, "loss": None}, {"step": 9, "loss": []}],
)
@pytest.mark.parametrize("name", ["metrics", "eval"])
def test_a_log_of_another_program_stops_nothing(run, name, row):
    before = only(run)
    with run.log(name).open("ab") as file:
        file.write(runs.line(row) + b'{"step": 9, "loss": NaN}\n')
    after = only(run)
    assert after.pop("damaged") == [f"{run.log(name)}: 2 lines are damaged and left out"]
    assert after | {"damaged": []} == before


def test_a_torn_last_line_is_nothing_unusual(run):
    before = only(run)
    with run.log("metrics").open("ab") as file:
        file.write(b'{"step": 4, "lo')
    assert only(run) == before and before["damaged"] == []


def test_a_fifo_in_place_of_a_log_does_not_hang(run):
    run.log("metrics").unlink()
    os.mkfifo(run.log("metrics"))
    assert only(run)["loss"] is None


def test_newest_first_and_one_bad_run_does_not_hide_the_others(run):
    begin(run.folder.parent, small("steps=1"), name="zzz")
    bad = run.folder.parent / "99999999-bad"
    bad.mkdir()
    (bad / "config.json").write_bytes(b"\xff")
    names = [row["run"] for row in summaries(run.folder.parent)]
    assert names[0] == "99999999-bad" and len(names) == 3 and names == sorted(names, reverse=True)
