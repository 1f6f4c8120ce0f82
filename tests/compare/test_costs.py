"""What variants cost is measured on themselves."""

import pytest
import torch

from attnlab.compare import costs
from attnlab.compare.words import parse

WORDS = [
    "full=tiny",
    "learned=tiny:model.positions=learned",
    "shared=tiny:model.attention=multi-query,model.attention.heads=2",
    "mixed=tiny:model.window=4,none",
    "window=tiny:model.window=4",
    "model.width=16",
    "model.context=16",
    "model.attention.heads=2",
    "batch=2",
]
RECIPES = {variant.label: variant.recipe for variant in parse(WORDS).variants}


def test_cache_bytes_are_keys_and_values_of_every_layer():
    whole = 2 * 2 * 16 * 4  # layers, keys and values, width, bytes of a number
    for label in ("full", "learned"):
        assert costs.cache(RECIPES[label]) == {
            "per_token": whole,
            "constant": 0,
            "at_context": 16 * whole,
        }
    assert costs.cache(RECIPES["shared"])["per_token"] == whole // 2


def test_a_window_keeps_a_constant_number_of_bytes():
    window, mixed = costs.cache(RECIPES["window"]), costs.cache(RECIPES["mixed"])
    assert window["per_token"] == 0 and window["constant"] == window["at_context"] > 0
    assert mixed["per_token"] == 2 * 16 * 4 and mixed["constant"] == window["constant"] // 2


def test_a_recurrent_model_keeps_one_vector():
    elman = parse(["elman", "elman:model.width=16"]).variants[1].recipe
    assert costs.cache(elman) == {"per_token": 0, "constant": 64, "at_context": 64}


def test_models_that_keep_nothing_have_no_cache_and_no_speed_of_decoding():
    words = ["elman", "reader=elman:model=prefix-birnn,model.width=16", "context=8"]
    reader = parse(words).variants[1].recipe
    assert costs.cache(reader) is None
    assert costs.decoding({"reader": reader}, 1) == {"reader": None}


def test_decoding_is_timed_for_each(monkeypatch):
    found = costs.decoding({label: RECIPES[label] for label in ("full", "learned")}, 1)
    assert set(found) == {"full", "learned"} and all(speed > 0 for speed in found.values())


def test_memory_known_with_the_times_is_not_read_again():
    assert costs.memory({}, {"a": {"memory": 5}}) == {"a": 5}


def test_measuring_has_one_thread_and_gives_the_others_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError), costs.one_thread():
        assert torch.get_num_threads() == 1
        raise RuntimeError
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
