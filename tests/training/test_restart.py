"""Processes that torchrun starts again, after one of them was lost, go on with their run."""

import shutil

import pytest
import torch.distributed as dist
from training import test_launch
from training.test_launch import Notes, go, unfinished

from attnlab.training import checkpoint

place = test_launch.place


@pytest.fixture
def torchrun(monkeypatch):
    """Its agent, as far as a process sees it: another one each time it is called."""
    stores = []

    def start():
        stores.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": stores[-1].port}
        known |= {"RANK": 0, "WORLD_SIZE": 1, "TORCHELASTIC_USE_AGENT_STORE": True}
        for name, value in known.items():
            monkeypatch.setenv(name, str(value))

    return start


def test_processes_that_torchrun_starts_again_go_on_with_their_run(place, torchrun):
    """Without --resume, and not with an older run of the same settings."""
    older, _ = go(place)
    unfinished(older)
    torchrun()
    run, _ = go(place, "keep=9")
    expected = run.log("metrics").read_bytes()
    assert run.folder != older.folder
    unfinished(run)
    for folder in checkpoint.all_in(run.checkpoints)[:-1]:
        shutil.rmtree(folder)
    notes = Notes()
    again, _ = go(place, "keep=9", report=notes)
    assert (again.folder, notes.began_at) == (run.folder, 2)
    assert again.log("metrics").read_bytes() == expected
    torchrun()
    assert go(place)[0].folder not in (older.folder, run.folder), "another torchrun"


def test_they_go_on_with_the_run_that_was_named_and_not_with_a_newer_one(place, torchrun):
    named, _ = go(place)
    newer, _ = go(place)
    finished = (newer.folder / "result.json").read_bytes()
    unfinished(named)
    torchrun()
    assert go(place, "steps=7", resume=str(named.folder))[0].folder == named.folder
    assert go(place, "steps=9", resume=str(named.folder))[0].folder == named.folder
    assert (newer.folder / "result.json").read_bytes() == finished


def test_a_start_that_has_left_nothing_begins_anew(place, torchrun):
    torchrun()
    run, _ = go(place)
    shutil.rmtree(run.folder)
    assert go(place)[0].folder.is_dir()
