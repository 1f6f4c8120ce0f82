"""A row attends to its own context, and to no padding in it."""

import pytest
import torch
from torch import nn

from attnlab.audit import Contract
from attnlab.audit.bugs.contexts import CASES, Cross
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.context import SHAPES, ContextRows
from attnlab.audit.subject.adapters import subject_for

OURS = [case for case in CASES if case.reasons == ("context",)]


def found(code, **declared):
    return ContextRows().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


@pytest.mark.parametrize("case", OURS, ids=lambda case: case.name)
def test_each_known_bug_fails_and_its_twin_passes(case):
    for wrong, verdict in ((True, "fail"), (False, "pass")):
        finding = ContextRows().examine(Probe(case.subject(wrong), case.contract))
        assert finding.verdict == verdict, finding.detail


@pytest.mark.parametrize("causal", [None, True])
def test_attention_of_pytorch_passes_whoever_makes_it_causal(causal):
    for code in (nn.MultiheadAttention(32, 4), nn.TransformerDecoderLayer(32, 4, 64)):
        finding = found(code, causal=causal)
        assert finding.verdict == "pass"
        assert "never to padding" in finding.detail
        assert "all of 7 positions, their order does not matter" in finding.detail


def test_code_that_is_given_its_text_only_has_no_context():
    assert found(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)).verdict == (
        "not applicable"
    )


class Placed(Cross):
    """Numbers the positions of its context, of which it takes 9."""

    def __init__(self):
        super().__init__(32, 4, False)
        self.places = nn.Embedding(9, 32)

    def forward(self, x, context):
        q, k, v = self.split(x, context + self.places(torch.arange(context.shape[1])))
        return self.join((q @ k.mT).softmax(-1) @ v)


def test_what_is_refused_and_whether_order_matters_is_told():
    finding = found(Placed())
    assert finding.verdict == "pass"
    assert f"{len([one for one in SHAPES if one[1] <= 9])} shapes" in finding.detail
    assert "their order matters" in finding.detail
    assert "refuses a text of 3 with a context of 23 (IndexError" in finding.detail


class Unread(Cross):
    def forward(self, x, context):
        return self.query(x)


def test_a_context_that_moves_nothing_is_no_pass():
    finding = found(Unread(32, 4, False))
    assert finding.verdict == "cannot tell"
    assert "outputs do not move with context" in finding.detail


class Overflows(Cross):
    def forward(self, x, context):
        q, k, v = self.split(x, context)
        weights = (q @ k.mT).exp()
        return self.join(weights / weights.sum(-1, keepdim=True) @ v)


def test_large_numbers_in_a_context_must_give_numbers():
    finding = found(Overflows(32, 4, False))
    assert finding.verdict == "fail"
    assert "not finite" in finding.detail
