"""Training on a prepared text: its tokenizer, its borders, exact resuming, a part of validation."""

import json

import pytest
from training.recipes import begin, final_bits, go_on, small, text_recipe
from training.test_loop import stop_at

from attnlab import config
from attnlab.data.prepared.making import prepare as prepare_text
from attnlab.data.prepared.preparation import Preparation
from attnlab.training import checkpoint
from attnlab.training.launch import recipe_for
from attnlab.training.setup import prepare


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.jsonl"
    texts = [f"Document {number}: " + "words " * (number % 9) for number in range(120)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ["tokenizer=bpe", "tokenizer.vocabulary=270", "validation=0.3", "part=1KB", "workers=1"]
    prepare_text(config.override(Preparation(), words), str(path), tmp_path / "out")
    return tmp_path / "out"


def prepared_recipe(folder, *words):
    model = ["model.width=16", "model.depth=2", "model.attention.heads=2", "context=24", "batch=4"]
    steps = ["steps=12", "evaluate_every=5", "save_every=4", "sample_every=none", "device=cpu"]
    return recipe_for("tiny", [f"data={folder}", *model, *steps, *words])


@pytest.mark.parametrize("apart", ["true", "false"])
@pytest.mark.parametrize("cut", [5, 7])
def test_a_run_on_a_prepared_text_resumes_to_the_same_bits(
    tmp_path, monkeypatch, folder, apart, cut
):
    recipe = prepared_recipe(folder, f"objective.apart={apart}")
    whole = final_bits(begin(tmp_path, recipe)[0])
    with monkeypatch.context() as patch:
        stop_at(patch, cut)
        broken, result = begin(tmp_path, recipe)
    assert result.ending == "SIGTERM" and result.step == cut + 1
    go_on(broken, recipe, checkpoint.newest_good(broken.checkpoints)[0])
    assert final_bits(broken) == whole


def test_documents_apart_are_another_training(tmp_path, folder):
    bits = [
        final_bits(begin(tmp_path, prepared_recipe(folder, f"objective.apart={apart}"))[0])
        for apart in ("true", "false")
    ]
    assert bits[0] != bits[1]


def test_data_of_a_prepared_folder_brings_its_tokenizer(tmp_path, folder):
    recipe = prepared_recipe(folder)
    plain = config.to_dict(recipe)
    assert plain["corpus"] == {"name": "prepared", "path": str(folder), "verify": False}
    assert plain["tokenizer"] == {"name": "bpe", "vocabulary": 270}
    assert prepare(recipe, tmp_path).recipe.model.vocabulary == 270
    assert config.from_dict(type(recipe), plain) == recipe
    (tmp_path / "b.txt").write_text("text")
    other = recipe_for("tiny", [f"data={folder}", "tokenizer=bytes"])
    with pytest.raises(ValueError, match=r"was prepared with tokenizer=bpe of 270 tokens"):
        prepare(other, tmp_path)
    other = recipe_for("tiny", [f"data={folder}", "tokenizer.vocabulary=300"])
    with pytest.raises(ValueError, match="leave out tokenizer="):
        prepare(other, tmp_path)


def test_data_of_a_text_goes_back_to_text(tmp_path, folder):
    from attnlab.training.launch import with_data

    recipe, path = prepared_recipe(folder), tmp_path / "b.txt"
    assert with_data(recipe, [f"data={path}"]) == ["corpus=text", f"corpus.path={path}"]


def test_half_a_folder_is_refused_before_anything_is_made(folder):
    (folder / "index.json").unlink()
    with pytest.raises(ValueError, match="is not prepared to the end"):
        prepared_recipe(folder)


def test_a_model_that_takes_no_documents_is_refused(tmp_path, folder):
    recipe = recipe_for("elman", [f"data={folder}", "objective.apart=true", "context=24"])
    with pytest.raises(ValueError, match="takes no documents packed in a row"):
        prepare(recipe, tmp_path)
    with pytest.raises(ValueError, match=r"compile and objective\.apart exclude each other"):
        prepared_recipe(folder, "objective.apart=true", "compile=true")


def evaluations(tmp_path, recipe):
    return begin(tmp_path, recipe)[0].read("eval")


def test_an_evaluation_is_of_the_same_part_and_the_whole_comes_last(tmp_path, folder):
    whole = evaluations(tmp_path, prepared_recipe(folder))
    part = evaluations(
        tmp_path, prepared_recipe(folder, "evaluate_tokens=48", "evaluate_whole=true")
    )
    assert {row["tokens"] for row in part} == {48} and whole[0]["tokens"] > 200
    assert [row.get("whole") for row in part[:-1]] == [None] * (len(part) - 1)
    assert part[-1]["whole"] == whole[-1]["loss"] != part[-1]["loss"]
    everything = prepared_recipe(folder, "evaluate_tokens=none", "evaluate_whole=true")
    last = evaluations(tmp_path, everything)[-1]
    assert last["whole"] == last["loss"] == whole[-1]["loss"]


def test_what_is_small_is_evaluated_as_a_whole(tmp_path):
    (tmp_path / "a.txt").write_text("some text and more of it. " * 60)
    few = text_recipe(tmp_path / "a.txt", "evaluate_tokens=64")
    assert evaluations(tmp_path, few)[0]["tokens"] == 64
    plain = evaluations(tmp_path, text_recipe(tmp_path / "a.txt"))
    every = evaluations(tmp_path, text_recipe(tmp_path / "a.txt", "evaluate_tokens=none"))
    assert plain == every
    assert small().evaluated_rows == (1 << 20) // 64
