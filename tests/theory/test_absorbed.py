"""Two forms of latent attention: what breaks their equality, and what they cost by hand."""

from dataclasses import replace

import pytest

from attnlab.attention.latent import LatentAttention
from attnlab.theory import absorbed
from attnlab.theory.absorbed import AbsorbedIsPlain


def missed(claim):
    return [one.what for one in claim.run().measures if not one.met]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_verdict_does_not_hang_on_the_seed(seed):
    assert AbsorbedIsPlain(seed=seed).run().verdict == "holds"
    assert AbsorbedIsPlain(seed=seed).with_knob().run().verdict == "refuted"


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 1, "rank": 1, "value_width": 1, "rotary_width": 2, "head_width": 2, "tokens": 2},
        {"heads": 16, "rank": 64, "head_width": 32, "value_width": 32, "rotary_width": 16},
        {"head_width": 3, "rotary_width": 5, "tokens": 64},
    ],
)
def test_it_holds_at_the_ends_of_the_settings(changes):
    claim = AbsorbedIsPlain(**changes, texts=1)
    assert claim.run().verdict == "holds"
    assert claim.with_knob().run().verdict == "refuted"


def test_a_score_divided_by_the_width_of_the_latent_vectors_is_refuted(monkeypatch):
    """The mistake that is made when the absorbed form is written: √(l + r) for √(n + r)."""
    right = LatentAttention.absorbed
    monkeypatch.setattr(
        LatentAttention,
        "absorbed",
        lambda module, *given: replace(right(module, *given), scale=None),
    )
    found = missed(AbsorbedIsPlain())
    assert "difference of weights, of the largest" in found
    assert "of gradients, of the largest" in found


def test_values_made_by_the_next_head_are_refuted(monkeypatch):
    """The weights are right all the same."""
    right = LatentAttention.values_of
    monkeypatch.setattr(
        LatentAttention, "values_of", lambda module, out: right(module, out.roll(1, dims=1))
    )
    assert missed(AbsorbedIsPlain()) == [
        "difference of outputs, of the largest",
        "of gradients, of the largest",
    ]


def test_a_cache_that_keeps_more_is_refuted(monkeypatch):
    claim = AbsorbedIsPlain()
    made = replace(claim, rank=claim.rank + 1)._module()
    monkeypatch.setattr(AbsorbedIsPlain, "_module", lambda self: made)
    assert missed(claim) == ["numbers kept of a token"]


def test_costs_by_hand():
    """One query after 4,096 keys: 256 numbers of each key from 512, then 320 a pair; or moved."""
    plain, moved = absorbed._costs()[0]
    assert plain == 4096 * 256 * 512 + 4096 * (128 + 64 + 128)
    assert moved == 256 * 512 + 4096 * (512 + 64 + 512)
