"""Mutants are drawn evenly, and counted as what they came to."""

import re
from dataclasses import replace
from functools import cache

import pytest

from attnlab.audit.mutants import run
from attnlab.audit.mutants.mutate import mutants
from attnlab.audit.mutants.operators import OPERATORS
from attnlab.audit.mutants.subjects import originals
from attnlab.audit.properties.causality import Causality
from attnlab.audit.properties.evaluation import Evaluation

BY_NAME = {one.name: one for one in originals()}
SMALL = (BY_NAME["einsum_attention"], BY_NAME["grouped_attention"])
MASKS = tuple(one for one in OPERATORS if one.name in ("mask diagonal", "mask dropped"))


def silent(text):
    pass


@cache
def chosen(before, after, original="einsum_attention"):
    every = mutants(BY_NAME[original], OPERATORS)
    return next(one for one in every if before in one.before and after in one.after)


def outcome(end, *failed, operator="strict"):
    one = replace(chosen("tril()", "tril(1)"), operator=operator)
    return run.Outcome(one, end, dict.fromkeys(failed, "seen"), "", 0.1)


PASSES = outcome("missed")  # of an original: as it should


def test_mutants_are_drawn_in_turn_and_the_same_every_time():
    first, again, other = (run.draw_order(SMALL, OPERATORS, seed) for seed in (0, 0, 1))
    assert first == again and first != other
    assert len({one.operator for one in first[:12]}) == 12
    ways = [one for one in first if one.operator == "mask diagonal"]
    assert ways[0].original != ways[1].original
    assert sorted(map(str, first)) == sorted(map(str, other))


@pytest.mark.parametrize("one", SMALL, ids=lambda one: one.name)
def test_an_original_passes(one):
    assert run.audit_mutant(one.correct).reason == ""


def test_a_bug_is_found():
    leak = run.audit_mutant(chosen("tril()", "tril(1)"))
    assert leak.end == "found" and "causality" in leak.failed and not leak.same
    assert run.audit_mutant(chosen("masked_fill(~seen", "masked_fill(seen")).end == "found"
    flat = chosen("q, k, v = self", ".permute(2, 0, 3, 1, 4).shape)", "CausalAttention")
    assert run.audit_mutant(flat).end == "found"


def test_a_mutant_that_raises_in_its_originals_calls_is_broken():
    raising = chosen("guesses, wanted", "labels[:, 2:]", "Language")
    assert run.audit_mutant(raising).end == "broken"


def test_a_mistake_of_ours_breaks_no_mutant(monkeypatch):
    def fails(*given):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(run, "_answers", {})
    monkeypatch.setattr(run, "answers", fails)
    with pytest.raises(ZeroDivisionError):
        run.audit_mutant(chosen("tril()", "tril(1)"))


def test_an_audit_that_looks_at_less_finds_less():
    one = chosen("tril()", "tril(1)")
    names = ("causality", "weights", "heads", "prefix", "positions", "scale", "window")
    assert run.audit_mutant(one, blind=names).end != "found"


def test_counts_are_of_what_mutants_came_to(monkeypatch):
    monkeypatch.setattr(run, "EQUIVALENT", {PASSES.mutant.key: "known"})
    found = [outcome("found", "causality") for _ in range(97)] + [outcome("found", "heads")] * 2
    report = run.score([PASSES], [*found, outcome("missed"), outcome("broken")])
    assert (report["mutants"], report["found"], report["missed"], report["broken"]) == (
        *(100, 99, 1, 1),
    )
    assert report["recall"] == 0.99 and report["passed"]
    assert report["control_recall_without_causality"] == 0.02
    (row,) = report["operators"]
    assert row["operator"] == "strict" and row["mutants"] == 100
    assert row["found_by"] == ["causality", "heads"]
    assert [one["came_to"] for one in report["survivors"]] == ["missed"]


@pytest.mark.parametrize("end", ["missed", "incomplete"])
def test_survivors_that_nobody_explained_fail_the_check(end):
    report = run.score([PASSES], [outcome("found", "heads")] * 40 + [outcome(end)])
    assert report["recall"] < run.WANTED and not report["passed"]


def test_an_error_of_ours_fails_the_check():
    report = run.score([PASSES], [outcome("found", "heads")] * 400 + [outcome("error")])
    assert report["recall"] > run.WANTED and not report["passed"]


def test_an_equivalent_mutant_is_not_counted_unless_it_is_flagged(monkeypatch):
    monkeypatch.setattr(run, "EQUIVALENT", {PASSES.mutant.key: "the same for every text"})
    monkeypatch.setattr(run, "_outcomes", lambda order, workers: iter([PASSES]))
    (same,) = run.audit_all([PASSES.mutant], 5, 1, silent)
    assert same.end == "equivalent"
    found = [outcome("found", "heads")]
    report = run.score([PASSES], [*found, same])
    assert report["recall"] == 1.0 and report["equivalent"] == 1 and report["passed"]
    flagged = replace(same, failed={"heads": "seen"})
    report = run.score([PASSES], [*found, flagged])
    assert not report["passed"] and len(report["false_alarms"]) == 1


def test_an_original_that_is_flagged_or_incomplete_fails_the_check():
    for end in ("found", "incomplete"):
        report = run.score([outcome(end)], [outcome("found", "heads")])
        assert not report["passed"] and len(report["false_alarms"]) == 1


def test_the_check_is_asked_for_on_the_command_line(monkeypatch, capsys):
    from attnlab.cli import experiments

    monkeypatch.setattr(run, "originals", lambda: SMALL[:1])
    monkeypatch.setattr(run, "OPERATORS", MASKS)
    experiments.check("audit", ["mutate=2", "workers=1"])
    out = capsys.readouterr().out
    assert re.search(r"all +2 +2 +0 +0 +0 +0 +\d", out), out
    assert "passed: 2 of 2 mutants are found (100.0 %" in out


def test_the_check_fails_when_the_audit_is_blind(monkeypatch):
    monkeypatch.setattr(run, "originals", lambda: SMALL[:1])
    monkeypatch.setattr(run, "OPERATORS", MASKS)
    monkeypatch.setattr(run, "all_properties", lambda: [Evaluation()])
    report = run.check_mutants(2, 0, 1, silent)
    assert report["found"] == 0 and not report["passed"]


def test_the_check_fails_when_correct_code_is_flagged(monkeypatch):
    monkeypatch.setattr(run, "originals", lambda: SMALL[:1])
    monkeypatch.setattr(run, "OPERATORS", MASKS)
    monkeypatch.setattr(run, "all_properties", lambda: [Causality()])
    monkeypatch.setattr(Causality, "examine", lambda self, probe: self.finding("fail", "always"))
    report = run.check_mutants(1, 0, 1, silent)
    assert report["recall"] == 1.0 and len(report["false_alarms"]) == 1 and not report["passed"]
