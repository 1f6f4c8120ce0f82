"""Sinks and soft caps: two keys by hand, and what breaks each claim."""

import math

import numpy as np
import pytest

from attnlab.kernels import attention
from attnlab.theory import caps
from attnlab.theory.caps import SinkAttendsToNothing, SoftCapBoundsRatios


def missed(claim):
    return [one.what for one in claim.run().measures if not one.met]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("claim", [SinkAttendsToNothing, SoftCapBoundsRatios])
def test_the_verdict_does_not_hang_on_the_seed(claim, seed):
    assert claim(seed=seed).run().verdict == "holds"
    assert claim(seed=seed).with_knob().run().verdict == "refuted"


def test_two_keys_and_a_sink_by_hand():
    """Scores 0 and ln 2, a sink of ln 3: parts 1, 2 and 3 of 6."""
    scores = np.array([[0.0, math.log(2)]])
    for path in caps.PATHS:
        assert caps.weights_of(scores, path, sink=math.log(3))[0] == pytest.approx([1 / 6, 1 / 3])
        assert caps.weights_of(scores, path)[0] == pytest.approx([1 / 3, 2 / 3])


def test_a_cap_by_hand():
    """A cap of 2 makes 2·tanh(1/2) of 1, and as much below 0 of −1: their ratio is e^(4 tanh ½)."""
    for path in caps.PATHS:
        first, second = caps.weights_of(np.array([[1.0, -1.0]]), path, cap=2.0)[0]
        assert math.log(first / second) == pytest.approx(4 * math.tanh(0.5), abs=1e-12)


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        (SinkAttendsToNothing, {"keys": 1}),
        (SinkAttendsToNothing, {"keys": 200, "score": 5.0, "spread": 3.0, "lead": 20.0}),
        (SinkAttendsToNothing, {"score": -5.0, "lead": 0.0, "spread": 0.1}),
        (SoftCapBoundsRatios, {"cap": 0.5, "keys": 2}),
        (SoftCapBoundsRatios, {"cap": 50.0, "keys": 100, "spread": 50.0}),
    ],
)
def test_they_hold_at_the_ends_of_the_settings(claim, changes):
    assert claim(**changes, cases=9).run().verdict == "holds"
    assert claim(**changes, cases=9).with_knob().run().verdict == "refuted"


def altered(monkeypatch, change):
    """A kernel that is given something else than was asked for."""

    def kernel(q, k, v, **options):
        return attention(q, k, v, **options | change(options))

    monkeypatch.setattr(caps, "attention", kernel)


def test_a_sink_of_another_score_is_refuted(monkeypatch):
    altered(monkeypatch, lambda one: {"sinks": one["sinks"] and one["sinks"] + 0.01})
    assert missed(SinkAttendsToNothing(score=1.0)) == ["largest |Σ α − Z/(Z + e^b)|"]


def test_a_sink_that_is_one_more_key_of_the_softmax_alone_is_refuted(monkeypatch):
    """What takes no weight away gives a sum of 1."""
    altered(monkeypatch, lambda one: {"sinks": None})
    found = missed(SinkAttendsToNothing())
    assert "least 1 − Σ α" in found and "largest Σ α where all scores are g below b" in found


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_another_cap_is_refuted(monkeypatch, factor):
    altered(monkeypatch, lambda one: {"soft_cap": one["soft_cap"] and factor * one["soft_cap"]})
    found = missed(SoftCapBoundsRatios())
    least = "how far below 2c it is where s = ±20c"
    assert (least in found) == (factor < 1) and ("largest ln(αᵢ/αⱼ)" in found) == (factor > 1)


def test_scores_that_are_cut_off_in_place_of_bent_are_refuted(monkeypatch):
    """min(max(s, −c), c) keeps to 2c and not to 2c·tanh: small differences stay as they are."""

    def cut(q, k, v, soft_cap, **options):
        k = k if soft_cap is None else k.clamp(-soft_cap, soft_cap)
        return attention(q, k, v, **options)

    monkeypatch.setattr(caps, "attention", cut)
    assert missed(SoftCapBoundsRatios()) == [
        "largest ln(αᵢ/αⱼ) − 2c tanh((sᵢ − sⱼ)/(2c))",
        "largest | same | where sᵢ = −sⱼ",
    ]
