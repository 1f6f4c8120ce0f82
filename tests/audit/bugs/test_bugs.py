"""The development set is what it says, and its score counts rightly."""

import re

import pytest
import torch

from attnlab import registry
from attnlab.audit.bugs.cases import FAMILIES, Case, cases
from attnlab.audit.bugs.controls import CONTROLS
from attnlab.audit.contract import Contract
from attnlab.audit.errors import InputError
from attnlab.audit.properties.causality import Causality
from attnlab.audit.properties.evaluation import Evaluation
from attnlab.audit.subject.adapters import subject_for
from attnlab.checks import audit as check
from attnlab.checks.audit import AuditCheck

ALL = [case for some in cases().values() for case in some]
PROPERTIES = {option.name for option in registry.options("property")}


def silent(text):
    pass


def only(monkeypatch, *names):
    chosen = tuple(case for case in ALL if case.name in names)
    monkeypatch.setattr(check, "cases", lambda family: {"some": chosen})


def test_the_check_is_told_as_a_table(monkeypatch, capsys):
    from attnlab.cli import experiments

    only(monkeypatch, "tiled")
    experiments.check("audit", ["ours=false"])
    lines = capsys.readouterr().out.splitlines()
    assert "missed                            none" in lines
    assert lines[lines.index("caught by") + 1] == "  tiled  heads"
    assert lines[-1].split() == ["passed", "True"]
    assert not any("{" in line or "[" in line for line in lines)


def test_names_are_unique_and_reasons_are_properties():
    names = [case.name for case in [*ALL, *CONTROLS]]
    assert len(set(names)) == len(names)
    for case in ALL:
        assert set(case.reasons) <= PROPERTIES, case.name


@pytest.mark.parametrize("family", FAMILIES)
def test_both_forms_run_with_the_same_weights(family):
    for case in cases(family)[family]:
        wrong, right = case.subject(True), case.subject(False)
        x = right.draw(2, 9, 0)
        assert wrong.run(x).shape == right.run(x).shape, case.name
        if right.module is not None:
            ours, theirs = right.module.state_dict(), wrong.module.state_dict()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours), case.name
        for fact in ("pads", "caches"):
            declared = case.declared.get({"pads": "padding", "caches": "cache"}[fact])
            assert not declared or getattr(right, fact), f"{case.name}: {fact} is not recognised"


def test_nobody_elses_randomness_is_touched():
    before = torch.get_rng_state()
    dropping = next(case for case in ALL if case.name == "dropout-in-evaluation")
    first, second = (
        check.audit_trial(check.trial_of(dropping, True), "", silent) for _ in range(2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert first.failed == second.failed and "evaluation" in first.failed


def test_controls_run_and_are_recognised():
    for control in CONTROLS:
        subject = control.subject()
        subject.run(subject.draw(2, 9, 0))
        assert not control.declared.get("cache") or subject.caches
        assert not control.declared.get("padding") or subject.pads


def test_bugs_are_found_and_twins_are_not(monkeypatch):
    only(monkeypatch, "polarity-function", "off-after-wrap")
    report = AuditCheck(family="causality", ours=False).run(silent)
    assert report["passed"], report
    assert report["caught_by"]["off-after-wrap"] == ["cache"]
    assert report["control_recall_without_causality"] == 0.5


def test_the_check_fails_when_a_bug_is_missed(monkeypatch):
    only(monkeypatch, "one-too-many", "polarity-function")
    monkeypatch.setattr(
        Causality, "examine", lambda self, probe: self.finding("pass", "not looked at")
    )
    report = AuditCheck(family="windows", ours=False).run(silent)
    assert report["recall"] == 0.5 and not report["passed"]
    missed = [*report["missed"], *report["for_another_reason"]]
    assert [one["case"] for one in missed] == ["polarity-function"]


def test_the_check_fails_when_correct_code_is_flagged(monkeypatch):
    only(monkeypatch, "one-too-many")
    monkeypatch.setattr(Evaluation, "examine", lambda self, probe: self.finding("fail", "always"))
    report = AuditCheck(family="windows", ours=False).run(silent)
    assert report["recall"] == 1.0 and report["precision"] == 0.0 and not report["passed"]
    assert report["wrongly_flagged"][0]["failed"] == {"evaluation": "always"}


def test_a_fail_for_another_reason_is_not_a_catch():
    trial = check.Trial("mutant", lambda: None, Contract(), ("window",))
    outcome = check.Outcome(trial, {"finite": "NaN"}, {"window": "pass: fine"}, 0.1)
    report = check.score([outcome], [check.Outcome(trial, {}, {}, 0.2)])
    assert report["recall"] == 0 and report["missed"] == []
    assert report["for_another_reason"][0]["should have failed"] == {"window": "pass: fine"}


def test_code_that_cannot_be_called_is_neither_caught_nor_clean():
    def refuses():
        raise InputError("no width found")

    mutant = check.audit_trial(check.Trial("m", refuses, Contract(), ("window",)), "", silent)
    twin = check.audit_trial(check.Trial("t", refuses, Contract()), "", silent)
    assert not mutant.caught_by and not mutant.failed
    report = check.score([mutant], [twin])
    assert (report["recall"], report["clean"], report["precision"]) == (0, 0, 0)
    assert report["incomplete"] == [{"case": "t", "reason": "no width found"}]


def test_a_control_that_is_incomplete_is_not_clean():
    def linear():
        return subject_for(torch.nn.Linear(8, 8), {}, "linear")

    twin = check.audit_trial(check.Trial("linear", linear, Contract(cache=True)), "", silent)
    assert not twin.failed and "cache=true" in twin.reason
    assert check.score([twin], [twin])["clean"] == 0


def test_all_our_attentions_are_controls_but_the_mistakes():
    names = " ".join(trial.name for trial in check.own_trials())
    for kind in ("attention", "score", "positions"):
        for option in registry.options(kind):
            there = re.search(rf"\b{option.name}(,|\s|$)", names) is not None
            assert there == (option.name not in check.MISTAKES), option.name


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="did you mean 'caching'"):
        AuditCheck(family="cachin")
    with pytest.raises(ValueError, match="no family 'rows'"):
        cases("rows")
    with pytest.raises(ValueError, match="has no reasons"):
        Case(name="a", bug="b", make=lambda wrong: None, reasons=())
