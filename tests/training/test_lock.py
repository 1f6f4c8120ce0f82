"""The folder of a training at work is moved or removed: noticed, saved, said."""

import errno
import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest
from training.recipes import HERE, go_on, small

from attnlab.training import checkpoint, runs
from attnlab.training.launch import launch
from attnlab.training.lock import FolderGone
from attnlab.training.report import Report

WORDS = ["steps=9", "save_every=4", "evaluate_every=none"]


class At(Report):
    """Does something to the folder when a step is done."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def training(self, opening, step, tokens_per_step):
        self.saved = Path(opening.run) / "checkpoints" / "step_000004"
        return super().training(opening, step, tokens_per_step)

    def stepped(self, step, loss, rate):
        if step == self.step:
            while step > 4 and not self.saved.exists():  # it is written beside the steps
                time.sleep(0.01)
            self.act()


def test_a_removed_folder_ends_the_training_and_what_it_had_is_saved_beside_it(tmp_path):
    run = runs.create(tmp_path, "tiny")
    with pytest.raises(FolderGone, match=r"was removed .*-rescued is new; step 7 is saved") as said:
        go_on(run, small(*WORDS), None, report=At(6, lambda: shutil.rmtree(run.folder)))
    assert "\n" not in str(said.value)
    assert not run.folder.exists(), "no half folder"
    rescued = runs.Run(run.folder.with_name(f"{run.folder.name}-rescued"))
    newest, broken = checkpoint.newest_good(rescued.checkpoints)
    assert newest.name == "step_000007" and not broken
    assert go_on(rescued, small(*WORDS), newest, world=HERE).ending == "finished"


def test_a_moved_folder_ends_the_training_and_it_is_saved_where_it_is_now(tmp_path):
    run, there = runs.create(tmp_path, "tiny"), tmp_path / "elsewhere"
    with pytest.raises(FolderGone, match=r"was moved to .*elsewhere .* step 7 is saved there"):
        go_on(run, small(*WORDS), None, report=At(6, lambda: run.folder.rename(there)))
    assert not run.folder.exists()
    moved = runs.Run(there)
    assert [row["step"] for row in moved.read("metrics")] == list(range(1, 8))
    assert checkpoint.newest_good(moved.checkpoints)[0].name == "step_000007"


def test_a_lock_that_is_removed_is_called_so_and_the_folder_is_left_as_it_is(tmp_path):
    run = runs.create(tmp_path, "tiny")
    with pytest.raises(FolderGone, match=r"the lock of .* was removed .* step 7 is saved") as said:
        go_on(run, small(*WORDS), None, report=At(6, lambda: (run.folder / "lock").unlink()))
    assert str(said.value).startswith(f"the lock of {run.folder} was removed")
    assert checkpoint.newest_good(run.checkpoints)[0].name == "step_000004"
    assert runs.find("tiny", tmp_path)[0].folder.name == f"{run.folder.name}-rescued"


def test_a_lock_that_is_replaced_is_called_so(tmp_path):
    run = runs.create(tmp_path, "tiny")

    def replace():
        (run.folder / "lock").rename(run.folder / "old")
        (run.folder / "lock").touch()
        (run.folder / "old").unlink()

    with pytest.raises(FolderGone, match=r"or its lock was replaced by another during"):
        go_on(run, small(*WORDS), None, report=At(6, replace))


def test_a_folder_that_was_replaced_is_not_written_to(tmp_path):
    run = runs.create(tmp_path, "tiny")

    def replace():
        shutil.rmtree(run.folder)
        run.folder.mkdir()
        (run.folder / "mine.txt").write_text("mine")

    with pytest.raises(FolderGone, match="was removed"):
        go_on(run, small(*WORDS), None, report=At(3, replace))
    assert [path.name for path in run.folder.iterdir()] == ["mine.txt"]


def test_a_file_system_without_locks_is_refused_in_one_line_and_can_be_looked_at(
    tmp_path, monkeypatch
):
    run = runs.create(tmp_path, "tiny")
    with run.locked():
        pass

    def none(*given):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(OSError, match=r"tiny.*has no locks.*; use a folder on a local") as said:
        with run.locked():
            pytest.fail("two could write")
    assert "\n" not in str(said.value) and not run.busy


def test_where_the_system_has_a_call_for_the_path_of_a_file_it_is_asked(tmp_path, monkeypatch):
    """As macOS has it; there is no /proc there."""
    run, there = runs.create(tmp_path, "tiny"), tmp_path / "elsewhere"
    with run.locked() as lock:
        run.folder.rename(there)
        monkeypatch.setattr(fcntl, "F_GETPATH", 50, raising=False)
        now = os.fsencode(there / "lock")
        monkeypatch.setattr(fcntl, "fcntl", lambda file, ask, room: now.ljust(len(room), b"\0"))
        assert lock.moved_to() == there
        now = os.fsencode(tmp_path / "no lock of ours")
        assert lock.moved_to() is None


def test_a_folder_of_a_persons_own_in_the_place_of_a_run_is_left_alone(tmp_path):
    """The run was moved away, so nothing of it is there to be undone."""
    letter = []

    class Replaced(Report):
        def stepped(self, step, loss, rate):
            (folder,) = (tmp_path / "runs").iterdir()
            folder.rename(tmp_path / "elsewhere")
            folder.mkdir()
            letter.append(folder / "letter.txt")
            letter[0].write_text("mine")
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        words = ["corpus=biographies", "corpus.people=12", "steps=3"]
        launch("tiny", words, root=tmp_path / "runs", make_report=lambda world: Replaced())
    assert letter[0].read_text() == "mine"
