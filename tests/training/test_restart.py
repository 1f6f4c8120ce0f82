"""Processes that torchrun starts again, after one of them was lost, go on with their run."""

import shutil

from training import test_launch
from training.test_launch import Notes, go, unfinished

from attnlab.training import checkpoint

place = test_launch.place


def test_processes_that_torchrun_starts_again_go_on_with_their_run(place, monkeypatch):
    """Without --resume, and not with an older run of the same settings."""
    older, _ = go(place)
    unfinished(older)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1234")
    run, _ = go(place, "keep=9")
    expected = run.log("metrics").read_bytes()
    assert run.manifest()["launch"] == "1234" and "launch" not in older.manifest()
    other, _ = go(place)
    assert other.folder != run.folder, "not started again: a new run"
    shutil.rmtree(other.folder)
    unfinished(run)
    for folder in checkpoint.all_in(run.checkpoints)[:-1]:
        shutil.rmtree(folder)
    notes = Notes()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again, _ = go(place, "keep=9", report=notes)
    assert (again.folder, notes.began_at) == (run.folder, 2)
    assert again.log("metrics").read_bytes() == expected
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "5678")
    assert go(place)[0].folder not in (older.folder, run.folder), "another launch"
