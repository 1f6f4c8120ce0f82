"""Rows of initial weights: those of a plain training, and never more than a tensor whole."""

import pytest
import torch
from torch import nn
from training.recipes import small

from attnlab import config
from attnlab.code import consent
from attnlab.compat import TorchDispatchMode
from attnlab.models.recurrent import ElmanSettings
from attnlab.models.transformer import TransformerSettings
from attnlab.training import initial_shards, weights
from attnlab.training.initial_shards import Unfit, build_rows
from attnlab.training.shards import Cut

WORDS = [
    (),
    ("tied=false", "bias=true", "positions=learned", "norm=layer"),
    ("gate=elementwise", "value_embedding=true", "head_gains=true", "norm_heads=true"),
    ("attention=latent", "sink=learned", "feedforward=swiglu"),
    ("attention=gated-delta", "positions=none"),
]


def model_of(words):
    return config.override(TransformerSettings(width=64, depth=2, vocabulary=301), words)


def built(settings, cut=None, **options):
    torch.manual_seed(5)
    made = settings.build() if cut is None else build_rows(settings.build, cut, **options)
    return made, torch.rand(1)


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
@pytest.mark.parametrize("shards", [1, 3])
def test_the_rows_of_all_processes_are_the_weights_of_a_plain_training(monkeypatch, words, shards):
    monkeypatch.setattr(initial_shards, "LARGE", 1 << 10)
    settings = model_of(words)
    whole, after = built(settings)
    made = [built(settings, Cut(shards, shard)) for shard in range(shards)]
    assert all(random == after for _, random in made), "as many random numbers were drawn"
    for name, weight in whole.named_parameters():
        parts = [rows.get(name) for (_, rows), _ in made]
        if weight.numel() < 1 << 10:
            assert torch.equal(dict(made[0][0][0].named_parameters())[name], weight), name
        else:
            assert torch.equal(torch.cat(parts), weight), name
    assert all(len(rows) >= 7 for (_, rows), _ in made)


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that is made, and of all that are not on "meta"."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not result.is_meta:
            self.largest = max(self.largest, result.untyped_storage().nbytes())
        return result


def test_no_process_makes_more_than_its_rows_and_one_tensor_whole(monkeypatch):
    """What `build_rows` returns takes its shard; what it makes on the way, the largest tensor."""
    monkeypatch.setattr(initial_shards, "LARGE", 1 << 10)
    settings = model_of(())
    with Largest() as made:
        model, rows = build_rows(settings.build, Cut(4, 0))
    whole = sum(one.numel() for one in model.parameters())
    kept = sum(one.untyped_storage().nbytes() // 4 for one in rows.values())
    kept += sum(one.numel() for one in model.parameters() if not one.is_meta)
    assert kept < 0.27 * whole
    assert made.largest == 4 * max(one.numel() for one in model.parameters())


def test_without_numbers_nothing_is_drawn(monkeypatch):
    monkeypatch.setattr(initial_shards, "LARGE", 1 << 10)
    (_, rows), _ = built(model_of(()), Cut(2, 1), fill=False)
    assert rows and not any(one.any() for one in rows.values())


def test_what_cannot_be_made_in_rows_is_made_whole_and_that_is_said(monkeypatch):
    """An orthogonal matrix depends on all of its rows."""
    monkeypatch.setattr(initial_shards, "LARGE", 1 << 10)
    with pytest.raises(Unfit):
        build_rows(ElmanSettings(width=64).build, Cut(2, 0))
    notes = []
    recipe = small(model=ElmanSettings(width=64, vocabulary=50))
    model, rows = weights.build_shards(recipe, Cut(2, 0), local=2, fill=True, note=notes.append)
    whole = weights.build_model(recipe)
    assert not rows and "begins with the whole model" in notes[0]
    assert all(
        torch.equal(one, other)
        for one, other in zip(model.parameters(), whole.parameters(), strict=True)
    )


def test_a_weight_that_nothing_fills_is_refused(monkeypatch):
    monkeypatch.setattr(initial_shards, "LARGE", 10)

    class Careless(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(8, 8))

    with pytest.raises(Unfit, match="weight is left as memory has it"):
        build_rows(Careless, Cut(2, 0))


class GivenData(nn.Module):
    """Filled in ways of which no operation on the tensor tells."""

    def __init__(self, way):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8, 8))
        if way == "data":
            self.weight.data = torch.randn(8, 8) * 0.01
        elif way == "filled data":
            self.weight.data = torch.empty(8, 8).normal_()
        else:
            self.weight.detach().numpy()[:] = 1 + torch.arange(8.0).numpy()


@pytest.mark.parametrize("way", ["data", "numpy"])
def test_weights_that_are_given_other_data_are_made_whole(monkeypatch, way):
    monkeypatch.setattr(initial_shards, "LARGE", 10)
    with pytest.raises(Unfit, match=r"^TypeError|^RuntimeError"):
        build_rows(lambda: GivenData(way), Cut(2, 0))


def test_data_that_can_be_made_in_rows_are(monkeypatch):
    monkeypatch.setattr(initial_shards, "LARGE", 10)
    whole, after = torch.manual_seed(5) and GivenData("filled data"), torch.rand(1)
    torch.manual_seed(5)
    _, rows = build_rows(lambda: GivenData("filled data"), Cut(2, 1))
    assert torch.equal(rows["weight"], whole.weight[4:]) and torch.equal(torch.rand(1), after)


def test_own_code_that_gives_a_weight_other_data_begins_whole(tmp_path):
    code = tmp_path / "mine.py"
    code.write_text(
        "import torch\nfrom torch import nn\n\n\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.t = nn.Parameter(torch.empty(200, 200))\n"
        "        self.t.data = torch.randn(200, 200) * 0.01\n\n"
        "    def forward(self, q, k, v):\n"
        "        return v * self.t.mean()\n"
    )
    notes = []
    consent.allow(f"{code}:Mine")
    recipe = small(f"model.attention={code}:Mine")
    model, rows = weights.build_shards(recipe, Cut(2, 0), local=2, fill=True, note=notes.append)
    whole = dict(weights.build_model(recipe).named_parameters())
    assert not rows and len(notes) == 1 and "begins with the whole model" in notes[0]
    assert all(torch.equal(one, whole[name]) for name, one in model.named_parameters())


def test_what_cannot_be_built_at_all_is_said_as_in_one_process():
    def build():
        raise ValueError("no such thing")

    with pytest.raises(Unfit) as unfit:
        build_rows(build, Cut(2, 0))
    assert isinstance(unfit.value.__cause__, ValueError)
