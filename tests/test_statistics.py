"""Intervals and AUROC against their definitions."""

import itertools
import math
import random
import statistics

import numpy as np
import pytest

from attnlab.statistics import (
    Variance,
    auroc,
    beyond,
    mean_interval,
    neighbour_correlation,
    power,
    residual_variance,
    share_interval,
    student,
    weighted_mean_variance,
)


def within(limit, degrees):
    """The chance that Student's t is between -limit and limit, by Simpson's rule."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    scale /= math.sqrt(degrees * math.pi)
    steps = 20_000
    width = limit / steps
    heights = [
        scale * (1 + (n * width) ** 2 / degrees) ** (-(degrees + 1) / 2) for n in range(steps + 1)
    ]
    return (
        2
        * width
        / 3
        * (heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]))
    )


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 9, 10, 11, 15, 30, 100, 10_000])
def test_students_quantile(degrees):
    assert within(student(degrees), degrees) == pytest.approx(0.95, abs=2e-5)


def test_quantiles_at_other_levels():
    # two-sided: from any table of Student's t
    assert student(2, 0.99) == pytest.approx(9.925, abs=5e-4)
    assert student(5, 0.9) == pytest.approx(2.015, abs=5e-4)
    assert student(200) == pytest.approx(1.972, abs=5e-4)


def test_the_chance_beyond_is_one_at_zero_and_falls():
    for degrees in (1, 2, 3, 8, 9):
        found = [beyond(t / 4, degrees) for t in range(20)]
        assert found[0] == pytest.approx(1) and found == sorted(found, reverse=True)


def test_a_higher_level_is_a_wider_interval():
    usual, wide = mean_interval([1.0, 2.0, 4.0]), mean_interval([1.0, 2.0, 4.0], 0.99)
    assert wide.low < usual.low and usual.high < wide.high


def test_a_mean_and_its_interval():
    found = mean_interval([1.0, 2.0, 4.0])
    half = 4.302653 * statistics.stdev([1.0, 2.0, 4.0]) / math.sqrt(3)
    assert (found.mean, found.count) == (pytest.approx(7 / 3), 3)
    assert (found.low, found.high) == (pytest.approx(7 / 3 - half), pytest.approx(7 / 3 + half))


def test_an_interval_holds_the_truth_in_95_of_100_samples():
    """Of 4,000 samples of five; five standard errors are 1.7 %."""
    rng = random.Random(1)
    hits = 0
    for _ in range(4000):
        found = mean_interval([rng.gauss(3, 2) for _ in range(5)])
        hits += found.low <= 3 <= found.high
    assert abs(hits / 4000 - 0.95) < 0.018


def test_one_value_has_no_interval():
    found = mean_interval([0.3])
    assert (found.mean, found.low, found.high, found.count) == (0.3, None, None, 1)


@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (0, 500), (25, 500), (500, 500)])
def test_the_ends_of_a_share_are_those_that_would_just_not_surprise(right, count):
    """Wilson: the share found is 1.96 standard errors from either end, seen from that end."""
    found = share_interval(right, count)
    assert found.mean == right / count and 0 <= found.low <= found.mean <= found.high <= 1
    for end in (found.low, found.high):
        away = abs(found.mean - end)
        error = 1.959964 * math.sqrt(end * (1 - end) / count)
        assert away == pytest.approx(error, abs=1e-6) or end == found.mean


def test_auroc_is_the_share_of_pairs():
    rng = random.Random(0)
    for _ in range(50):
        first = [rng.randint(0, 6) for _ in range(rng.randint(1, 9))]
        second = [rng.randint(0, 6) for _ in range(rng.randint(1, 9))]
        pairs = [(a > b) + (a == b) / 2 for a, b in itertools.product(first, second)]
        assert auroc(first, second) == pytest.approx(sum(pairs) / len(pairs))


def test_auroc_of_nobody_is_unknown():
    assert auroc([], [1.0]) is None and auroc([1.0], []) is None


def test_what_is_no_sample_is_refused():
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval([])
    for right, count in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="is no share"):
            share_interval(right, count)


def test_errors_of_two_sources_add_and_each_keeps_its_degrees():
    """The p-value is that of each part's degrees, weighted by its share of the variance."""
    both = Variance(3.0, 2) + Variance(1.0, 30)
    assert both.value == 4.0
    t = 2.5
    assert both.p_value(2 * t) == pytest.approx(0.75 * beyond(t, 2) + 0.25 * beyond(t, 30))
    alone = Variance(2.0, 3) + Variance(0.0, 30)
    assert alone.p_value(4.0) == Variance(2.0, 3).p_value(4.0)
    assert alone.interval(1.0, 0.95, 4) == Variance(2.0, 3).interval(1.0, 0.95, 4)
    end = both.interval(0.0, 0.9, 4).high
    assert both.p_value(end) == pytest.approx(0.1, abs=1e-9)
    nothing = (Variance(0.0, 3) + Variance(0.0, 2)).interval(5.0, 0.95, 4)
    assert (nothing.low, nothing.high) == (5.0, 5.0)
    assert Variance(2.0, 3).times(1.5) == Variance(3.0, 3)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("few", [1, 2, 3])
def test_few_degrees_beside_many_are_wrong_no_more_often_than_the_level(few, share):
    """Where Welch and Satterthwaite's degrees are wrong in up to 11 of 100 cases instead of 5."""
    rng, wrong, draws = np.random.default_rng(5), 0, 4000
    for mean, first, second in zip(
        rng.normal(0, 1, draws),
        (1 - share) * rng.chisquare(few, draws) / few,
        share * rng.chisquare(29, draws) / 29,
        strict=True,
    ):
        wrong += (Variance(first, few) + Variance(second, 29)).p_value(mean) <= 0.05
    assert wrong / draws <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)


def test_how_much_each_value_is_like_the_next():
    assert neighbour_correlation([1.0, -1.0, 1.0, -1.0]) == pytest.approx(-0.75)
    # around 1.5: (-1.5)(-0.5) + (-0.5)(0.5) + (0.5)(1.5) = 1.25 of 5
    assert neighbour_correlation([0.0, 1.0, 2.0, 3.0]) == pytest.approx(0.25)
    assert neighbour_correlation([1.0, 2.0]) is None and neighbour_correlation([2.0] * 9) is None
    rng, value, values = np.random.default_rng(0), 0.0, []
    for fresh in rng.normal(0, 0.8, 20_000):
        value = 0.6 * value + fresh
        values.append(value)
    assert neighbour_correlation(values) == pytest.approx(0.6, abs=0.03)


def test_a_variance_gives_the_interval_and_p_of_students_t():
    values = [1.0, 1.4, 1.9, 2.2]
    spread = Variance(statistics.variance(values) / 4, 3)
    mean = statistics.fmean(values)
    wanted, found = mean_interval(values), spread.interval(mean, 0.95, 4)
    assert found.low == pytest.approx(wanted.low) and found.high == pytest.approx(wanted.high)
    assert spread.p_value(mean - wanted.low) == pytest.approx(0.05, abs=1e-9)


def test_the_variance_of_a_weighted_mean():
    even = weighted_mean_variance([1.0, 2.0, 4.0], [5, 5, 5])
    assert even.value == pytest.approx(statistics.variance([1.0, 2.0, 4.0]) / 3)
    assert even.degrees == 2 and weighted_mean_variance([1.0], [1.0]) is None
    tiny = weighted_mean_variance([1.0, 2.0, 1000.0], [5, 5, 1e-9])  # weighs nothing
    assert tiny.value == pytest.approx(3 / 2 * 2 * (0.5 * 0.5) ** 2, rel=1e-3)


def test_what_rows_and_columns_leave_unexplained():
    noise = np.random.default_rng(0).normal(size=(4, 3))
    table = noise + 10 * np.arange(4)[:, None] + 100 * np.arange(3)
    left = noise - noise.mean(0) - noise.mean(1, keepdims=True) + noise.mean()
    found = residual_variance(table)
    assert found.degrees == 6 and found.value == pytest.approx((left**2).sum() / 6)
    assert residual_variance(table[:1]) is None and residual_variance(table[:, :1]) is None
    assert residual_variance(np.empty((0, 0))) is None


def test_a_hole_costs_a_degree_and_the_rest_is_fitted():
    """The fit of a table with holes: the least that any rows and columns leave."""
    table = np.random.default_rng(1).normal(size=(4, 4)) + 10 * np.arange(4)
    table[0, 1] = table[2, 3] = np.nan
    found = residual_variance(table)
    assert found.degrees == 9 - 2
    columns = np.zeros(4)
    for _ in range(500):  # by turns, which comes to the least squares
        rows = np.nanmean(table - columns, axis=1)
        columns = np.nanmean(table - rows[:, None], axis=0)
    left = np.nansum((table - rows[:, None] - columns) ** 2)
    assert found.value == pytest.approx(left / 7)
    lonely = np.full((2, 2), np.nan)
    assert residual_variance(lonely) is None
    lonely[0, 0] = lonely[1, 1] = 1.0  # two trainings of different seeds say nothing
    assert residual_variance(lonely) is None


@pytest.mark.parametrize(
    ("mean", "deviation", "count", "level"),
    [(0.2, 0.1, 6, 0.99), (1.0, 1.0, 3, 0.95), (0, 1, 5, 0.9)],
)
def test_power_is_how_often_a_new_interval_lies_above_the_bound(mean, deviation, count, level):
    """Simulated; five standard errors of 4,000 samples."""
    rng, bound, above = random.Random(3), 0.05 if mean == 0.2 else 0.0, 0
    for _ in range(4000):
        found = mean_interval([rng.gauss(mean, deviation) for _ in range(count)], level)
        above += found.low > bound
    said = power(mean, deviation, count, bound, level)
    assert above / 4000 == pytest.approx(said, abs=5 * (said * (1 - said) / 4000) ** 0.5)


def test_power_without_spread_is_all_or_nothing_and_one_value_has_none():
    assert power(1.0, 0.0, 3, 0.5) == 1 and power(0.4, 0.0, 3, 0.5) == 0
    assert power(9.0, 1.0, 1, 0.0) == 0
