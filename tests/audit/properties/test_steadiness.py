"""The same answer twice, finite answers, and no more bits lost than float32 costs."""

import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.precision import Precision
from attnlab.audit.properties.steadiness import Evaluation, Finite
from attnlab.audit.subject.adapters import subject_for


def found(kind, code):
    return kind().examine(Probe(subject_for(code, {}, "code"), Contract()))


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_steady_code():
    assert found(Evaluation, causal).verdict == found(Finite, causal).verdict == "pass"
    assert found(Precision, causal).measured < 5


def test_dropout_that_stays_on():
    class Dropping(nn.Linear):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.1)

    assert found(Evaluation, Dropping(4, 4)).verdict == "fail"


def test_a_state_that_stays():
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * self.calls

    assert found(Evaluation, Counting(4, 4)).verdict == "fail"


def test_a_softmax_that_overflows():
    def attend(q, k, v):
        weights = (q @ k.mT).exp()
        return weights / weights.sum(-1, keepdim=True) @ v

    finding = found(Finite, attend)
    assert finding.verdict == "fail" and finding.example["factor"] == 1e3


def test_a_length_that_divides_by_nothing():
    def attend(q, k, v):
        return causal(q, k, v) / (q.shape[2] - 1)

    assert found(Finite, attend).example["length"] == 1


def test_half_precision_inside_is_found_and_float32_is_not():
    def through(dtype):
        def attend(q, k, v):
            scores = (q.to(dtype) @ k.to(dtype).mT).to(q) / q.shape[-1] ** 0.5
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return scores.masked_fill(later, -torch.inf).softmax(-1) @ v

        return attend

    assert found(Precision, through(torch.float32)).verdict == "pass"
    assert found(Precision, through(torch.bfloat16)).verdict == "fail"


def test_an_epsilon_that_depends_on_the_dtype_costs_bits():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.RMSNorm(4)

        def forward(self, x):
            return self.norm(1e-3 * self.layer(x))

    assert found(Precision, Norm()).measured > 10
