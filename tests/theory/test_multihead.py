"""Several heads: the closed forms, and what averaging cancels."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from attnlab.theory.multihead import MIXED, PAIRS, AveragingHeadsCancelsNoise, TwoHeadsSteady

FEW = {"samples": 4000}


def marks(claim):
    return {key: (found.conclusion, found.reason) for key, found in claim.run().judgements.items()}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("claim", [TwoHeadsSteady, AveragingHeadsCancelsNoise])
def test_the_verdict_does_not_hang_on_the_seed(claim, seed):
    found = claim(seed=seed, **FEW)
    assert found.run().verdict == claim.about.expected
    assert found.with_knob().run().verdict == "refuted"


def test_head_one_misses_as_often_as_the_normal_law_says():
    """Φ(−√2) = 7.86 % in the limit; ln(7)/β earlier where β is finite."""
    for beta, share in ((30.0, 0.0931), (100.0, 0.0826)):
        missed, distance = TwoHeadsSteady(beta=beta).run().outside
        assert missed.value == pytest.approx(share, abs=0.01) and distance.met
    assert NormalDist().cdf(-(2**0.5)) == pytest.approx(0.0786, abs=1e-4)


def test_keys_that_hardly_vary_leave_no_condition():
    """Then head 1 never misses, and the claim holds as it stands."""
    found = TwoHeadsSteady(stretch=0.01, **FEW).run()
    assert found.outside[0].value == 0 and found.verdict == "holds"
    said = marks(TwoHeadsSteady(stretch=0.01, **FEW))
    assert said["001 1(d)ii"] == said["002 1(d)ii"] == ("right", "right")
    assert said["003 1(d)i"] == ("wrong", "right")


@pytest.mark.parametrize("seed", [0, 1])
def test_what_the_documents_say_of_two_heads(seed):
    """ "In all samples" is wrong; "≈" without its condition is incomplete."""
    assert marks(TwoHeadsSteady(seed=seed, **FEW)) == {
        "001 1(d)i": ("right", None),
        "001 1(d)ii": ("wrong", "incomplete"),
        "001 1(e)": ("right", "right"),
        "002 1(d)i": ("right", None),
        "002 1(d)ii": ("incomplete", "incomplete"),
        "003 1(d)i": ("wrong", "right"),
    }


def test_two_heads_that_both_mix_the_targets_gain_nothing():
    found = TwoHeadsSteady(queries="both mixed", **FEW).run()
    assert found.measures[0].value == pytest.approx(1) and found.verdict == "refuted"


def test_the_picture_of_two_heads_is_of_the_queries_that_were_chosen():
    """At γ = 1 the mixed head gives both the same weight, and the other all of it to a."""
    for queries, weight in (("one each", 1.0), ("sum and difference", 0.5), ("both mixed", 0.5)):
        picture = TwoHeadsSteady(queries=queries, beta=60.0, **FEW).run().picture
        numbers = dict(zip(np.round(picture.series[0].x, 6), picture.series[0].y, strict=True))
        assert numbers[1.0] == pytest.approx(weight, abs=1e-6)
    assert (
        "β(μ_a ± μ_b)/2" in TwoHeadsSteady(queries="sum and difference", **FEW).run().picture.title
    )


@pytest.mark.parametrize("heads", [2, 5, 32])
def test_the_average_varies_between_an_hth_and_all_of_it(heads):
    claim = AveragingHeadsCancelsNoise(heads=heads, **FEW)
    numbers = claim._random_numbers()
    parts = [claim._average_variance(numbers, shared)[0] for shared in (0.0, 0.3, 0.7, 1.0)]
    assert parts == sorted(parts) and parts[3] == pytest.approx(1, abs=1e-12)
    assert parts[0] == pytest.approx(1 / heads, rel=6 * math.sqrt(2 / 4000))


def test_little_sharing_is_enough_to_refute_it():
    """(2/π) arcsin 0.2 = 0.128, so four heads vary by 1.38/4."""
    found = AveragingHeadsCancelsNoise(shared=0.2).run()
    assert found.verdict == "refuted" and found.measures[1].met
    assert found.measures[0].value == pytest.approx(3 * 2 / math.pi * math.asin(0.2), abs=0.06)


def test_lengths_are_correlated_as_they_claim():
    claim = AveragingHeadsCancelsNoise(samples=20_000)
    found = np.corrcoef(claim._lengths(claim._random_numbers(), 0.4).T)
    assert np.abs(found - np.where(np.eye(4), 1, 0.4)).max() <= 6 / math.sqrt(20_000)


@pytest.mark.parametrize("seed", [0, 1])
def test_what_the_documents_say_of_averaging(seed):
    claim = AveragingHeadsCancelsNoise(seed=seed, **FEW)
    assert marks(claim) == {
        "001 1(c)ii (heads)": ("incomplete", None),
        "003 1(d)ii": ("right", "wrong"),
        "003 1(e)": ("right", "incomplete"),
    }


def test_a_head_that_looks_for_a_key_that_does_not_vary_does_not_vary():
    """There is no second noise, so nothing was cancelled: a half of head 1 is a quarter of it."""
    claim = AveragingHeadsCancelsNoise(**FEW)
    length = claim._lengths(claim._random_numbers(), 1.0)[:, 0]
    one, two, common, mean = claim._pair(length, PAIRS["one each"])
    assert two == 0 and common is None and mean == pytest.approx(one / 4)
    alike = claim._pair(length, [MIXED, MIXED])
    assert alike[0] == alike[1] == pytest.approx(alike[3]) and alike[2] == pytest.approx(1)
