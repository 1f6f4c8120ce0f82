"""A soft cap on scores is measured, wherever norms bound them; a declared one is held to."""

import math

import pytest
import torch
import torch.nn.functional as F
from audit.properties.attentions import dense
from torch import nn

from attnlab import config
from attnlab.audit import Contract
from attnlab.audit.examine import audit
from attnlab.audit.own import seed_rng
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.scale import Scale
from attnlab.audit.properties.soft_cap import SoftCap
from attnlab.audit.subject.adapters import subject_for
from attnlab.models.transformer import TransformerSettings


def found(code, **declared):
    return SoftCap().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


def capped(cap, inside=False, slope=0.5):
    """A function whose scores are capped, with a bias by distance before it or behind it."""

    def attend(q, k, v):
        scores, places = q @ k.mT * q.shape[-1] ** -0.5, torch.arange(q.shape[2])
        bias = slope * (places - places[:, None]).to(q)
        scores = scores + bias if inside else scores
        scores = cap * (scores / cap).tanh()
        scores = scores if inside else scores + bias
        return scores.masked_fill(places > places[:, None], -math.inf).softmax(-1) @ v

    return attend


class Normed(nn.Module):
    """Queries and keys of length 1: no input makes a score larger than 4."""

    def __init__(self, cap=None, dtype=torch.float64):
        super().__init__()
        self.width, self.cap, self.dtype = 32, cap, dtype
        self.project = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        scores = 4 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        if self.cap is not None:
            scores = self.cap * (scores / self.cap).tanh()
        hidden = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        weights = scores.to(self.dtype).masked_fill(hidden, -math.inf).softmax(-1).to(v)
        return (weights @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("cap", [0.7, 5.0, 50.0, 300.0])
def test_the_cap_of_a_function_is_measured(cap):
    finding = found(capped(cap), causal=True)
    assert finding.verdict == "pass", finding.detail
    assert finding.measured == pytest.approx(cap, rel=1e-6)


def test_one_on_the_sum_of_score_and_bias_is_not_judged():
    code = capped(5.0, inside=True)
    assert found(code).verdict == found(code, soft_cap=5.0).verdict == "cannot tell"


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-6), (torch.float32, 1e-3)])
def test_it_is_measured_where_norms_bound_scores(dtype, near):
    """Float32 inside leaves a number its seven digits, of logarithms less."""
    finding = found(Normed(50.0, dtype))
    assert finding.verdict == "pass" and finding.measured == pytest.approx(50, rel=near)


def test_code_without_one_is_said_to_have_none():
    for code in (dense(), Normed(), capped(1e9)):
        finding = found(code)
        assert finding.verdict == "not applicable" and "no soft cap" in finding.detail


@pytest.mark.parametrize("declared", [49.8, 45.0])
def test_another_cap_than_the_declared_one_fails(declared):
    finding = found(Normed(50.0), soft_cap=declared)
    assert finding.verdict == "fail" and "the cap is 50" in finding.detail
    assert found(Normed(50.0), soft_cap=50.0).verdict == "pass"


def test_a_declared_cap_that_is_not_there_fails():
    finding = found(Normed(), soft_cap=50.0)
    assert finding.verdict == "fail" and "no cap is seen" in finding.detail


def test_one_too_high_to_be_seen_cannot_be_told():
    assert found(Normed(), soft_cap=1e7).verdict == "cannot tell"


def test_scores_that_are_bent_otherwise_are_not_named():
    def attend(q, k, v):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = 10 * torch.atan(scores / 10)
        hidden = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v

    assert found(attend).verdict == "cannot tell"
    assert found(attend, soft_cap=10.0).verdict == "fail"


def test_a_mask_before_the_cap_fails_only_causal_code():
    def attend(q, k, v):
        hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -math.inf)
        return (20 * (scores / 20).tanh()).softmax(-1) @ v

    finding = found(attend, causal=True)
    assert finding.verdict == "fail" and "the mask comes before the cap" in finding.detail
    assert found(attend).verdict != "fail"


def test_code_that_compares_in_a_kernel_of_its_own_is_not_judged():
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.width = 8

        def forward(self, x):
            return x.cumsum(1)

    assert found(Sums()).verdict == "cannot tell"
    assert audit(Sums(), soft_cap=50.0).verdict == "incomplete"


def test_the_scale_is_seen_through_a_cap():
    """The smallest scores that are made are bent by more than what is asked."""
    finding = Scale().examine(Probe(subject_for(Module(), {}, "code"), Contract(causal=True)))
    assert finding.verdict == "pass" and finding.measured == pytest.approx(8**-0.5, rel=1e-9)


class Module(nn.Module):
    """Capped scores with a scale, from linear layers."""

    width = 32

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return capped(0.02, slope=0)(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("cap", [2.5, 50.0])
def test_the_cap_of_our_own_models_is_named(cap):
    with seed_rng():
        settings = TransformerSettings(vocabulary=61, context=64, width=32, depth=2)
        model = config.override(settings, [f"soft_cap={cap}", "sink=learned"]).build()
    contract = Contract(causal=True, soft_cap=cap, sink="learned")
    finding = SoftCap().examine(Probe(subject_for(model, {}, "ours"), contract))
    assert finding.verdict == "pass" and finding.detail.startswith(f"a soft cap of {cap:g} (± ")
