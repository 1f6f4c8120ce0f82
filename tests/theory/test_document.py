"""docs/theory.md is what the claims say today."""

from pathlib import Path

import pytest

from attnlab.theory import catalogue, document, record
from attnlab.theory.result import run_claim

DOCS = Path(__file__).parents[2] / "docs"
FRESH = "run `attnlab claims --docs docs` and commit what it writes"
NUMBERS = ("measures", "outside", "knob_measures")


@pytest.fixture(scope="module")
def recorded():
    return record.read(DOCS)


@pytest.fixture(scope="module")
def outcomes(recorded):
    return {one["name"]: one for one in recorded["outcomes"]}


def test_every_claim_has_one_machine_that_ran_it(recorded):
    ran = [name for one in recorded["machines"] for name in one["claims"]]
    assert sorted(ran) == sorted(catalogue.names())
    for one in recorded["machines"]:
        assert one["machine"].keys() >= {"torch", "cpu", "instructions", "threads"}


def test_the_document_and_its_pictures_are_made_from_the_outcomes(recorded):
    text, pictures = document.document(recorded)
    assert (DOCS / "theory.md").read_text() == text, FRESH
    there = {path.name: path.read_text() for path in (DOCS / "theory").glob("*.svg")}
    assert there.keys() == pictures.keys(), FRESH
    assert there == pictures, FRESH


def test_all_claims_are_recorded_with_the_expected_verdict(outcomes):
    assert list(outcomes) == catalogue.names(), FRESH
    for name, one in outcomes.items():
        assert one["verdict"] == one["expected"] == catalogue.about(name).expected, name
        assert one["knob_verdict"] != one["verdict"], name


def close(new, old):
    """To a percent, and rounding errors as such: the last digits are the machine's."""
    if None in (new, old):
        return new is old
    return new == pytest.approx(old, rel=0.01, abs=1e-9)


@pytest.mark.parametrize("name", catalogue.names(quick=True))
def test_the_outcomes_are_those_of_today(outcomes, name):
    before = outcomes[name]
    after = record.outcome_of(run_claim(name, catalogue.load(name)))
    for key in before.keys() | after.keys():
        if key not in (*NUMBERS, "measured", "bound", "picture", "details"):
            assert before[key] == after[key], f"{key}: {FRESH}"
    assert close(after["bound"], before["bound"]), FRESH
    for key in NUMBERS:
        for old, new in zip(before[key], after[key], strict=True):
            for same in ("what", "rule", "answer"):
                assert old[same] == new[same], FRESH
            for number in ("value", "bound", "low", "high"):
                assert close(new[number], old[number]), (old["what"], number, FRESH)
    assert before["picture"]["title"] == after["picture"]["title"], FRESH
    assert len(before["details"]) == len(after["details"]), FRESH


def test_a_bound_that_moved_by_more_than_rounding_is_seen():
    assert close(1.0 + 1e-15, 1.0) and not close(1.02, 1.0)
    assert close(None, None) and not close(None, 1.0)


def test_who_was_right_is_a_short_line():
    judged = [("001", "right"), ("000", "wrong"), ("003", "right"), ("002", "incomplete")]
    answers = [
        {"document": one, "part": f"1({number})", "marks": {"conclusion": mark}}
        for number, (one, mark) in enumerate(judged)
    ]
    assert document.who_was_right(answers) == "✓ 001, 003 ◐ 002 ✗ 000"
    twice = [*answers, {"document": "001", "part": "2", "marks": {"conclusion": "wrong"}}]
    assert document.who_was_right(twice) == "✓ 001 1(0), 003 ◐ 002 ✗ 000, 001 2"
    assert document.who_was_right([]) == ""


def test_error_rates_have_their_own_names():
    plain = {"false_refutation": 0.02, "false_confirmation": 0.005, "power": 0.99999}
    said = document.error_rates_text(plain, "holds")
    assert "true, at most 0.02 of runs refute it" in said
    assert "false, at most 0.005 say that it holds" in said and "above 0.9999" in said
    assert "false" not in document.error_rates_text({**plain, "false_confirmation": None}, "holds")
