"""Numbers as a report shows them."""

import dataclasses

import pytest

from attnlab.experiments.presentation import (
    condense,
    counted_seeds,
    curve,
    in_words,
    judged_numbers,
    judged_together,
    listed,
    numbers,
    over_seeds,
    with_ends,
)
from attnlab.experiments.verdicts import Pair
from attnlab.statistics import Interval, mean_interval

INTERVAL = Interval(-0.5, -0.6, -0.4, 3)
PAIR = Pair(first="a", second="b", interval=INTERVAL, p=0.01, verdict="better", family=7)


def pair(*interval, verdict="cannot tell", p=1.0):
    return dataclasses.replace(PAIR, interval=Interval(*interval), verdict=verdict, p=p)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (PAIR, "is 0.500 lower (0.400 to 0.600)"),
        (PAIR.mirrored, "is 0.500 higher (0.400 to 0.600)"),
        (pair(0.5, -0.1, 1.1, 3), "cannot be told apart from it (-0.100 to +1.100)"),
        (pair(0.5, None, None, 1), "is 0.500 higher in one seed, which cannot tell"),
        (pair(-0.5, None, None, 2), "is 0.500 lower in every seed alike, which cannot tell"),
        (
            pair(0.5, 0.1, 0.9, 3, p=0.083),
            "cannot be told apart from it (+0.100 to +0.900 by itself, p = 0.083 of 7)",
        ),
    ],
)
def test_a_difference_is_said_as_it_was_judged(given, said):
    assert in_words(given) == said


def test_an_interval_shows_its_ends_where_it_has_them():
    assert with_ends(Interval(1.23456, 1.0, 2.0, 3)) == "1.235 (1.000 to 2.000)"
    assert with_ends(Interval(0.5, -0.25, 1.25, 3), digits=2, sign="+") == "+0.50 (-0.25 to +1.25)"
    assert with_ends(Interval(1.0, None, None, 1)) == "1.000" and with_ends(None) is None


def test_lists_are_read_aloud():
    assert [listed(x) for x in ([], ["a"], ["a", "b"])] == ["", "a", "a and b"]
    assert listed(["a", "b", "c"], "or") == "a, b or c"
    assert [counted_seeds(n) for n in (1, 2)] == ["1 seed", "2 seeds"]


def test_a_report_says_what_was_judged_together_and_what_was_counted():
    said = " ".join(judged_together(7, 3, text=True).split())
    assert "all 7 differences" in said and "seeds and of the held-out text" in said
    assert "not of the held-out text" in " ".join(judged_together(7, 3, text=False).split())
    assert "one seed" in judged_together(7, 1, text=True)


def test_numbers_for_results_hold_the_seeds_and_the_verdict():
    assert numbers([1.0, 3.0])["seeds"] == [1.0, 3.0] and numbers([1.0, 3.0])["mean"] == 2.0
    assert judged_numbers(PAIR)["verdict"] == "lower" and judged_numbers(PAIR)["p"] == 0.01


def test_a_curve_is_the_mean_over_seeds_with_a_band_for_three_or_more():
    three = over_seeds([[[5, 1.0], [10, 0.5]], [[5, 2.0], [10, 0.7]], [[5, 3.0], [10, 0.9]]])
    assert three == [(5, [1.0, 2.0, 3.0]), (10, [0.5, 0.7, 0.9])]
    found = curve("a", [*three, (15, [])], level=0.9)
    assert found.y == [2.0, pytest.approx(0.7), None] and list(found.x) == [5, 10, 15]
    wanted = mean_interval([1.0, 2.0, 3.0], 0.9)
    assert (found.low[0], found.high[0], found.low[2]) == (wanted.low, wanted.high, None)
    assert curve("a", three, band=False).low is None
    two = over_seeds([[[5, 1.0]], [[5, 2.0]]], shift=100)
    assert two == [(105, [1.0, 2.0])] and curve("a", two).low is None
    assert curve("a", over_seeds([])).y == []


def test_a_condensed_curve_has_the_mean_of_every_part_and_leaves_no_step_out():
    rows = list(enumerate([7.0, 5.0, 4.0, 4.0, 3.0, 1.0, 1.0], 1))
    assert condense(rows, 3, 7) == [(3, 16 / 3), (5, 3.5), (7, 1.0)]
    assert condense(rows, 30, 7) == rows
    assert condense([], 30, 7) == [] and condense([], 30, 0) == []


def test_a_condensed_curve_stands_at_the_steps_of_its_rows_whatever_a_log_has_lost():
    rows = list(enumerate([7.0, 5.0, 4.0, 4.0, 3.0, 1.0, 1.0], 1))
    del rows[1]
    assert condense(rows, 3, 7) == [(3, 5.5), (5, 3.5), (7, 1.0)]
    assert condense(rows, 30, 7) == rows
    assert condense(rows[:3], 3, 7) == [(3, 5.5), (5, 4.0)], "the end is lost: a shorter curve"


def test_a_step_that_one_seed_has_lost_is_no_point_of_the_curve():
    whole, lost = [[5, 1.0], [10, 0.5], [15, 0.2]], [[5, 2.0], [15, 0.4]]
    assert over_seeds([whole, lost]) == over_seeds([lost, whole][::-1])
    assert over_seeds([whole, lost]) == [(5, [1.0, 2.0]), (15, [0.2, 0.4])]
    assert over_seeds([whole, []]) == []
