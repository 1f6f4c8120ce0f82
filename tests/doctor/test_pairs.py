"""The development set: each cause alone is found, equal pairs are equal, and nothing is guessed."""

import pytest

from attnlab import registry
from attnlab.checks.doctor import is_right, verdict_of, without
from attnlab.doctor.diagnosis import diagnose
from attnlab.doctor.pairs.pairs import ALONE, OTHERS, PAIRS, SAME, SEVERAL

QUICK = ("layout and base", "turned, and by tanh")
ROUNDED = tuple(pair.name for pair in SEVERAL if "in float32" in pair.name)
STRANGE = ("ALiBi",)


@pytest.mark.parametrize("pair", ALONE, ids=lambda pair: pair.name)
def test_a_cause_alone_is_found_and_no_other(pair):
    found = diagnose(pair.case())
    assert is_right(pair, found), (verdict_of(found), found.causes)
    assert found.error_after < 1e-12 < found.error_before


@pytest.mark.parametrize(
    "pair", [p for p in SEVERAL if p.name in QUICK + ROUNDED], ids=lambda p: p.name
)
def test_two_causes_are_found_together(pair):
    assert is_right(pair, diagnose(pair.case()))


@pytest.mark.parametrize("pair", SAME, ids=lambda pair: pair.name)
def test_what_only_looks_different_is_equal(pair):
    assert is_right(pair, diagnose(pair.case()))


@pytest.mark.parametrize("pair", [p for p in SAME if "in float32" in p.name], ids=lambda p: p.name)
def test_what_float32_rounds_off_is_told_and_reads_differently(pair):
    found = diagnose(pair.case())
    assert found.rounded and found.error_after < 1e-12 < found.error_before
    assert len(found.rounding) == 1 and found.rounding[0].a != found.rounding[0].b


@pytest.mark.parametrize("pair", [p for p in OTHERS if p.name in STRANGE], ids=lambda p: p.name)
def test_what_no_cause_is_about_stays_unexplained(pair):
    found = diagnose(pair.case())
    assert is_right(pair, found) and found.complete


def test_without_its_cause_a_difference_is_not_explained_by_another():
    pair = next(one for one in ALONE if one.name == "gelu by tanh")
    found = diagnose(pair.case(), causes=without(pair.causes))
    assert verdict_of(found) == "unexplained" and not is_right(pair, found)


def test_every_registered_cause_has_a_pair_of_its_own():
    alone = {cause for pair in ALONE for cause in pair.causes}
    assert {one.name for one in registry.options("cause")} == alone
    assert len(PAIRS) >= 30 and len({pair.name for pair in PAIRS}) == len(PAIRS)
