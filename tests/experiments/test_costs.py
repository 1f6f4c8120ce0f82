"""What models cost is measured on themselves."""

import dataclasses

import pytest
import torch
from experiments.small import english
from training.recipes import small

from attnlab.bench import measure
from attnlab.bench.measure import Timing
from attnlab.code import consent
from attnlab.data.corpora import TextFiles
from attnlab.experiments import costs
from attnlab.experiments.costs import cache_bytes, cache_sizes, training_seconds
from attnlab.training import launch
from attnlab.training.optim import AdamW

SMALL = ["model.width=16", "model.context=16", "model.attention.heads=2", "batch=2"]


def tiny(*words):
    return launch.recipe_for("tiny", [*words, *SMALL])


@pytest.fixture(scope="module")
def elman(tmp_path_factory):
    text = english(tmp_path_factory.mktemp("text") / "text.txt")
    words = [f"data={text}", "model.width=9", "context=8", "batch=4"]
    return launch.recipe_for("elman", words)


def test_cache_bytes_are_keys_and_values_of_every_layer():
    whole = 2 * 2 * 16 * 4  # layers, keys and values, width, bytes of a number
    for words in ([], ["model.positions=learned"]):
        assert cache_bytes(tiny(*words)) == {
            "per_token": whole,
            "constant": 0,
            "at_context": 16 * whole,
        }
    assert cache_sizes(tiny()) == (16 * whole, 32 * whole)
    assert cache_bytes(tiny("model.attention=multi-query"))["per_token"] == whole // 2


def test_a_window_keeps_a_constant_number_of_bytes():
    window, mixed = cache_bytes(tiny("model.window=4")), cache_bytes(tiny("model.window=4,none"))
    assert window["per_token"] == 0 and window["constant"] == window["at_context"] > 0
    assert mixed["per_token"] == 2 * 16 * 4 and mixed["constant"] == window["constant"] // 2


def test_a_recurrent_model_keeps_one_vector():
    elman = launch.recipe_for("elman", ["model.width=16"])
    assert cache_bytes(elman) == {"per_token": 0, "constant": 64, "at_context": 64}


def test_models_without_a_cache_have_no_cache_bytes():
    reader = launch.recipe_for("elman", ["model=prefix-birnn", "model.width=16", "context=8"])
    assert cache_bytes(reader) is None and cache_sizes(reader) is None
    assert costs.decoding_speeds({"reader": reader}, 1)["reader"] > 0


def test_code_that_reads_the_whole_text_again_has_no_cache_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(consent, "FOLDER", str(tmp_path / "named"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def attend(q, k, v):\n    return v\n")
    assert cache_bytes(tiny("model.attention=mine.py:attend")) is None


def test_decoding_is_timed_for_each(monkeypatch):
    lengths = []
    monkeypatch.setattr(costs, "generate", lambda model, prompt, tokens: lengths.append(tokens))
    turn = Timing(median=40.0, fastest=20.0, slowest=80.0, turns=1)

    def turns(writers, *_):
        return {name: write() or turn for name, write in writers.items()}

    monkeypatch.setattr(costs, "take_turns", turns)
    recipes = {"full": tiny(), "long": tiny("context=32")}
    # so many tokens in 40 ms
    assert costs.decoding_speeds(recipes, 1) == {"full": 400.0, "long": 800.0}
    assert lengths == [16, 32]


def test_memory_known_with_the_times_is_not_read_again():
    assert costs.step_memory({}, {"a": {"memory": 5}}) == {"a": 5}


def test_memory_holds_weights_gradients_and_state(elman, monkeypatch):
    monkeypatch.setattr(measure, "peak_memory", lambda run, device: 1000)
    recipe = dataclasses.replace(elman, optimiser=AdamW())
    vocabulary = costs.Steps(recipe).recipe.model.vocabulary
    model = dataclasses.replace(recipe.model, vocabulary=vocabulary).build()
    tensors = list(model.parameters())
    counted = sum(tensor.numel() for tensor in tensors)
    # a weight, its gradient and two averages; and a count of steps for each tensor
    expected = 1000 + 4 * (4 * counted + len(tensors))
    assert costs.step_memory({"elman": recipe}, {"elman": {}}) == {"elman": expected}


def test_memory_that_cannot_be_read_is_none(elman, monkeypatch):
    monkeypatch.setattr(measure, "peak_memory", lambda run, device: None)
    assert costs.step_memory({"elman": elman}, {"elman": {}}) == {"elman": None}


def test_the_time_of_a_step_is_not_that_of_a_turn(elman, monkeypatch):
    turn = Timing(median=40.0, fastest=20.0, slowest=80.0, turns=1)
    monkeypatch.setattr(costs, "take_turns", lambda takes, *_: dict.fromkeys(takes, turn))
    monkeypatch.setattr(costs, "STEPS_A_TURN", 5)
    found = costs.step_costs({"elman": elman}, turns=1)["elman"]
    assert (found["step_ms"], found["fastest_ms"], found["slowest_ms"]) == (8, 4, 16)
    assert found["tokens_per_second"] == pytest.approx(4 * 8 / 8e-3)  # batch, context, seconds


def test_measuring_has_one_thread_and_gives_the_others_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError), costs.one_thread():
        assert torch.get_num_threads() == 1
        raise RuntimeError
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_seconds_of_a_training_grow_with_its_steps(monkeypatch):
    measured = []
    monkeypatch.setattr(costs, "_step_seconds", lambda recipe: measured.append(recipe) or 0.5)
    assert training_seconds(small(steps=12)) == 6 and training_seconds(small(steps=4)) == 2
    assert measured[0] == measured[1]  # so that one measurement serves all alike


def test_a_step_is_measured_without_any_text():
    assert 0 < costs._step_seconds(small(corpus=TextFiles(path="nowhere"))) < 5
