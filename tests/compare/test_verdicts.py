"""Verdicts on pairs: by Student's t, paired by seed, corrected for the number of pairs."""

import random

import pytest

from attnlab.compare.verdicts import holm, p_value, pairs, turned


def test_holm_multiplies_by_how_many_are_left_and_never_falls():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_one_seed_never_tells_and_equal_losses_neither():
    (found,) = pairs({"a": {0: 1.0}, "b": {0: 9.0}}, 0.95)
    assert (found.verdict, found.p) == ("cannot tell", 1.0) and found.interval.mean == -8
    assert p_value([0.0, 0.0, 0.0]) == 1.0 and p_value([1.0, 1.0]) == 0.0


def test_a_steady_difference_is_told_although_seeds_differ_more():
    losses = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.1, 1: 2.101, 2: 3.1}}
    (found,) = pairs(losses, 0.95)
    assert found.verdict == "better" and turned(found.verdict) == "worse"
    assert turned("cannot tell") == "cannot tell"


def test_a_higher_level_asks_for_more():
    losses = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.1, 1: 2.12, 2: 3.09}}
    assert [pairs(losses, level)[0].verdict for level in (0.9, 0.9999)] == ["better", "cannot tell"]


def test_only_seeds_that_both_have_count():
    (found,) = pairs({"a": {0: 1.0, 1: 2.0}, "b": {1: 5.0}}, 0.95)
    assert found.interval.mean == -3 and found.interval.count == 1
    (none,) = pairs({"a": {0: 1.0}, "b": {}}, 0.95)
    assert none.interval is None and none.verdict == "cannot tell"


def test_variants_that_do_not_differ_are_rarely_told_apart():
    """Four alike, six pairs: a wrong verdict anywhere in at most 5 % of comparisons."""
    chance, wrong = random.Random(0), 0
    for _ in range(400):
        losses = {name: {seed: chance.gauss(2, 0.1) for seed in range(3)} for name in "abcd"}
        wrong += any(pair.verdict != "cannot tell" for pair in pairs(losses, 0.95))
    assert wrong <= 0.05 * 400 + 3 * (400 * 0.05 * 0.95) ** 0.5  # three standard errors above
