"""Over the registry: every claim comes out as recorded, and its knob changes the verdict."""

import dataclasses
import json
import math
from typing import get_args

import pytest
import torch

from attnlab import config, registry
from attnlab.experiments.progress import Progress
from attnlab.theory import settle
from attnlab.theory.claim import KINDS, Mark, Measure
from attnlab.theory.sources import COURSES, QUESTIONS, UNSETTLED, described

NAMES = [option.name for option in registry.options("claim")]
QUICK = settle.names(quick=True)  # those that train: test_knowledge.py, and `attnlab claims`


@pytest.fixture(scope="module")
def outcome():
    """Each claim is settled once."""
    found = {}

    def of(name):
        if name not in found:
            found[name] = settle.settle(name, settle.load(name), Progress())
        return found[name]

    return of


@pytest.mark.parametrize("name", QUICK)
def test_the_verdict_is_the_recorded_one_and_the_knob_changes_it(outcome, name):
    found = outcome(name)
    assert found.verdict == found.claim.about.expected, found.plain()["measures"]
    assert found.turned.verdict != found.verdict, found.plain()["knob_measures"]


@pytest.mark.parametrize("name", QUICK)
def test_a_condition_is_stated_where_there_is_one(outcome, name):
    found = outcome(name)
    assert bool(found.claim.about.condition) == (found.verdict == "holds with a condition")


@pytest.mark.parametrize("name", QUICK)
def test_every_answer_of_the_documents_is_marked(outcome, name):
    found = outcome(name)
    answers = {answer.key: answer for answer in found.claim.about.answers}
    assert len(answers) == len(found.claim.about.answers)
    assert set(found.evidence.marks) == set(answers)
    for key, marks in found.evidence.marks.items():
        assert marks.conclusion in get_args(Mark)
        assert marks.reason in get_args(Mark) if answers[key].reason else marks.reason is None


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_quoted_with_its_place(name):
    for answer in registry.load("claim", name).about.answers:
        assert described(answer.document)
        assert answer.line > 0 and answer.quote.strip() and answer.conclusion.strip()


@pytest.mark.parametrize("name", QUICK)
def test_the_documents_are_judged_for_the_claim_as_it_stands_only(outcome, name):
    found = outcome(name)
    assert len(found.plain()["answers"]) == len(found.claim.about.answers)
    assert found.broken().plain()["answers"] == []


def test_every_question_of_the_courses_is_settled_or_it_says_why_not():
    settled = {key for name in NAMES for key in registry.load("claim", name).about.questions}
    assert settled <= set(QUESTIONS)
    assert set(QUESTIONS) - settled == set(UNSETTLED)
    assert {key.split()[0] for key in QUESTIONS} == set(COURSES)


def test_claims_are_found_by_question():
    assert "copy" in settle.answering("A4 1(a)") == settle.answering("cs224n a4  1(a)")
    first, second = settle.answering("A4 1(c)i"), settle.answering("A4 1(c)ii")
    assert "noisy-keys" in first and "one-head-swings" not in first and "one-head-swings" in second
    assert set(settle.answering("A4 1(c)")) == {*first, *second}
    for spelled in ("A4 1c", "a4 1.c", "A4 1（c）", "CS224N Assignment 4, 1(c)"):
        assert settle.answering(spelled) == settle.answering("A4 1(c)"), spelled
    with pytest.raises(ValueError, match=r"no question is called 'A4 9'; such as 'A4 "):
        settle.answering("A4 9")
    with pytest.raises(ValueError, match="cannot be tested"):
        settle.answering("A4 4(b)")


@pytest.mark.parametrize("name", QUICK)
def test_the_outcome_is_plain_json(outcome, name):
    plain = outcome(name).plain()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["name"] == name and plain["evidence"] in KINDS
    assert plain["verdict"] != plain["knob_verdict"]


@pytest.mark.parametrize("name", NAMES)
def test_what_there_is_to_read_is_complete(name):
    claim = settle.load(name)
    about = claim.about
    for text in (about.statement, about.formula, about.derivation, about.knob.words):
        assert text.strip()
    assert about.statement.endswith(".") and len(about.derivation.split()) >= 40
    assert set(about.knob.changes) <= set(config.to_dict(claim))
    assert claim.turned() != claim


@pytest.mark.parametrize("name", QUICK)
def test_the_same_seed_gives_the_same_numbers_and_no_global_chance_is_used(outcome, name):
    before = torch.get_rng_state()
    again = settle.load(name).run()
    assert torch.equal(before, torch.get_rng_state())
    for before, after in zip(outcome(name).evidence.measures, again.measures, strict=True):
        same = before.value == after.value
        assert same or (math.isnan(before.value) and math.isnan(after.value)), before.what


@pytest.mark.parametrize("name", QUICK)
def test_at_the_low_end_of_every_setting_it_runs_or_says_what_to_do(name):
    claim = settle.load(name)
    for one in dataclasses.fields(claim):
        if "range" in one.metadata:
            try:
                dataclasses.replace(claim, **{one.name: one.metadata["range"][0]}).run()
            except ValueError as refusal:
                assert one.name in str(refusal), refusal


def test_quick_leaves_out_what_trains():
    quick = settle.names(quick=True)
    assert set(NAMES) - set(quick) == {"pretraining-carries-facts", "made-up-answers"}


def test_a_measure_in_words():
    assert settle.said(Measure("error", 3e-16, "≤", 1e-12)) == "error: rounding only (≤ 1e-12)"
    assert settle.said(Measure("error", 0.0, "≤", 1e-12)) == "error: 0 (≤ 1e-12)"
    assert settle.said(Measure("share", 0.25, "≥", 0.5)) == "share: 0.2500 (≥ 0.5)"
    assert settle.said(Measure("bound", 3e-16, ">", 0.0)) == "bound: 3.000e-16 (> 0)"
    between = Measure("lead", 0.5, ">", 0.0, low=-0.25, high=1.25)
    said = "lead: 0.5000, interval -0.2500 to 1.250 (> 0; undecided)"
    assert settle.said(between) == said


def test_the_measure_that_decided_is_the_one_that_was_missed():
    met, missed = Measure("a", 1.0, "≤", 2.0), Measure("b", 3.0, "≤", 2.0)
    open_ = Measure("c", 1.0, "≤", 2.0, low=0.0, high=3.0)
    assert [settle.deciding(some).what for some in ([met], [met, open_], [met, open_, missed])] == [
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
    assert back.answer == measure.answer == plain["answer"]
    assert settle.said(back) == settle.said(measure) and back.draws == measure.draws
