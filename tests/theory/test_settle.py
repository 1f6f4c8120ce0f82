"""Over the registry: every claim comes out as recorded, and its knob changes the verdict."""

import dataclasses
import json
import math

import pytest
import torch

from attnlab import config, registry
from attnlab.studies.progress import Progress
from attnlab.theory import settle
from attnlab.theory.claim import KINDS
from attnlab.theory.sources import described

NAMES = [option.name for option in registry.options("claim")]
# what fits into the time of the tests; the whole is `attnlab claims`
LESS = {"pretraining-carries-facts": ["seeds=4"], "made-up-answers": ["seeds=1", "steps=1200"]}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Each claim is settled once; those that train share their runs."""
    runs = tmp_path_factory.mktemp("runs")
    found = {}

    def of(name):
        if name not in found:
            claim = settle.load(name, LESS.get(name, []))
            if claim.trained:
                claim = settle.load(name, [*LESS.get(name, []), f"runs={runs}"])
            found[name] = settle.settle(name, claim, Progress())
        return found[name]

    return of


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_the_recorded_one_and_the_knob_changes_it(outcome, name):
    found = outcome(name)
    assert found.verdict == found.claim.about.expected, found.plain()["measures"]
    assert found.turned.verdict != found.verdict, found.plain()["knob_measures"]


@pytest.mark.parametrize("name", NAMES)
def test_a_condition_is_stated_where_there_is_one(outcome, name):
    found = outcome(name)
    assert bool(found.claim.about.condition) == (found.verdict == "holds with a condition")


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_of_the_documents_is_judged(outcome, name):
    found = outcome(name)
    documents = [answer.document for answer in found.claim.about.answers]
    assert len(set(documents)) == len(documents)
    for evidence in (found.evidence, found.turned):
        assert set(evidence.right) == set(documents)
        assert all(type(right) is bool for right in evidence.right.values())
    for document in documents:
        assert described(document)


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", settle.names(quick=True))
def test_the_same_seed_gives_the_same_numbers_and_no_global_chance_is_used(outcome, name):
    before = torch.get_rng_state()
    again = settle.load(name).run()
    assert torch.equal(before, torch.get_rng_state())
    for before, after in zip(outcome(name).evidence.measures, again.measures, strict=True):
        same = before.value == after.value
        assert same or (math.isnan(before.value) and math.isnan(after.value)), before.what


@pytest.mark.parametrize("name", settle.names(quick=True))
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
    from attnlab.theory.claim import Measure

    assert settle.said(Measure("error", 3e-16, "≤", 1e-12)) == "error: rounding only (≤ 1e-12)"
    assert settle.said(Measure("error", 0.0, "≤", 1e-12)) == "error: 0 (≤ 1e-12)"
    assert settle.said(Measure("share", 0.25, "≥", 0.5)) == "share: 0.2500 (≥ 0.5)"
    assert settle.said(Measure("bound", 3e-16, ">", 0.0)) == "bound: 3.000e-16 (> 0)"
