"""Noisy keys against the closed forms."""

from statistics import NormalDist

import pytest

from attnlab.theory.noise import NoisyKeys, OneHeadSwings

FEW = {"samples": 4000}


def marks(claim):
    return {key: (found.conclusion, found.reason) for key, found in claim.run().judgements.items()}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("claim", [NoisyKeys, OneHeadSwings])
def test_the_verdict_does_not_hang_on_the_seed(claim, seed):
    found = claim(seed=seed, **FEW)
    assert found.run().verdict == claim.about.expected
    assert found.with_knob().run().verdict != claim.about.expected


def test_keys_have_the_variance_they_claim():
    """Along its mean key a varies by ½ + ε, across by ε; five standard errors of 4,000."""
    claim = OneHeadSwings(noise=0.04, **FEW)
    keys, gamma = claim.random_keys(0.5)
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


@pytest.mark.parametrize("seed", [0, 1])
def test_what_the_documents_say_of_noisy_keys(seed):
    """A symmetric covariance is no reason; a small one is."""
    assert marks(NoisyKeys(seed=seed, **FEW)) == {
        "000 1(c)i": ("wrong", "incomplete"),
        "001 1(c)i": ("right", "right"),
        "002 1(c)i": ("right", "wrong"),
        "003 1(c)i": ("wrong", "right"),
    }
    noisy = marks(NoisyKeys(seed=seed, noise=1.0, **FEW))
    assert noisy["001 1(c)i"] == noisy["002 1(c)i"] == ("wrong", "wrong")


def test_keys_are_as_far_from_their_means_as_the_variance_says():
    """The mean of ‖k − μ‖² is εd, whatever is symmetric."""
    for width in (8, 32):
        found = NoisyKeys(noise=1e-4, width=width)._distances()
        assert all(symmetric for symmetric, _ in found.values())
        assert found["εI"][1] == pytest.approx((1e-4 * width) ** 0.5, rel=0.1)
        assert found["I"][1] == pytest.approx(width**0.5, rel=0.1)
        # half a variance in one direction: the mean of |N(0, ½)| is 1/√π, and a little more
        assert found["εI + ½μ_aμ_aᵀ"][1] == pytest.approx(0.57, abs=0.1)


@pytest.mark.parametrize("seed", [0, 1])
def test_what_the_documents_say_of_one_head(seed):
    assert marks(OneHeadSwings(seed=seed, **FEW)) == {
        "001 1(c)ii": ("right", "right"),
        "002 1(c)ii": ("right", "right"),
        "003 1(c)ii": ("incomplete", "incomplete"),
    }
    # where nothing swings, nobody who says so is right
    still = marks(OneHeadSwings(seed=seed, stretch=0.0, **FEW))
    assert still["001 1(c)ii"][0] == still["003 1(c)ii"][0] == "wrong"


def test_captions_follow_the_settings():
    assert "variance of γ 0: 100.0 % of" in OneHeadSwings(stretch=0.0, **FEW).run().picture.note
    table = NoisyKeys(noise=1e-6, width=8, **FEW).run().details[0]
    assert "ε = 1e-06, d = 8" in table.title
