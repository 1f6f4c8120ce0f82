"""A language model of a person's own, by the names people have for its sizes."""

import pytest
import torch

from attnlab import config
from attnlab.code import consent
from attnlab.code.own import allow_named
from attnlab.generate import Sampling, generate
from attnlab.models.model import Decoder
from attnlab.training.recipe import Recipe

CODE = """
from types import SimpleNamespace

import torch
from torch import nn

class GPT(nn.Module):
    def __init__(self, vocab_size, n_embd, block_size, bias=True):
        super().__init__()
        self.sizes = vocab_size, n_embd, block_size, bias
        self.embed = nn.Embedding(vocab_size, n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=bias)
    def forward(self, idx, targets=None):
        return self.head(self.embed(idx).cumsum(1)), None

class Named(GPT):
    def forward(self, idx):
        return SimpleNamespace(logits=super().forward(idx)[0])

class Lazy(GPT):
    def forward(self, idx, targets=None):
        every = super().forward(idx)[0]
        return (every, 0.0) if targets is not None else (every[:, -1:], None)

from attnlab.models.recurrent import ElmanSettings

def ours(vocab_size, width):
    return ElmanSettings(vocabulary=vocab_size, width=width).build()

class Last(GPT):
    def forward(self, idx):
        return super().forward(idx)[0][:, -1:]
"""


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr(consent, "FOLDER", str(tmp_path / "named"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)


def model(name, *words):
    words = [f"model=mine.py:{name}", "model.width=12", "model.vocabulary=29", *words]
    recipe = config.override(Recipe(), words)
    allow_named(recipe, words)
    return recipe.model.build()


@pytest.mark.parametrize("name", ["GPT", "Named", "Lazy"])
def test_tokens_become_logits(name):
    built = model(name, "model.context=33", "model.bias=false")
    assert built.inner.sizes == (29, 12, 33, False)
    assert built(torch.zeros(2, 7, dtype=torch.long)).shape == (2, 7, 29)
    assert len(list(generate(built, [[1, 2], [3]], tokens=5, sampling=Sampling(temperature=0)))) > 0
    assert built.longest == 33


def test_a_model_with_a_cache_of_our_interface_decodes_with_it():
    built = model("ours")
    assert isinstance(built, Decoder) and built.settings.code == "mine.py:ours"
    text, sampling = [1, 2, 3], Sampling(temperature=0)
    both = [
        generate(built, [text], tokens=7, sampling=sampling, use_cache=one) for one in (False, True)
    ]
    assert both[0] == both[1] and len(both[0][0]) == 7


def test_operations_are_those_of_its_products():
    assert model("GPT").operations(33) == 3 * 2 * 12 * 29


def test_logits_of_one_token_alone_are_refused():
    with pytest.raises(
        ValueError, match=r"mine.py:Last gives \[2, 1, 29\]; logits for every token"
    ):
        model("Last")(torch.zeros(2, 7, dtype=torch.long))


@pytest.mark.parametrize("made", ["complex64 on cpu", "int64 on cpu", "float32 on meta"])
def test_logits_that_are_no_numbers_of_ours_are_refused(mine, tmp_path, made):
    dtype, _, device = made.split()
    text = "class Other(GPT):\n    def forward(self, idx):\n        return super().forward(idx)[0]"
    (tmp_path / "mine.py").write_text(f"{CODE}\n{text}.to('{device}', torch.{dtype})\n")
    with pytest.raises(ValueError, match=f"gives {made}; logits are floating-point numbers on cpu"):
        model("Other")(torch.zeros(2, 7, dtype=torch.long))
