"""A run may name any run as the one to start from: it is used if it is the one it started from."""

import json
import shutil

import pytest
from training.recipes import begin, text_recipe

from attnlab import config, json_files
from attnlab.training import checkpoint, opened, runs
from attnlab.training.launch import launch
from attnlab.training.recipe import Recipe
from attnlab.training.report import Report

TEXT = "the quick brown fox jumps over the lazy dog. " * 30


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    (root / "text.txt").write_text(TEXT)
    return begin(root, text_recipe(root / "text.txt", "steps=3", "evaluate_every=none"))[0]


@pytest.fixture
def unstarted(mine, tmp_path):
    """A run that was stopped before its first checkpoint, and was to start from mine."""
    words = ["steps=3", "evaluate_every=none", f"start={mine.folder}"]
    run, _ = begin(tmp_path, text_recipe(mine.folder.parent / "text.txt", *words), "tiny")
    shutil.rmtree(run.checkpoints)
    run.checkpoints.mkdir()
    (run.folder / "result.json").unlink()
    return run


def resume(run, *words):
    return launch(
        "tiny",
        list(words),
        root=run.folder.parent,
        make_report=lambda world: Report(),
        resume=str(run.folder),
    )[1]


def record(run, **changes):
    path = run.folder / "manifest.json"
    kept = {**json_files.read_json(path), **changes}
    path.write_bytes(
        json_files.as_json({name: one for name, one in kept.items() if one is not None})
    )


def test_a_run_of_ones_own_resumes_with_the_start_it_recorded(mine, unstarted):
    newest = checkpoint.newest_good(mine.checkpoints)[0]
    assert unstarted.manifest()["start"] == opened.fingerprint(newest)
    assert resume(unstarted).ending == "finished"


def test_a_start_without_a_record_is_not_used(unstarted):
    record(unstarted, start=None)
    with pytest.raises(ValueError, match=r"has no record of it.*start=RUN"):
        resume(unstarted)
    assert not checkpoint.all_in(unstarted.checkpoints)


def test_a_start_that_is_another_is_not_used(unstarted):
    record(unstarted, start="0" * 64)
    with pytest.raises(ValueError, match=r"did not start from .* as it is now.*start=RUN"):
        resume(unstarted)
    assert not checkpoint.all_in(unstarted.checkpoints)


def test_a_person_who_names_the_start_has_it_used(mine, unstarted):
    record(unstarted, start=None)
    assert resume(unstarted, f"start={mine.folder}").ending == "finished"


def test_a_run_with_a_checkpoint_needs_no_start(mine, tmp_path):
    run = runs.Run(shutil.copytree(mine.folder, tmp_path / "copy"))
    plain = json.loads((run.folder / "config.json").read_text()) | {"start": "nowhere"}
    assert config.from_dict(Recipe, plain).start == "nowhere"
    folder = checkpoint.all_in(run.checkpoints)[0]
    kept = checkpoint.load(folder)
    kept.config["start"] = "nowhere"
    shutil.rmtree(folder)
    checkpoint.save(run.checkpoints, 3, kept)
    assert resume(run, "steps=4").step == 4
