"""What evaluate measures: the loss training saw, the answers, and no setting without effect."""

import dataclasses
import json
import shutil

import pytest
from training.recipes import begin, small, text_recipe

from attnlab.training import checkpoint, runs
from attnlab.training import examine as examination
from attnlab.training.examine import examine

TEXT = "the quick brown fox jumps over the lazy dog. " * 30


def silent(text):
    pass


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("examined")
    (root / "text.txt").write_text(TEXT)
    (root / "other.txt").write_text("a lazy fox jumps over a quick dog. " * 20)
    return root


@pytest.fixture(scope="module")
def reader(place):
    """A model of a text."""
    return begin(place, text_recipe(place / "text.txt", "steps=4", "evaluate_every=2"))[0]


@pytest.fixture(scope="module")
def answerer(place):
    """A model that was asked questions."""
    return begin(place, small("steps=4", "evaluate_every=2"))[0]


def ask(run, *words, predict=None):
    return examine(
        str(run.folder), list(words), root=run.folder, device="cpu", predict=predict, tick=silent
    )


def test_the_loss_is_the_best_one_of_the_training(reader):
    found = ask(reader)
    best = min(reader.read("eval"), key=lambda row: row["loss"])
    assert found["loss"] == pytest.approx(best["loss"], rel=1e-6)  # float32, other batch sizes
    assert found["tokens"] == best["tokens"]
    assert found["checkpoint"].endswith(f"step_{best['step']:06d}")


def test_another_text_is_read_instead(reader, place):
    assert ask(reader, f"data={place / 'other.txt'}")["loss"] != ask(reader)["loss"]


def test_questions_are_answered_too(answerer):
    found = ask(answerer)
    assert 0 <= found["train_accuracy"] <= 1 and found["train_questions"] == 7
    assert {"dev_accuracy", "dev_questions", "loss"} <= found.keys()


def test_a_model_of_text_is_asked_no_questions(reader, place, tmp_path):
    assert "train_accuracy" not in ask(reader)
    words = ["objective=span-corruption", "steps=1"]  # its tokenizer could ask
    filler, _ = begin(tmp_path, text_recipe(place / "text.txt", *words))
    assert "loss" in ask(filler)
    with pytest.raises(ValueError, match="needs a model and a corpus with questions"):
        ask(filler, predict=tmp_path / "out")


@pytest.mark.parametrize("word", ["model.width=32", "steps=3", "optimiser=adamw", "batch=2"])
def test_a_setting_without_effect_is_refused(reader, word):
    with pytest.raises(ValueError, match="has no meaning for a trained model"):
        ask(reader, word)


def test_what_cannot_be_predicted_is_said_and_nothing_written(reader, answerer, tmp_path):
    with pytest.raises(ValueError, match="needs a model and a corpus with questions"):
        ask(reader, predict=tmp_path / "out")
    with pytest.raises(ValueError, match="needs unlabelled questions"):
        ask(answerer, predict=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_unlabelled_questions_are_answered_line_by_line(tmp_path):
    wiki = "Ann was born in Rome. Bob was born in Oslo. Where was ?\n" * 4
    (tmp_path / "wiki.txt").write_text(wiki)
    table = "Where was Ann born?\tRome\nWhere was Bob born?\tOslo\n"
    for name in ("birth_places_train.tsv", "birth_dev.tsv"):
        (tmp_path / name).write_text(table)
    (tmp_path / "birth_test_inputs.tsv").write_text("Where was Ann born?\nWhere was Bob born?\n")
    words = ["corpus=birthplaces", f"corpus.path={tmp_path}", "steps=2", "batch=2"]
    run, _ = begin(tmp_path / "runs", small(*words))
    found = ask(run, predict=tmp_path / "out.txt")
    assert found["predicted"] == 2
    assert (tmp_path / "out.txt").read_text().count("\n") >= 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_refused_in_one_line(reader, monkeypatch, value):
    plain = examination.validation_loss
    monkeypatch.setattr(
        examination,
        "validation_loss",
        lambda *a, **k: dataclasses.replace(plain(*a, **k), loss=value),
    )
    with pytest.raises(ValueError, match=rf"is {value}, not finite; .* an earlier checkpoint"):
        ask(reader)


def test_weights_that_overflow_give_no_loss(reader, tmp_path):
    """Finite, each of them; what they make of a text is not."""
    run = runs.Run(shutil.copytree(reader.folder, tmp_path / "copy"))
    for folder in checkpoint.all_in(run.checkpoints):
        kept = checkpoint.load(folder)
        kept.model["norm.weight"].fill_(3e38)
        kept.model["embed.weight"].mul_(1000)
        checkpoint.save(run.checkpoints, checkpoint.step_of(folder), kept)
    with pytest.raises(ValueError, match="not finite"):
        ask(run)


def test_a_perplexity_that_no_number_holds_is_none(reader, monkeypatch):
    plain = examination.validation_loss
    monkeypatch.setattr(
        examination,
        "validation_loss",
        lambda *a, **k: dataclasses.replace(plain(*a, **k), loss=1e4),
    )
    found = ask(reader)
    assert found["perplexity"] is None and found["loss"] == 1e4
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_nothing_to_evaluate_on_is_said(place, tmp_path):
    recipe = text_recipe(place / "text.txt", "corpus.validation=0", "steps=1")
    run, _ = begin(tmp_path, recipe)
    with pytest.raises(ValueError, match="nothing to be evaluated on"):
        ask(run)


def test_a_broken_newest_checkpoint_is_named(place):
    run, _ = begin(place, text_recipe(place / "text.txt", "steps=4", "evaluate_every=none"))
    (run.checkpoints / "step_000009").mkdir()
    found = ask(run)
    assert "step_000009" in found["skipped"][0] and found["checkpoint"].endswith("step_000004")
