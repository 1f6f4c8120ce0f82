"""No more bits are lost than float32 costs."""

import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.precision import Precision
from attnlab.audit.subject.adapters import subject_for


def found(code):
    return Precision().examine(Probe(subject_for(code, {}, "code"), Contract()))


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_plain_attention_loses_few_bits():
    assert found(causal).measured < 5


def test_half_precision_inside_is_found_and_float32_is_not():
    def through(dtype):
        def attend(q, k, v):
            scores = (q.to(dtype) @ k.to(dtype).mT).to(q) / q.shape[-1] ** 0.5
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return scores.masked_fill(later, -torch.inf).softmax(-1) @ v

        return attend

    assert found(through(torch.float32)).verdict == "pass"
    assert found(through(torch.bfloat16)).verdict == "fail"


def test_an_epsilon_that_depends_on_the_dtype_costs_bits():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.RMSNorm(4)

        def forward(self, x):
            return self.norm(1e-3 * self.layer(x))

    assert found(Norm()).measured > 10


def test_outputs_that_are_all_zero_have_nothing_to_lose():
    one = found(lambda q, k, v: v * 0)
    assert one.verdict == "cannot tell" and "outputs are 0" in one.detail


def test_code_that_does_not_run_in_float32_cannot_be_compared():
    class Double(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            if x.dtype is not torch.float64:
                raise TypeError("float64 only")
            return self.layer(x)

    one = found(Double())
    assert (one.verdict, one.detail) == ("cannot tell", "it does not run in float32")
