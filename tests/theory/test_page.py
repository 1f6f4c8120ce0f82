"""docs/theory.md is what the claims say today."""

import json
from pathlib import Path

import pytest

from attnlab.theory import page, settle

DOCS = Path(__file__).parents[2] / "docs"
FRESH = "run `attnlab claims --docs docs` and commit what it writes"
NUMBERS = ("measures", "outside", "knob_measures")


@pytest.fixture(scope="module")
def recorded():
    return json.loads((DOCS / "theory" / "outcomes.json").read_text())


def test_the_document_and_its_pictures_are_made_from_the_outcomes(recorded):
    text, pictures = page.document(recorded)
    assert (DOCS / "theory.md").read_text() == text, FRESH
    there = {path.name: path.read_text() for path in (DOCS / "theory").glob("*.svg")}
    assert there.keys() == pictures.keys(), FRESH
    assert there == pictures, FRESH


def test_all_claims_are_recorded(recorded):
    assert [one["name"] for one in recorded] == settle.names(), FRESH


@pytest.mark.parametrize("name", settle.names(quick=True))
def test_the_outcomes_are_those_of_today(recorded, name):
    """To a percent, and rounding errors as such: the last digits are the machine's."""
    (before,) = (one for one in recorded if one["name"] == name)
    after = page.kept(settle.settle(name, settle.load(name)))
    for key in before.keys() | after.keys():
        if key not in (*NUMBERS, "measured", "picture", "details"):
            assert before[key] == after[key], f"{key}: {FRESH}"
    for key in NUMBERS:
        for old, new in zip(before[key], after[key], strict=True):
            assert (old["what"], old["rule"], old["met"]) == (new["what"], new["rule"], new["met"])
            for number in ("value", "bound"):
                assert new[number] == pytest.approx(old[number], rel=0.01, abs=1e-9), FRESH
    assert before["picture"]["title"] == after["picture"]["title"], FRESH
    assert len(before["details"]) == len(after["details"]), FRESH


def test_who_was_right_is_a_short_line():
    answers = [
        {"document": "001", "supported": True},
        {"document": "000", "supported": False},
        {"document": "003", "supported": True},
    ]
    assert page.who_was_right(answers) == "✓ 001, 003 ✗ 000"
    assert page.who_was_right([]) == ""
