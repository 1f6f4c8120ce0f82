"""Verdicts are computed from measures, and settings keep to their ranges."""

from dataclasses import dataclass

import pytest

from attnlab.reports.report import Plot
from attnlab.theory.claim import About, Claim, Evidence, Knob, Measure, setting

PICTURE = Plot(title="nothing", x="", y="", series=[])
MET, FAILED = Measure("a", 1.0, "≤", 2.0), Measure("b", 3.0, "≤", 2.0)


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
    ("measures", "outside", "verdict"),
    [
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


def test_chance_states_its_false_alarms():
    with pytest.raises(AssertionError):
        evidence([MET], false_alarm=0.1)
    with pytest.raises(AssertionError):
        Evidence(kind="statistical", trials=1, measures=[MET], picture=PICTURE)


@dataclass(frozen=True, kw_only=True)
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
    assert Even().turned() == Even(number=3) and Even().turned().run().verdict == "refuted"


@pytest.mark.parametrize("number", [-1, 10])
def test_a_setting_beyond_its_range_is_refused(number):
    with pytest.raises(ValueError, match=f"number is {number}; it goes from 0 to 9"):
        Even(number=number)


def test_the_seed_is_a_setting_of_every_claim():
    with pytest.raises(ValueError, match="seed is -1; it goes from 0"):
        Even(seed=-1)
