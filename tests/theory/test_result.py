"""Over the registry: every claim comes out as recorded, and its knob changes the verdict."""

import dataclasses
import json
import math
from typing import get_args

import pytest
import torch

from attnlab import config
from attnlab.experiments.progress import Progress
from attnlab.theory import catalogue
from attnlab.theory.claim import KINDS, Mark
from attnlab.theory.result import run_claim
from attnlab.theory.sources import describe

NAMES = catalogue.names()
QUICK = catalogue.names(quick=True)  # those that train: test_knowledge.py, and `attnlab claims`


@pytest.fixture(scope="module")
def result():
    """Each claim is run once."""
    found = {}

    def of(name):
        if name not in found:
            found[name] = run_claim(name, catalogue.load(name), Progress())
        return found[name]

    return of


@pytest.mark.parametrize("name", QUICK)
def test_the_verdict_is_the_recorded_one_and_the_knob_changes_it(result, name):
    found = result(name)
    assert found.verdict == found.claim.about.expected, found.plain()["measures"]
    assert found.knob_evidence.verdict != found.verdict, found.plain()["knob_measures"]


@pytest.mark.parametrize("name", QUICK)
def test_a_condition_is_stated_where_there_is_one(result, name):
    found = result(name)
    assert bool(found.claim.about.condition) == (found.verdict == "holds with a condition")


@pytest.mark.parametrize("name", QUICK)
def test_every_answer_of_the_documents_is_marked(result, name):
    found = result(name)
    answers = {answer.key: answer for answer in found.claim.about.answers}
    assert len(answers) == len(found.claim.about.answers)
    assert set(found.evidence.judgements) == set(answers)
    for key, judgement in found.evidence.judgements.items():
        assert judgement.conclusion in get_args(Mark)
        reasons = get_args(Mark) if answers[key].reason else (None,)
        assert judgement.reason in reasons


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_quoted_with_its_place(name):
    for answer in catalogue.about(name).answers:
        assert describe(answer.document)
        assert answer.line > 0 and answer.quote.strip() and answer.conclusion.strip()


@pytest.mark.parametrize("name", QUICK)
def test_the_documents_are_judged_for_the_default_settings_only(result, name):
    found = result(name)
    assert len(found.plain()["answers"]) == len(found.claim.about.answers)
    assert found.with_knob().plain()["answers"] == []


@pytest.mark.parametrize("name", QUICK)
def test_the_result_is_plain_json_and_its_headline_is_the_first_measure(result, name):
    plain = result(name).plain()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["name"] == name and plain["evidence"] in KINDS
    assert plain["verdict"] != plain["knob_verdict"]
    first = plain["measures"][0]
    assert [plain[key] for key in ("measured", "rule", "bound")] == [
        first[key] for key in ("value", "rule", "bound")
    ]


@pytest.mark.parametrize("name", NAMES)
def test_what_there_is_to_read_is_complete(name):
    claim = catalogue.load(name)
    about = claim.about
    for text in (about.statement, about.formula, about.derivation, about.knob.words):
        assert text.strip()
    assert about.statement.endswith(".") and len(about.derivation.split()) >= 40
    assert set(about.knob.changes) <= set(config.to_dict(claim))
    assert claim.with_knob() != claim


@pytest.mark.parametrize("name", QUICK)
def test_the_same_seed_gives_the_same_numbers_and_no_global_chance_is_used(result, name):
    before = torch.get_rng_state()
    again = catalogue.load(name).run()
    assert torch.equal(before, torch.get_rng_state())
    for before, after in zip(result(name).evidence.measures, again.measures, strict=True):
        same = before.value == after.value
        assert same or (math.isnan(before.value) and math.isnan(after.value)), before.what


@pytest.mark.parametrize("name", QUICK)
def test_at_the_low_end_of_every_setting_it_runs_or_says_what_to_do(name):
    claim = catalogue.load(name)
    for one in dataclasses.fields(claim):
        low = one.metadata["limits"].low
        if low is not None and not isinstance(one.default, tuple):
            try:
                dataclasses.replace(claim, **{one.name: low}).run()
            except ValueError as refusal:
                assert one.name in str(refusal), refusal
