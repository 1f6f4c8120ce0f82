"""No more bits are lost than float32 costs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit import Contract
from attnlab.audit.errors import OutOfMemory
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.precision import Choices, Precision, cost_of_halves
from attnlab.audit.subject.adapters import subject_for
from attnlab.kernels import hardware


def found(code, **declared):
    return Precision().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


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
    assert one.verdict == "cannot tell" and "it does not run in float32" in one.detail
    assert "raised TypeError in `forward` at length 23" in one.detail


class InHalf(nn.Module):
    """Does something else in bfloat16, where it has no positions that could be watched."""

    def __init__(self, other):
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), other

    def forward(self, x):
        out = self.layer(x).cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None].to(x)
        return self.other(out) if x.dtype is torch.bfloat16 else out


def refuse(out):
    raise TypeError("no bfloat16")


def test_a_declared_precision_in_which_nothing_goes_wrong_passes():
    one = found(InHalf(lambda out: out), dtype="bfloat16")
    assert one.verdict == "pass" and "in bfloat16 it loses 0.0 bits" in one.detail


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (refuse, "does not run in bfloat16, which is declared: TypeError: no bfloat16"),
        (lambda out: out * torch.inf, "outputs are not finite"),
        (lambda out: 2 * out, "bits beyond what rounding"),
    ],
)
def test_a_declared_precision_that_does_not_work_fails(monkeypatch, other, reason):
    monkeypatch.setattr(hardware, "cpu_multiplies", lambda dtype: True)  # or it could not be told
    assert found(InHalf(other)).verdict == "pass", "nobody said that it would run there"
    one = found(InHalf(other), dtype="bfloat16")
    assert one.verdict == "fail" and reason in one.detail, one.detail


def chosen(factor, dtype=None):
    """Values are kept by a hash of the query that jumps `factor` times as often as it moves."""

    def attend(q, k, v):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out if dtype is None else out.to(dtype).to(q.dtype)
        return torch.where((factor * q).floor() % 2 == 0, out, -out)

    return attend


def test_a_choice_that_falls_otherwise_in_float32_is_no_loss_of_precision():
    finding = found(chosen(1e7))
    assert finding.verdict == "cannot tell" and "`floor`" in finding.detail


def test_a_half_precision_beside_choices_is_found():
    assert found(chosen(1.0)).verdict == "pass"
    for factor in (1.0, 1e7):
        assert found(chosen(factor, torch.bfloat16)).verdict == "fail"


def test_memory_that_runs_out_is_no_precision():
    def run(x):
        raise OutOfMemory("in `forward`")

    chosen, x = Choices(), torch.zeros(1, 1, 1)
    chosen.narrows = True
    with pytest.raises(OutOfMemory):
        cost_of_halves(run, x, x, chosen)
