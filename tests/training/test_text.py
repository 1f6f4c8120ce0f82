"""A run may name any file as its text: it is read only if it is the one the run was trained on."""

import json
import re
import shutil

import pytest
from training.recipes import begin, text_recipe

from attnlab.data.birthplaces import Birthplaces
from attnlab.training import checkpoint, runs
from attnlab.training.examine import examine
from attnlab.training.launch import launch
from attnlab.training.report import Report
from attnlab.training.saved import open_saved
from attnlab.training.text import load_text

TEXT = "the quick brown fox jumps over the lazy dog. " * 30
SECRET = "a quick lazy dog. " * 50  # of known letters, so that it could be used


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    (root / "text.txt").write_text(TEXT)
    return begin(root, text_recipe(root / "text.txt", "steps=4", "evaluate_every=2"))[0]


@pytest.fixture
def foreign(trained, tmp_path):
    """As a stranger makes it: every hash is right, and the text is a file of ours."""
    (tmp_path / "secret.txt").write_text(SECRET)
    run = runs.Run(shutil.copytree(trained.folder, tmp_path / "20260101-000000-tiny-abc123"))
    for folder in checkpoint.all_in(run.checkpoints):
        kept = checkpoint.load(folder)
        kept.config["corpus"]["path"] = str(tmp_path / "secret.txt")
        kept.state["corpus"] = kept.state.get("corpus", "")
        shutil.rmtree(folder)
        checkpoint.save(run.checkpoints, checkpoint.step_of(folder), kept)
    (run.folder / "config.json").write_text(json.dumps(kept.config))
    (run.folder / "result.json").unlink()
    return run


def evaluate(run, *words):
    return examine(
        str(run.folder),
        list(words),
        root=run.folder.parent,
        device="cpu",
        predict=None,
        tick=lambda text: None,
    )


def resume(run, *words):
    return launch(
        "tiny",
        list(words),
        root=run.folder.parent,
        make_report=lambda world: Report(),
        resume=str(run.folder),
    )


@pytest.mark.parametrize("use", [evaluate, resume])
def test_a_text_that_the_run_was_not_trained_on_is_not_used(foreign, use):
    with pytest.raises(ValueError, match=r"secret\.txt is not what .* was trained on") as caught:
        use(foreign)
    assert "data=PATH" in str(caught.value) and "lazy" not in str(caught.value)


@pytest.mark.parametrize("use", [evaluate, resume])
def test_a_text_without_a_record_is_not_read(foreign, use):
    for folder in checkpoint.all_in(foreign.checkpoints):
        kept = checkpoint.load(folder)
        del kept.state["corpus"]
        shutil.rmtree(folder)
        checkpoint.save(foreign.checkpoints, checkpoint.step_of(folder), kept)
    (foreign.folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"has no record of it.*data=PATH"):
        use(foreign)


WORDS = "xyzzy plugh"  # which stand in every one of these


@pytest.mark.parametrize(
    "content",
    [
        WORDS.encode() * 99,
        WORDS.encode()[:3],
        WORDS.encode() + b"\xff\x00" + WORDS.encode(),
        f"{WORDS}\r\n\t{WORDS}□⁇\n".encode() * 9,
        json.dumps({"key": [WORDS]}).encode(),
    ],
)
@pytest.mark.parametrize("use", [evaluate, resume])
def test_nothing_of_a_text_that_is_refused_is_in_a_message(foreign, tmp_path, content, use):
    (tmp_path / "secret.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"secret\.txt") as caught:
        use(foreign)
    assert "xyz" not in str(caught.value) and "plugh" not in str(caught.value)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_nothing_of_tables_that_are_refused_is_in_a_message(foreign, tmp_path, columns):
    for name in ("wiki.txt", "birth_places_train.tsv", "birth_dev.tsv"):
        (tmp_path / name).write_text("\t".join([WORDS] * columns) + "\n")
    settings = Birthplaces(path=str(tmp_path))
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))) as caught:
        load_text(settings, "a fingerprint", foreign.folder)
    assert "xyz" not in str(caught.value) and "plugh" not in str(caught.value)


def test_a_person_who_names_the_text_has_it_read(foreign, tmp_path):
    assert evaluate(foreign, f"data={tmp_path / 'secret.txt'}")["loss"] > 0


def test_a_run_that_moves_along_with_its_text_needs_nothing(trained, tmp_path):
    run = runs.Run(shutil.copytree(trained.folder, tmp_path / "moved"))
    (run.folder / "manifest.json").unlink()
    assert evaluate(run)["loss"] == evaluate(trained)["loss"]
    assert resume(run, "steps=5")[1].step == 5


def test_a_damaged_manifest_matters_to_no_checkpoint_that_has_its_own_record(trained, tmp_path):
    run = runs.Run(shutil.copytree(trained.folder, tmp_path / "moved"))
    (run.folder / "manifest.json").write_text("[]")
    open_saved(str(run.folder), tmp_path, "cpu")
    assert resume(run, "steps=5")[1].step == 5
    assert run.manifest()["corpus"] == trained.manifest()["corpus"]
