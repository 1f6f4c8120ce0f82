"""The folder of a training at work is moved or removed: noticed, saved, said."""

import shutil

import pytest
from training.recipes import HERE, go_on, small

from attnlab.training import checkpoint, runs
from attnlab.training.lock import FolderGone
from attnlab.training.report import Report

WORDS = ["steps=9", "save_every=4", "evaluate_every=none"]


class At(Report):
    """Does something to the folder when a step is done."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def stepped(self, step, loss, rate):
        if step == self.step:
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


def test_a_folder_that_was_replaced_is_not_written_to(tmp_path):
    run = runs.create(tmp_path, "tiny")

    def replace():
        shutil.rmtree(run.folder)
        run.folder.mkdir()
        (run.folder / "mine.txt").write_text("mine")

    with pytest.raises(FolderGone, match="was removed"):
        go_on(run, small(*WORDS), None, report=At(3, replace))
    assert [path.name for path in run.folder.iterdir()] == ["mine.txt"]
