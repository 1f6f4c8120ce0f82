"""Claims are found by name and by the course question they settle."""

import dataclasses

import pytest

from attnlab import registry
from attnlab.config import ConfigError
from attnlab.theory import catalogue
from attnlab.theory.sources import COURSES, QUESTIONS, UNSETTLED

NAMES = [option.name for option in registry.options("claim")]


def test_quick_leaves_out_what_trains():
    assert catalogue.names() == NAMES
    trained = {"pretraining-carries-facts", "made-up-answers"}
    assert set(NAMES) - set(catalogue.names(quick=True)) == trained


def test_overrides_change_settings_and_ranges_hold():
    assert catalogue.load("copy", ["lead=3"]).lead == 3
    with pytest.raises(ValueError, match=r"^lead is 50\.0; use 0 to 40, such as 12\.0$"):
        catalogue.load("copy", ["lead=50"])


@pytest.mark.parametrize("name", NAMES)
def test_a_number_has_two_ends_and_a_value_beyond_one_is_a_line_with_field_value_and_rule(name):
    claim = catalogue.load(name)
    for one in dataclasses.fields(claim):
        if not isinstance(one.default, int | float) or isinstance(one.default, bool):
            continue
        limits = one.metadata["limits"]
        assert limits.low is not None and limits.high is not None, one.name
        for beyond in (limits.low - 1, limits.high + 1):
            value = type(one.default)(beyond)
            with pytest.raises(ConfigError) as error:
                catalogue.load(name, [f"{one.name}={value}"])
            assert str(error.value).startswith(f"{one.name} is {value}; use {limits.range}")
            assert "\n" not in str(error.value)


def test_every_question_of_the_courses_is_settled_or_it_says_why_not():
    found = catalogue.by_question()
    assert list(found) == list(QUESTIONS)
    assert {key for key, claims in found.items() if not claims} == set(UNSETTLED)
    asked = {key for name in NAMES for key in catalogue.about(name).questions}
    assert asked == set(QUESTIONS) - set(UNSETTLED)
    assert {key.split()[0] for key in QUESTIONS} == set(COURSES)


def test_every_claim_settles_a_question_or_is_listed_beyond_them():
    beyond, settled = catalogue.beyond_the_courses(), catalogue.by_question().values()
    assert sorted([*beyond, *{name for claims in settled for name in claims}]) == sorted(NAMES)
    assert "stacked-windows-reach" in beyond and "copy" not in beyond


def test_claims_are_found_by_question():
    find = catalogue.find_by_question
    assert "copy" in find("A4 1(a)") == find("cs224n a4  1(a)")
    first, second = find("A4 1(c)i"), find("A4 1(c)ii")
    assert "noisy-keys" in first and "one-head-swings" not in first and "one-head-swings" in second
    assert set(find("A4 1(c)")) == {*first, *second}
    for spelled in ("A4 1c", "a4 1.c", "A4 1（c）", "CS224N Assignment 4, 1(c)"):
        assert find(spelled) == find("A4 1(c)"), spelled


def test_a_question_that_is_unknown_or_open_says_what_to_do():
    with pytest.raises(ValueError, match=r"unknown question 'A4 9'; did you mean 'A4 "):
        catalogue.find_by_question("A4 9")
    with pytest.raises(ValueError, match=r"unknown question 'xyz'; choose from A4 1\(a\), "):
        catalogue.find_by_question("xyz")
    with pytest.raises(ValueError, match="cannot be tested"):
        catalogue.find_by_question("A4 4(b)")
