"""Verdicts on pairs: seeds are blocks, one residual variance for all, the text varies too."""

import math
import random
from statistics import fmean, stdev

import numpy as np
import pytest

from attnlab.experiments.verdicts import (
    ALLOWANCE,
    BATCHES,
    RESOLUTION,
    Difference,
    Stretches,
    differences,
    holm,
    judge,
    p_values,
    pairs,
)
from attnlab.statistics import Interval, Variance, beyond, mean_interval


def test_holm_multiplies_by_how_many_are_left_and_never_falls():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_one_seed_never_tells_and_equal_losses_neither():
    (found,) = pairs({"a": {0: 1.0}, "b": {0: 9.0}}, 0.95)
    assert (found.verdict, found.p) == ("cannot tell", 1.0) and found.interval.mean == -8
    (same,) = pairs({"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 1: 2.0}}, 0.95)
    assert (same.verdict, same.p, same.interval.low) == ("cannot tell", 1.0, None)


@pytest.mark.parametrize("rounding", [0.0, 1e-9, 0.5 * RESOLUTION])
def test_equal_differences_tell_nothing_about_the_noise(rounding):
    """They give no p of 0: a spread below rounding is not known to be a spread."""
    for count in (2, 3):
        losses = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 2.0, 1: 3.0, 2: 4.0 + rounding}}
        if count == 3:
            losses["c"] = {0: 5.0, 1: 6.0, 2: 7.0}
        found = pairs(losses, 0.95)
        assert {(pair.p, pair.verdict) for pair in found} == {(1.0, "cannot tell")}
        assert all(pair.interval.low is None and pair.seeds_error is None for pair in found)


def test_one_pair_of_equal_differences_is_judged_by_the_noise_of_all():
    losses = {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.5, 1: 2.5}, "c": {0: 1.0, 1: 2.2}}
    a_b = pairs(losses, 0.95)[0]
    assert 0 < a_b.p < 1 and a_b.interval.low < -0.5 < a_b.interval.high


def test_two_variants_are_the_paired_t_test():
    losses = {"a": {0: 1.0, 1: 2.0, 2: 3.1}, "b": {0: 1.4, 1: 2.2, 2: 3.4}}
    (found,) = pairs(losses, 0.95)
    differences = [losses["a"][seed] - losses["b"][seed] for seed in range(3)]
    error = stdev(differences) / math.sqrt(3)
    assert found.p == pytest.approx(beyond(abs(fmean(differences)) / error, 2))
    usual = mean_interval(differences, 0.95)
    assert found.interval.low == pytest.approx(usual.low) and found.seeds_error == pytest.approx(
        error
    )


def residuals_of(table):
    table = np.array(table)
    return table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()


def test_all_variants_lend_their_noise_to_every_pair():
    table = [[1.0, 2.0, 3.1], [1.4, 2.2, 3.4], [1.2, 2.25, 3.2], [1.9, 3.3, 3.7]]
    losses = {name: dict(enumerate(row)) for name, row in zip("abcd", table, strict=True)}
    noise = (residuals_of(table) ** 2).sum() / 6
    found = {(pair.first, pair.second): pair for pair in pairs(losses, 0.95)}
    own = np.var(np.subtract(table[0], table[2]), ddof=1)
    assert own < 2 * noise  # so the pooled one is the larger
    assert found["a", "c"].seeds_error == pytest.approx(math.sqrt(2 * noise / 3))
    own = np.var(np.subtract(table[2], table[3]), ddof=1)
    assert own > 2 * noise  # less steady than the others: its own
    assert found["c", "d"].seeds_error == pytest.approx(math.sqrt(own / 3))


def test_without_some_trainings_the_rest_is_fitted():
    """A training that diverged leaves a hole; seeds and variants are still taken out."""
    full = {name: {seed: float(v + 10 * seed) for seed in range(4)} for v, name in enumerate("abc")}
    full["a"][0] += 0.02
    full["b"][1] -= 0.01
    full["c"][3] += 0.03
    holes = {name: dict(row) for name, row in full.items()}
    del holes["a"][3], holes["b"][2]
    found = {(pair.first, pair.second): pair for pair in pairs(holes, 0.95)}
    assert found["a", "b"].interval.count == 2 and found["a", "c"].interval.count == 3
    assert found["a", "b"].verdict == "better"
    assert found["a", "b"].interval.mean == pytest.approx(-1 + 0.015)
    assert found["a", "b"].seeds_error < 0.1  # seeds differ by 10


def stretches(losses, wave, count=12, length=2):
    """The loss of every seed over stretches that differ by a wave of this height and length."""
    bumps = [wave * (-1) ** (number // length) for number in range(count)]
    return {
        seed: Stretches([100 * (loss + bump) for bump in bumps], [100.0] * count)
        for seed, loss in losses.items()
    }


def test_text_on_which_variants_differ_by_turns_widens_the_interval():
    losses = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.1, 1: 2.101, 2: 3.1}}
    alone = pairs(losses, 0.95)[0]
    alike = {name: stretches(row, 0.5) for name, row in losses.items()}
    same = pairs(losses, 0.95, alike)[0]
    assert same.text_error == pytest.approx(0, abs=1e-12) and same.verdict == "better"
    assert same.interval.low == pytest.approx(alone.interval.low)
    unlike = {"a": alike["a"], "b": stretches(losses["b"], -0.5)}
    other = pairs(losses, 0.95, unlike)[0]
    # ± 1 over 6 batches
    assert other.text_error == pytest.approx(math.sqrt(ALLOWANCE / 5))
    assert other.verdict == "cannot tell" and other.interval.mean == pytest.approx(-0.1003333)
    assert other.seeds_error == alone.seeds_error


def test_neighbours_that_are_alike_are_one_piece_of_evidence():
    """Cut more finely, the same text gives the same error: stretches are not independent."""
    losses = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.1, 1: 2.101, 2: 3.1}}

    def error(fine):
        shape = {"count": 12 * fine, "length": 2 * fine}
        texts = {name: stretches(losses[name], 0.5 * sign, **shape) for name, sign in SIGNS}
        return pairs(losses, 0.95, texts)[0]

    assert error(5).text_error == pytest.approx(error(1).text_error)
    assert error(5).neighbours > 0.8 and error(1).neighbours == pytest.approx(1 / 12)


SIGNS = (("a", 1), ("b", -1))


def test_batches_follow_each_other_and_hold_every_token_once():
    whole = Stretches([float(n) for n in range(40)], [2.0] * 39 + [1.0])
    found = whole.batches()
    assert len(found.sums) == BATCHES and found.loss == whole.loss
    assert found.sums[0] == sum(range(6)) and found.counts == [12.0, 14.0, 14.0, 12.0, 14.0, 13.0]
    few = Stretches([1.0, 2.0], [1.0, 1.0])
    assert few.batches() == few


def test_allowance_is_what_batches_of_alike_stretches_miss():
    """Where neighbouring thirtieths correlate by 0.6: the exact variances of such series."""
    places = np.arange(30)
    covariance = 0.6 ** np.abs(places[:, None] - places)
    batches = np.kron(np.eye(BATCHES), np.full(30 // BATCHES, BATCHES / 30))
    of_batches = batches @ covariance @ batches.T
    of_mean = of_batches.mean()
    expected = (np.trace(of_batches) - BATCHES * of_mean) / (BATCHES - 1) / BATCHES
    assert of_mean / expected == pytest.approx(1.57, abs=0.01)
    assert of_mean / expected <= ALLOWANCE


def test_p_values_are_those_of_the_pairs():
    losses = {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.5, 1: 2.6}, "c": {0: 1.0, 1: 2.2}, "d": {}}
    texts = {name: stretches(row, 0.01) for name, row in losses.items()}
    for given in (None, texts):
        found = {(one.first, one.second): one.p for one in pairs(losses, 0.95, given)}
        assert p_values(losses, given) == found


def alike_text(dice, variants, seeds, alike=0.6, count=30):
    """Losses of equal variants, dominated by text whose stretches are like the next."""
    waves = np.empty((variants, count))
    waves[:, 0] = dice.normal(size=variants)
    for place in range(1, count):
        fresh = dice.normal(size=variants) * math.sqrt(1 - alike**2)
        waves[:, place] = alike * waves[:, place - 1] + fresh
    table = dice.normal(0, 0.0125, (variants, seeds, 1)) + 0.08 * waves[:, None]
    return {
        str(v): {s: Stretches(row.tolist(), [1.0] * count) for s, row in enumerate(rows)}
        for v, rows in enumerate(table)
    }


def test_alike_stretches_do_not_make_equal_variants_differ():
    """Each of 30 stretches taken for independent, every fourth comparison is wrong."""
    dice, wrong = np.random.default_rng(1), 0
    for _ in range(300):
        texts = alike_text(dice, variants=4, seeds=4)
        losses = {name: {s: one.loss for s, one in row.items()} for name, row in texts.items()}
        wrong += any(p <= 0.05 for p in p_values(losses, texts).values())
    assert wrong <= 0.05 * 300 + 3 * (300 * 0.05 * 0.95) ** 0.5


def test_stretches_count_by_their_tokens():
    assert Stretches([10.0, 1.0], [5.0, 1.0]).loss == pytest.approx(11 / 6)


def test_a_steady_difference_is_told_although_seeds_differ_more():
    losses = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.1, 1: 2.101, 2: 3.1}}
    (found,) = pairs(losses, 0.95)
    assert (found.verdict, found.direction) == ("better", "lower")


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


def test_a_pair_asked_of_its_second_is_the_same_pair():
    losses = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.1, 1: 2.101, 2: 3.1}}
    found = judge(differences(losses))
    there, back = found.between("a", "b"), found.between("b", "a")
    assert back.interval == there.interval.negated and back.p == there.p
    assert (back.first, back.verdict, back.direction) == ("b", "worse", "higher")
    assert back.mirrored == there
    with pytest.raises(KeyError):
        found.between("a", "c")


def test_all_differences_judged_together_share_one_correction():
    """Of several tables, too: each has a noise of its own, the correction is for all of them."""
    one = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.1, 1: 2.14, 2: 3.09}}
    (alone,) = judge(differences(one)).pairs
    noisy = {"c": {0: 1.0, 1: 5.0, 2: 3.0}, "d": {0: 4.0, 1: 2.0, 2: 3.5}, "e": {0: 0, 1: 9, 2: 1}}
    many = judge([*differences(one), *differences(noisy)])
    assert len(many.pairs) == 4 == many.pairs[0].family
    assert many.between("a", "b").p == pytest.approx(4 * alone.p)
    assert many.between("a", "b").interval == alone.interval
    assert (alone.verdict, many.between("a", "b").verdict) == ("better", "cannot tell")


def test_pairs_that_nobody_asks_about_lend_their_noise_and_cost_nothing():
    losses = {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.5, 1: 2.5}, "c": {0: 1.0, 1: 2.2}}
    (found,) = differences(losses, among=[("b", "a")])
    whole = {(one.first, one.second): one for one in differences(losses)}["a", "b"]
    assert found.mean == -whole.mean and found.by_seeds == whole.by_seeds
    (pair,) = judge([found]).pairs
    assert pair.p == whole.p and pair.family == 1


def test_a_difference_of_which_nothing_is_known_is_never_told():
    unknown = Difference(first="a", second="b", mean=5.0, seeds=1)
    nothing = Difference(first="a", second="c", mean=None)
    found = judge([unknown, nothing]).pairs
    assert [pair.verdict for pair in found] == ["cannot tell"] * 2
    assert found[0].interval == Interval(5.0, None, None, 1) and found[1].interval is None
    known = Difference(first="a", second="b", mean=5.0, seeds=3, by_seeds=Variance(0.01, 2))
    assert judge([known]).pairs[0].verdict == "worse"
