"""Noisy keys against the closed forms."""

from statistics import NormalDist

import pytest

from attnlab.theory.noise import NoisyKeys, OneHeadSwings, TwoHeadsSteady

FEW = {"samples": 4000}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("claim", [NoisyKeys, OneHeadSwings, TwoHeadsSteady])
def test_the_verdict_does_not_hang_on_the_seed(claim, seed):
    found = claim(seed=seed, **FEW)
    assert found.run().verdict == claim.about.expected
    assert found.turned().run().verdict != claim.about.expected


def test_keys_have_the_variance_they_claim():
    """Along its mean key a varies by ½ + ε, across by ε; five standard errors of 4,000."""
    claim = OneHeadSwings(noise=0.04, **FEW)
    keys, gamma = claim.drawn(0.5)
    a, b = claim.means()[:2]
    off = keys[:, 0] - a
    for direction, variance in ((a, 0.54), (b, 0.04)):
        assert (off @ direction).var() == pytest.approx(variance, rel=0.12)
    assert (keys[:, 1] - b).var() == pytest.approx(0.04, rel=0.05)
    assert gamma.mean() == pytest.approx(1, abs=0.06)


def test_noise_that_is_not_small_is_refuted_and_so_is_a_weak_query():
    assert NoisyKeys(noise=1e-3, **FEW).run().verdict == "refuted"
    assert NoisyKeys(beta=1.0, **FEW).run().verdict == "refuted"


def test_the_law_of_one_head():
    claim = OneHeadSwings(beta=10)
    assert claim._below(0.5) == 0.5
    # σ(10 x) ≤ 0.9 where x ≤ ln 9 / 10, and x has variance ½
    assert claim._below(0.9) == pytest.approx(NormalDist(0, 0.5**0.5).cdf(0.2197), abs=1e-4)


def test_a_weaker_query_swings_less():
    def variance(beta):
        return OneHeadSwings(beta=beta, **FEW).run().measures[0].value

    assert variance(1) < variance(5) < variance(50) < 0.25
    assert OneHeadSwings(beta=1, **FEW).run().verdict == "refuted"


def test_head_one_misses_as_often_as_the_normal_law_says():
    """Φ(−√2) = 7.86 % in the limit; ln(7)/β earlier where β is finite."""
    for beta, share in ((30.0, 0.0931), (100.0, 0.0826)):
        missed, distance = TwoHeadsSteady(beta=beta).run().outside
        assert missed.value == pytest.approx(share, abs=0.01) and distance.met
    assert NormalDist().cdf(-(2**0.5)) == pytest.approx(0.0786, abs=1e-4)


def test_keys_that_hardly_vary_leave_no_condition():
    """Then head 1 never misses, and the claim holds as it stands."""
    found = TwoHeadsSteady(stretch=0.01, **FEW).run()
    assert found.outside[0].value == 0 and found.verdict in ("holds", "refuted")
    assert found.right["001"] and found.right["002"] and not found.right["003"]
