"""The proof: what it compares, and that it fails where two models differ."""

import json

import foreign
import pytest
import torch

from attnlab import config
from attnlab.data.tokens import tokenizer_from_json
from attnlab.interop import parity, proof, reading, tokens
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
    foreign.save(foreign.build("llama"), tmp_path)
    true = {"text": "ab.", "ids": [5, 6, 4], "marked": [5, 6, 4], "back": "ab."}
    wrong = [{"ids": [1, 2]}, {"marked": [0, 5, 6, 4]}, {"back": "x"}, {"ids": None}]
    assert proof.disagreement(str(tmp_path), [true], False) is None
    unknown = {"text": "Ж", "ids": None, "marked": None, "back": None}
    assert proof.disagreement(str(tmp_path), [unknown], False) is None
    for one in wrong:
        assert proof.disagreement(str(tmp_path), [true, true | one], False) == "ab."


NAMED = [
    ("tokenizer_config.json", {"bos_token": "<s>"}, "<s>"),
    ("tokenizer_config.json", {"additional_special_tokens": ["<one>"]}, "<one>"),
    ("tokenizer_config.json", {"extra_special_tokens": {"image_token": "<im>"}}, "<im>"),
    ("tokenizer_config.json", {"eos_token": {"__type": "AddedToken", "content": "the"}}, "the"),
    (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"31": {"content": "<add>", "special": False}}},
        "<add>",
    ),
]


@pytest.mark.parametrize(("file", "content", "token"), NAMED, ids=lambda one: str(one)[:40])
def test_a_token_that_stands_beside_the_tokenizer_is_compared(file, content, token, tmp_path):
    """AutoTokenizer adds it to what tokenizer.json says, and we read that alone."""
    foreign.save(foreign.build("llama"), tmp_path)
    tokenizer = reading.read(tmp_path).tokenizer
    ours = tokenizer_from_json(tokenizer)
    before = parity._texts(ours, tokens.named(tmp_path))
    assert proof.disagreement(str(tmp_path), before, False) is None
    (tmp_path / file).write_text(json.dumps(content))
    assert tokens.named(tmp_path) == [token]
    texts = parity._texts(ours, tokens.named(tmp_path))
    assert texts[-1]["text"] == token
    found = proof.disagreement(str(tmp_path), texts, False)
    assert found == token
    bad = Parity("L", 0.0, 0.0, True, True, True, False, 96, 64, (), "5", "2", found)
    assert f"as for {token!r}" in bad.complaint()


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
