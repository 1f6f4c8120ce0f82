"""The proof: what it compares, and that it fails where two models differ."""

import json

import foreign
import pytest
import torch

from attnlab import config
from attnlab.interop import parity, proof, reading
from attnlab.interop.parity import Parity
from attnlab.models.transformer import TransformerSettings
from attnlab.training.weights import load_weights

pytestmark = foreign.needs_transformers


@pytest.fixture(autouse=True)
def quiet():
    """The proof silences the library for its whole process."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    yield
    logging.set_verbosity(before)


def run_here(folder, model, monkeypatch, damage=lambda request, wanted: None):
    """The proof without its process: that is tried in test_exporting.py."""

    def here(folder, request, tensors):
        plain = json.loads(json.dumps(request))
        damage(plain, tensors)
        return proof.prove(str(folder), plain, tensors)

    monkeypatch.setattr(parity, "_in_child", here)
    monkeypatch.setattr(parity, "COUNT", 12)
    return parity.compare(folder, model, None)


def pair(name, folder):
    read = reading.read(foreign.save(foreign.build(name), folder))
    model = read.settings.build().double().eval()
    load_weights(model, read.weights)
    return model


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "qwen2 with yarn"])
def test_it_holds_for_a_model_and_its_folder(name, tmp_path, monkeypatch):
    found = run_here(tmp_path, pair(name, tmp_path), monkeypatch)
    assert found.holds and found.complaint() == ""
    assert found.logits < 1e-12 and found.float32 < 1e-3
    assert found.to_json()["holds"] is True
    assert torch.get_default_dtype() == torch.float32


def other_weight(model):
    with torch.no_grad():
        model.blocks[1].attention.project.weight[3] *= 1 + 1e-6


def other_epsilon(model):
    for block in model.blocks:
        block.attention_norm.eps *= 1.01


@pytest.mark.parametrize("damage", [other_weight, other_epsilon])
def test_a_small_difference_is_found(damage, tmp_path, monkeypatch):
    model = pair("llama", tmp_path)
    damage(model)
    found = run_here(tmp_path, model, monkeypatch)
    assert not found.holds and "logits differ by" in found.complaint()


def test_other_texts_are_found(tmp_path, monkeypatch):
    def change(request, wanted):
        request["answers"][0][-1] = (request["answers"][0][-1] + 1) % 31

    found = run_here(tmp_path, pair("llama", tmp_path), monkeypatch, change)
    assert not found.holds and (found.cached, found.uncached, found.left_padded) == (False,) * 3
    assert "greedy texts differ; greedy texts without a cache differ" in found.complaint()


def test_other_ids_or_texts_of_the_tokenizer_are_found(tmp_path):
    (tmp_path / "model").mkdir()
    foreign.save(foreign.build("llama"), tmp_path / "model")
    for ids, back, same in (([1, 2], None, False), (None, "x", False), (None, None, True)):
        texts = [{"text": "ab.", "ids": ids or [5, 6, 4], "back": back or "ab."}]
        assert proof.agree(str(tmp_path / "model"), texts, False) is same
    assert proof.agree(str(tmp_path), [], False) is None


def test_what_is_not_finite_does_not_hold():
    good = Parity("L", 1e-15, 1e-7, True, True, True, None, 96, 64, (), "5", "2")
    assert good.holds
    for name, value in (
        ("logits", float("nan")),
        ("logits", 2e-10),
        ("float32", float("nan")),
        ("cached", False),
        ("tokenizer", False),
    ):
        bad = Parity(**{**good.__dict__, name: value})
        assert not bad.holds and bad.complaint()


@pytest.mark.parametrize(
    ("words", "tokens", "unreached"),
    [
        ([], 96, ()),
        (["window=100,none"], 132, ()),
        (["chunk=40,none"], 96, ()),
        (["window=5000,none,300"], 332, ("window of 5,000",)),
        (["positions.base=100,none", "positions.temperature=0.1"], 96, ("temperature_step of",)),
        (["positions=learned", "window=100"], 64, ("window of 100",)),
    ],
)
def test_the_text_goes_beyond_windows_and_chunks(words, tokens, unreached, monkeypatch, tmp_path):
    model = config.override(
        TransformerSettings(vocabulary=31, context=64, width=16, depth=1), words
    ).build()
    seen = {}

    def here(folder, request, tensors):
        seen["tokens"] = tensors["tokens"].shape[1]
        same = dict.fromkeys(("cached", "uncached", "left padded"), True)
        numbers = {"logits": 0.0, "float32": 0.0, "class": "L", "transformers": "5"}
        return {**same, **numbers, "tokenizer": None}

    monkeypatch.setattr(parity, "_in_child", here)
    monkeypatch.setattr(parity, "COUNT", 2)
    found = parity.compare(tmp_path, model, None)
    assert seen["tokens"] == found.tokens == tokens
    assert len(found.unreached) == len(unreached)
    assert all(one in said for one, said in zip(unreached, found.unreached, strict=True))
