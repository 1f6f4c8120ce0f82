"""Outputs are finite for every length, and for large inputs."""

import torch.nn.functional as F

from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.finite import Finite
from attnlab.audit.subject.adapters import subject_for


def found(code):
    return Finite().examine(Probe(subject_for(code, {}, "code"), Contract()))


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_softmax_attention_is_finite_for_every_length():
    assert found(causal).verdict == "pass"


def test_a_softmax_that_overflows():
    def attend(q, k, v):
        weights = (q @ k.mT).exp()
        return weights / weights.sum(-1, keepdim=True) @ v

    finding = found(attend)
    assert finding.verdict == "fail" and finding.example.sizes["factor"] == 1e3


def test_a_length_that_divides_by_nothing():
    def attend(q, k, v):
        return causal(q, k, v) / (q.shape[2] - 1)

    assert found(attend).example.sizes["length"] == 1
