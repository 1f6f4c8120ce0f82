"""Attention weights: what they add up to, and what a mask leaves."""

import math

import pytest
import torch
from audit.properties.attentions import Module, dense

from attnlab.audit import Contract
from attnlab.audit.bugs import padding
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.weights import Weights
from attnlab.audit.subject.adapters import subject_for


def found(code, options=None, **declared):
    return Weights().examine(Probe(subject_for(code, options or {}, "code"), Contract(**declared)))


@pytest.mark.parametrize("axis", [-2, 1])
def test_a_softmax_over_the_wrong_axis_fails(axis):
    finding = found(dense(axis=axis, mask=-1e4))
    assert finding.verdict == "fail"
    assert ("queries" if axis == -2 else "heads") in finding.detail


def test_a_factor_after_softmax_fails():
    finding = found(dense(after=8**-0.5))
    assert finding.verdict == "fail" and "after softmax" in finding.detail


def test_a_sink_is_reported_and_passes():
    finding = found(dense(sink=0.5))
    assert finding.verdict == "pass" and "sink" in finding.detail


def test_a_difference_of_two_softmaxes_is_no_mistake():
    def attend(q, k, v):
        one, two = (
            (q[..., :4] @ k[..., :4].mT).softmax(-1),
            (q[..., 4:] @ k[..., 4:].mT).softmax(-1),
        )
        return (one - 0.8 * two) @ v

    assert found(attend).verdict == "pass"


def test_exponentials_that_are_not_normalised_fail():
    def attend(q, k, v):
        weights = (q @ k.mT * q.shape[-1] ** -0.5).exp().tril()
        return weights / weights.sum(-1, keepdim=True).square() @ v

    finding = found(attend)
    assert finding.verdict == "fail" and "exponentials" in finding.detail


def test_attention_without_a_softmax_is_only_reported():
    finding = found(lambda q, k, v: (q @ k.mT).tril() @ v)
    assert finding.verdict == "pass" and "without a softmax" in finding.detail


def test_a_mask_that_leaves_a_little_fails_where_causality_cannot_see_it():
    code = dense(mask=-33.0)
    assert found(code).verdict == "pass"
    finding = found(code, causal=True)
    assert finding.verdict == "fail" and "exactly 0" in finding.detail


def test_weights_in_float32_are_exact_enough():
    def attend(q, k, v):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -math.inf).softmax(-1, dtype=torch.float32).to(v) @ v

    assert found(attend, causal=True).verdict == "pass"


def test_rows_below_1_need_a_sink_that_is_the_same_at_every_length():
    wrong = next(one for one in padding.CASES if one.name == "zeros-of-a-block")
    finding = found(wrong.make(True), causal=False)
    assert finding.verdict == "fail" and "without a sink" in finding.detail
    assert found(wrong.make(False), causal=False).verdict == "pass"


@pytest.mark.parametrize("sink", [True, False])
def test_a_module_whose_rows_are_below_1_passes_only_with_a_sink(sink):
    class Below(Module):
        def forward(self, x):
            q, k, v = (self._heads(one(x), 4) for one in (self.q, self.k, self.v))
            scores = q @ k.mT * self.scale
            later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
            more = torch.full_like(scores[..., :1], 0.5)
            weights = torch.cat((scores, more), dim=-1).softmax(-1)[..., :-1]
            if not sink:
                weights = scores.softmax(-1) * torch.sigmoid(q.sum(-1, keepdim=True))
            return self.out((weights @ v).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    finding = found(Below(heads=4, kv_heads=4), causal=True)
    assert finding.verdict == ("pass" if sink else "cannot tell"), finding.detail
    assert "sink" in finding.detail


def test_a_function_whose_rows_lose_what_padding_takes_fails():
    def attend(q, k, v, key_padding_mask=None):
        scores = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None], 0)  # after the softmax
        return scores @ v

    finding = found(attend, causal=False)
    assert finding.verdict == "fail" and "behind a padding mask rows add up" in finding.detail
