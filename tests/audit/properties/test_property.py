"""What every property does: all distinct failures are told, and chance is not taken for one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit import Contract, audit
from attnlab.audit.bugs.cases import cases
from attnlab.audit.examine import examine
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.batch import Batch
from attnlab.audit.properties.causality import Causality
from attnlab.audit.properties.evaluation import Evaluation
from attnlab.audit.properties.property import Property
from attnlab.audit.repro.prelude import CannotTell
from attnlab.audit.subject.adapters import subject_for


def case_of(name):
    return next(one for some in cases().values() for one in some if one.name == name)


def found(examined, code, **declared):
    torch.manual_seed(0)
    return examined().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


def hashed(future):
    """Keys are compared after a random projection that every call draws anew."""

    def attend(q, k, v):
        turn = torch.randn(q.shape[-1], 5, dtype=q.dtype)
        scores = (q @ turn) @ (k @ turn).mT
        later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1 + future)
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ v

    return attend


@pytest.mark.parametrize("future", [0, 1])
def test_code_that_draws_random_numbers_is_examined_with_one_seed(future):
    finding = found(Causality, hashed(future), causal=True)
    assert finding.verdict == ("fail" if future else "pass"), finding.detail


def test_random_numbers_in_evaluation_mode_are_told_as_such():
    finding = found(Evaluation, hashed(0))
    assert finding.verdict == "fail" and "draws random numbers" in finding.detail


def test_calls_of_other_shapes_may_draw_other_numbers_and_fail_nothing():
    class Dropping(nn.Linear):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.3)

    finding = found(Batch, Dropping(4, 4))
    assert finding.verdict == "cannot tell" and "random" in finding.detail
    torch.manual_seed(0)
    assert [one.name for one in audit(Dropping(4, 4)).failed] == ["evaluation"]


def test_rows_that_mix_are_found_in_code_that_draws_random_numbers():
    def mixed(q, k, v):
        return hashed(0)(q, k, v - v.mean(0, keepdim=True))

    assert found(Batch, mixed).verdict == "fail"


def test_identical_calls_that_differ_are_not_deterministic_and_nothing_else():
    own = torch.Generator().manual_seed(0)  # nobody seeds this one

    def attend(q, k, v):
        turn = torch.randn(q.shape[-1], 5, dtype=q.dtype, generator=own)
        return F.scaled_dot_product_attention(q @ turn, k @ turn, v, is_causal=True)

    finding = found(Causality, attend, causal=True)
    assert finding.verdict == "cannot tell" and "not deterministic" in finding.detail


def test_an_audit_leaves_the_random_state_as_it_was():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    audit(hashed(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_two_bugs_of_one_property_are_two_findings():
    case = case_of("window-and-chunks")
    certificate = examine(case.subject(True), case.contract)
    told = {one.aspect: one.example.sizes["pieces"] for one in certificate.failed}
    assert list(told) == ["single steps", "chunks on a warm cache"], told
    assert {one["aspect"] for one in certificate.plain()["checks"] if one["name"] == "cache"} == {
        *told
    }
    assert "cache (single steps)" in certificate.reason
    assert certificate.unestablished == ()


@pytest.mark.parametrize("name", ["positions-restart", "window-ignored", "masked-queries"])
def test_one_bug_that_shows_in_many_ways_is_one_finding(name):
    case = case_of(name)
    assert len(examine(case.subject(True), case.contract).failed) == 1


class Numbers(Property):
    """Cases that fail, raise or pass as they are told."""

    name = "numbers"

    def excuse(self, probe):
        return None

    def tolerance(self, probe):
        return 0.0

    def cases(self, probe):
        for aspect, what in self.wanted:
            yield self.case(probe, outcome, aspect, what=what)


def outcome(*, what, seed, tolerance):
    if what == "unclear":
        raise CannotTell("nobody knows")
    return what == "wrong", what, None


@pytest.mark.parametrize(
    ("wanted", "verdict", "aspects"),
    [
        ([("a", "right"), ("b", "right")], "pass", [""]),
        ([("a", "unclear"), ("b", "right")], "cannot tell", [""]),
        ([("a", "unclear"), ("b", "wrong")], "fail", ["b"]),
        ([("a", "wrong"), ("a", "wrong"), ("b", "wrong")], "fail", ["a", "b"]),
    ],
)
def test_a_doubt_hides_no_failure_and_is_no_pass(wanted, verdict, aspects, monkeypatch):
    monkeypatch.setattr(Numbers, "wanted", wanted, raising=False)

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    finding = found(Numbers, attend)
    assert finding.verdict == verdict
    assert [finding.aspect, *(one.aspect for one in finding.besides)] == aspects


def test_nothing_passes_as_equal_where_outputs_are_infinite():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True) / 0.0

    verdicts = {one.name: one.verdict for one in audit(attend, causal=True).findings}
    assert verdicts["finite"] == "fail"
    assert verdicts["causality"] == verdicts["batch"] == verdicts["prefix"] == "cannot tell"
