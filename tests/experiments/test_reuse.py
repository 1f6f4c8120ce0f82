"""Run folders that are there: reused if they are the training asked for, else trained again."""

import dataclasses
import shutil

import pytest
from experiments.small import english
from training.recipes import begin, final_bits, small, text_recipe

from attnlab import files, json_files
from attnlab.experiments import held, reuse, worker
from attnlab.experiments.pool import Task
from attnlab.training import checkpoint, launch, loop
from attnlab.training.report import Report
from attnlab.training.runs import Run

FINISHED = {"ending": "finished", "why": ""}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    task = Task("t", folder / "runs" / "t", small("save_every=5"))
    assert worker.train(task.message()) == FINISHED
    return task


@pytest.fixture
def task(trained, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "runs" / "t")
    return Task("t", tmp_path / "runs" / "t", trained.recipe)


def test_what_is_finished_as_asked_for_is_neither_moved_nor_trained(task, monkeypatch):
    monkeypatch.setattr(launch, "train_in", lambda *a, **k: pytest.fail("trained again"))
    assert worker.train(task.message()) == FINISHED


@pytest.mark.parametrize("word", ["steps=9", "optimiser.rate=0.5", "seed=3"])
def test_a_training_with_other_settings_is_set_aside_and_not_reported(task, word):
    before = final_bits(Run(task.folder))
    other = Task("t", task.folder, small("save_every=5", word))
    found = worker.train(other.message())
    key = word.partition("=")[0]
    assert found["ending"] == "finished" and f"was trained with {key}=" in found["why"]
    aside = task.folder.parent / "aside" / "t-1"
    assert str(aside) in found["why"] and final_bits(Run(aside)) == before
    assert final_bits(Run(task.folder)) != before
    assert worker.train(other.message()) == FINISHED


def test_one_that_diverged_with_other_settings_is_trained(task):
    ending = {"ending": "diverged", "why": "step 3"}
    files.write_whole(task.folder / "diverged.json", json_files.sealed_json(ending))
    assert worker.train(task.message()) == ending
    other = Task("t", task.folder, small("save_every=5", "optimiser.rate=0.001"))
    assert worker.train(other.message())["ending"] == "finished"


def test_a_folder_that_another_process_has_is_not_moved(task):
    with Run(task.folder).locked(), pytest.raises(ValueError, match="another process"):
        reuse.set_aside_other(Run(task.folder), small("steps=9"))
    assert task.folder.is_dir()


def test_a_moved_folder_and_a_text_at_another_path_change_nothing(tmp_path, monkeypatch):
    english(tmp_path / "text.txt")
    task = Task("t", tmp_path / "t", text_recipe(tmp_path / "text.txt", "steps=3"))
    worker.train(task.message())
    (tmp_path / "text.txt").rename(tmp_path / "moved.txt")
    moved = Task("t", task.folder, text_recipe(tmp_path / "moved.txt", "steps=3"))
    monkeypatch.setattr(launch, "train_in", lambda *a, **k: pytest.fail("trained again"))
    assert worker.train(moved.message()) == FINISHED


@pytest.mark.parametrize("harm", ["a byte", "a file", "all checkpoints", "empty", "nonsense"])
def test_what_is_damaged_is_trained_again_to_the_same_bits_and_said(task, harm):
    run = Run(task.folder)
    before, kept = final_bits(run), (run.folder / held.FILE).read_bytes()
    last, result = run.checkpoints / "step_000012", run.folder / "result.json"
    if harm == "a byte":
        (last / "model.safetensors").write_bytes(before["model.safetensors"][:-1] + b"\xff")
    elif harm == "a file":
        (last / "state.json").unlink()
    elif harm == "all checkpoints":
        shutil.rmtree(run.checkpoints)
    else:
        result.write_bytes(b"" if harm == "empty" else b'{"step": "twelve"}')
    found = worker.train(task.message())
    assert found["ending"] == "finished" and found["why"].count("training it again") == 1
    named = "result.json" if harm in ("empty", "nonsense") else "step_000012"
    assert named in found["why"]
    assert final_bits(run) == before and (run.folder / held.FILE).read_bytes() == kept
    assert run.result()["step"] == 12
    assert worker.train(task.message()) == FINISHED, "for good"


def test_an_earlier_checkpoint_is_never_measured_as_the_last(task):
    run = Run(task.folder)
    (run.folder / held.FILE).unlink()
    (run.checkpoints / "step_000012" / "state.json").unlink()
    assert checkpoint.newest_good(run.checkpoints)[0] is not None
    with pytest.raises(ValueError, match="has lost its last checkpoint"):
        held.measure(run)


def test_a_text_that_was_exchanged_is_refused_before_anything_is_trained(tmp_path):
    english(tmp_path / "text.txt")
    recipe = text_recipe(tmp_path / "text.txt", "steps=3")
    wanted = recipe.corpus.load().fingerprint
    task = Task("t", tmp_path / "t", recipe, wanted)
    before = (tmp_path / "text.txt").read_text()
    (tmp_path / "text.txt").write_text(before.replace("cat", "dog"))
    found = worker.train(task.message())
    assert found["ending"] == "failed" and "\n" not in found["why"]
    assert "the text has changed since this experiment began; restore" in found["why"]
    assert not Run(task.folder).finished and not checkpoint.all_in(Run(task.folder).checkpoints)
    (tmp_path / "text.txt").write_text(before)
    assert worker.train(task.message()) == FINISHED


def test_what_was_trained_on_another_text_is_set_aside(tmp_path):
    """As by a worker that read the text while another was in its place."""
    english(tmp_path / "text.txt")
    recipe = text_recipe(tmp_path / "text.txt", "steps=3")
    task = Task("t", tmp_path / "runs" / "t", recipe, recipe.corpus.load().fingerprint)
    before = (tmp_path / "text.txt").read_text()
    (tmp_path / "text.txt").write_text(before.replace("cat", "dog"))
    launch.train_in(Run(task.folder), recipe, report=Report())
    (tmp_path / "text.txt").write_text(before)
    found = worker.train(task.message())
    assert found["ending"] == "finished" and "was trained on another text" in found["why"]
    assert Run(task.folder).manifest()["corpus"] == task.text
    assert Run(tmp_path / "runs" / "aside" / "t-1").manifest()["corpus"] != task.text


def test_one_that_stopped_early_needs_no_checkpoint_of_its_last_step(tmp_path, monkeypatch):
    plain, losses = loop.validation_loss, iter([2.0, 2.5, 2.6])
    monkeypatch.setattr(
        loop,
        "validation_loss",
        lambda *a, **k: dataclasses.replace(plain(*a, **k), loss=next(losses)),
    )
    recipe = small("evaluate_every=1", "patience=2", "save_every=none", "steps=50")
    run, result = begin(tmp_path, recipe)
    assert result.ending == "stopped early" and reuse.is_done(run)
    assert not (run.checkpoints / "step_000003").exists()
