"""Verdicts are computed from measures, and settings keep to their ranges."""

import json
import math
import random

import pytest

from attnlab.config import setting, settings
from attnlab.reports.report import Plot
from attnlab.theory.claim import (
    About,
    Claim,
    ErrorRates,
    Evidence,
    Knob,
    Measure,
    decisive,
    mark,
)

PICTURE = Plot(title="nothing", x="", y="", series=[])
MET, FAILED = Measure("a", 1.0, "≤", 2.0), Measure("b", 3.0, "≤", 2.0)
UNDECIDED = Measure("c", 1.0, "≤", 2.0, low=0.0, high=3.0)


def evidence(measures, outside=(), **more):
    return Evidence(
        kind="exact", trials=1, measures=measures, outside=outside, picture=PICTURE, **more
    )


@pytest.mark.parametrize(
    ("value", "rule", "bound", "met"),
    [
        (1, "≤", 1, True),
        (1, "<", 1, False),
        (1, "≥", 1, True),
        (1, ">", 1, False),
        (1, "=", 1, True),
        (1, "=", 2, False),
        (float("nan"), "≤", 1, False),
        (float("nan"), "≥", 1, False),
        (float("inf"), "≤", 1, False),
    ],
)
def test_a_measure_is_met_or_not(value, rule, bound, met):
    assert Measure("x", value, rule, bound).met is met


@pytest.mark.parametrize(
    ("low", "high", "rule", "answer"),
    [
        (1.0, 2.0, ">", "met"),
        (-2.0, -1.0, ">", "missed"),
        (-1.0, 1.0, ">", "undecided"),
        (0.0, 1.0, ">", "undecided"),  # 0 itself is not above 0
        (-1.0, 1.0, "<", "undecided"),
        (-2.0, -1.0, "<", "met"),
        (0.0, 0.0, "≤", "met"),
    ],
)
def test_an_interval_meets_its_bound_as_a_whole_or_misses_it_as_a_whole(low, high, rule, answer):
    found = Measure("x", (low + high) / 2, rule, 0.0, low, high)
    assert found.decision == answer and found.met is (answer == "met")


def test_of_a_single_value_nothing_is_decided():
    alone = Measure.mean("x", [5.0], ">", 0.0, 0.95)
    assert alone.decision == "undecided"
    several = Measure.mean("x", [4.0, 5.0, 6.0], ">", 0.0, 0.95)
    assert several.decision == "met" and several.draws == (4.0, 5.0, 6.0)
    assert several.low == pytest.approx(5 - 4.3027 / 3**0.5, abs=1e-3)


def test_error_rates_of_means_are_those_of_their_intervals():
    """Simulated: nothing is there, so each end lies on the wrong side in half of 1 − level."""
    dice, level, found = random.Random(1), 0.9, []
    for _ in range(2000):
        draws = [dice.gauss(0, 1) for _ in range(4)]
        found.append(Measure.mean("x", draws, ">", 0.0, level).decision)
    rates = ErrorRates.of_means([Measure.mean("x", [1.0, 2.0], ">", 0.0, level)], level)
    for answer, rate in (("met", rates.false_confirmation), ("missed", rates.false_refutation)):
        spread = (rate * (1 - rate) / 2000) ** 0.5
        assert found.count(answer) / 2000 == pytest.approx(rate, abs=5 * spread)


def test_the_power_is_that_of_the_verdict_found():
    sure = Measure.mean("x", [0.9, 1.0, 1.1, 1.0], ">", 0.0, 0.95)
    below = Measure.mean("x", [0.9, 1.0, 1.1, 1.0], "<", 2.0, 0.95)
    unsure = Measure.mean("x", [-1.0, 1.0, 2.0], ">", 0.0, 0.95)
    assert ErrorRates.of_means([sure, below], 0.95).power > 0.9999
    assert ErrorRates.of_means([sure, unsure], 0.95).power is None


def test_half_an_interval_is_refused():
    with pytest.raises(AssertionError):
        Measure("x", 1.0, ">", 0.0, low=0.5)


@pytest.mark.parametrize(
    ("measures", "outside", "verdict"),
    [
        ([UNDECIDED], [], "cannot tell"),
        ([MET, UNDECIDED], [], "cannot tell"),
        ([UNDECIDED, FAILED], [], "refuted"),  # one that is missed suffices
        ([UNDECIDED], [MET], "cannot tell"),
        ([MET], [UNDECIDED], "holds"),
        ([MET], [], "holds"),
        ([MET, FAILED], [], "refuted"),
        ([MET], [MET], "holds with a condition"),
        ([MET], [FAILED], "holds"),  # it does not fail beyond the condition: there is none
        ([MET], [MET, FAILED], "holds"),
        ([FAILED], [MET], "refuted"),
    ],
)
def test_the_verdict_follows_the_measures(measures, outside, verdict):
    assert evidence(measures, outside).verdict == verdict


def test_evidence_that_cannot_fail_is_no_evidence():
    with pytest.raises(AssertionError):
        evidence([])


def test_chance_states_its_error_rates():
    with pytest.raises(AssertionError):
        evidence([MET], error_rates=ErrorRates(0.1, None))
    with pytest.raises(AssertionError):
        Evidence(kind="statistical", trials=1, measures=[MET], picture=PICTURE)


@settings
class Even(Claim):
    number: int = setting(2, low=0, high=9, about="a number")
    label: str = "none"

    about = About(
        statement="The number is even.",
        formula="n mod 2 = 0",
        derivation="Look.",
        expected="holds",
        knob=Knob("an odd one", {"number": 3}),
    )

    def run(self):
        return evidence([Measure("rest", self.number % 2, "=", 0)])


def test_a_claim_is_its_settings_and_a_knob():
    assert Even().run().verdict == "holds"
    assert Even().with_knob() == Even(number=3) and Even().with_knob().run().verdict == "refuted"


@pytest.mark.parametrize("number", [-1, 10])
def test_a_setting_beyond_its_range_is_refused(number):
    with pytest.raises(ValueError, match=f"^number is {number}; use 0 to 9$"):
        Even(number=number)


@pytest.mark.parametrize(
    ("true", "complete", "expected"),
    [(True, True, "right"), (True, False, "incomplete"), (False, True, "wrong")],
)
def test_a_mark_is_computed_from_two_facts(true, complete, expected):
    assert mark(true, complete) == expected


def test_a_claim_stands_with_another_seed_but_not_with_other_settings():
    assert Even().has_default_settings and Even(seed=7).has_default_settings
    assert not Even(number=4).has_default_settings and not Even().with_knob().has_default_settings


def test_the_seed_is_a_setting_of_every_claim():
    with pytest.raises(ValueError, match=r"^seed is -1; use 0 to 2147483647$"):
        Even(seed=-1)


def test_a_measure_in_words():
    assert Measure("error", 3e-16, "≤", 1e-12).describe() == "error: rounding only (≤ 1e-12)"
    assert Measure("error", 0.0, "≤", 1e-12).describe() == "error: 0 (≤ 1e-12)"
    assert Measure("share", 0.25, "≥", 0.5).describe() == "share: 0.2500 (≥ 0.5)"
    assert Measure("bound", 3e-16, ">", 0.0).describe() == "bound: 3.000e-16 (> 0)"
    between = Measure("lead", 0.5, ">", 0.0, low=-0.25, high=1.25)
    said = "lead: 0.5000, interval -0.2500 to 1.250 (> 0; undecided)"
    assert between.describe() == said


def test_the_measure_that_decided_is_the_one_that_was_missed():
    met, missed = Measure("a", 1.0, "≤", 2.0), Measure("b", 3.0, "≤", 2.0)
    open_ = Measure("c", 1.0, "≤", 2.0, low=0.0, high=3.0)
    assert [decisive(some).what for some in ([met], [met, open_], [met, open_, missed])] == [
        "a",
        "c",
        "b",
    ]


@pytest.mark.parametrize(
    "measure",
    [
        Measure("x", 1.0, "≤", 2.0),
        Measure("x", math.nan, ">", 1.0),
        Measure("x", -math.inf, ">", 1.0),
        Measure("x", math.inf, "≤", 1.0),
        Measure("x", 1.0, ">", 0.0, 0.5, math.inf),
        Measure.mean("x", [5.0], ">", 0.0, 0.95),
        Measure.mean("x", [4.0, 5.0, 6.0], ">", 0.0, 0.95),
    ],
)
def test_a_measure_comes_back_from_json_with_the_same_answer(measure):
    plain = json.loads(json.dumps(measure.plain(), allow_nan=False))
    back = Measure.from_plain(plain)
    assert back.decision == measure.decision == plain["answer"]
    assert back.describe() == measure.describe() and back.draws == measure.draws
