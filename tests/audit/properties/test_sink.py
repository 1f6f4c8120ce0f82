"""Sinks are measured, head by head, and named by what holds them."""

import math

import pytest
import torch
from audit.properties.attentions import dense
from torch import nn

from attnlab import config
from attnlab.audit import Contract
from attnlab.audit.bugs.scores import capped, past, with_sink
from attnlab.audit.own import seed_rng
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.sink import SinkOfHeads
from attnlab.audit.subject.adapters import subject_for
from attnlab.models.transformer import TransformerSettings


def found(code, **declared):
    return SinkOfHeads().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


class Sinks(nn.Module):
    """Four heads, each with a sink; what it is made of is told in words."""

    def __init__(self, kind="learned", cap=None, slope=0.0):
        super().__init__()
        self.width, self.kind, self.cap, self.slope = 32, kind, cap, slope
        self.project = nn.Linear(32, 96)
        if kind == "learned":
            self.bias_of_nothing = nn.Parameter(torch.tensor([-2.0, 0.5, 1.0, 3.0]))

    def numbers(self, x):
        if self.kind == "learned":
            return self.bias_of_nothing
        if self.kind == "of the text":  # no sink: it is another number in every text
            return x.mean((0, 1))[:4]
        numbers = [0.0] * 4 if self.kind == "fixed" else [0.3, -1.0, 2.0, 0.1]
        return torch.tensor(numbers, dtype=x.dtype)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        scores, t = q @ k.mT * 8**-0.5, x.shape[1]
        if self.kind == "of the products":
            sinks = scores.amax(-1, keepdim=True).mean((0, 2))[:, 0]
        else:
            sinks = self.numbers(x)
        scores = scores if self.cap is None else capped(scores, self.cap)
        scores = scores + self.slope * (torch.arange(t) - torch.arange(t)[:, None])
        weights = with_sink(scores.masked_fill(~past(t, t), -math.inf), sinks)
        return (weights @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("slope", [0.0, 0.5])
def test_learned_sinks_are_named_by_their_parameter(cap, slope):
    finding = found(Sinks(cap=cap, slope=slope), causal=True, sink="learned")
    assert finding.verdict == "pass", finding.detail
    assert "in `bias_of_nothing`" in finding.detail and "(by head" in finding.detail
    assert finding.measured[0][0] == pytest.approx(-2, abs=0.5)


def test_the_fixed_one_is_named():
    finding = found(Sinks("fixed"), causal=True)
    assert finding.verdict == "pass" and "1 + the sum of exponentials" in finding.detail
    assert found(Sinks("fixed"), sink="fixed").verdict == "pass"


def test_without_one_there_is_nothing_to_say():
    assert found(dense()).verdict == "not applicable"
    assert found(dense(), sink="none").verdict == "pass"


@pytest.mark.parametrize(
    ("kind", "declared"),
    [("learned", "fixed"), ("learned", "none"), ("fixed", "learned"), ("fixed", "none")],
)
def test_another_kind_than_the_declared_one_fails(kind, declared):
    finding = found(Sinks(kind), sink=declared)
    assert finding.verdict == "fail" and f"{declared} is declared" in finding.detail


@pytest.mark.parametrize("declared", ["learned", "fixed"])
def test_a_declared_sink_that_is_not_there_fails(declared):
    assert found(dense(), sink=declared).verdict == "fail"


def test_numbers_that_no_parameter_holds_are_told_and_not_called_learned():
    finding = found(Sinks("given"), causal=True)
    assert finding.verdict == "pass" and finding.detail.startswith("sinks: as keys of score 0.3")
    assert finding.measured[0] == pytest.approx([0.3, -1.0, 2.0, 0.1])
    assert found(Sinks("given"), sink="learned").verdict == "cannot tell"


def test_what_changes_with_scores_is_no_sink():
    assert found(Sinks("of the products")).verdict == "cannot tell"
    assert found(Sinks("of the products"), sink="fixed").verdict == "fail"


def test_beside_a_bias_the_sink_is_not_held_to_zero():
    """A bias on the own key would be part of what is measured."""

    class Biased(Sinks):
        def numbers(self, x):
            return torch.full((4,), -0.25, dtype=x.dtype)

    assert found(Biased("fixed", slope=0.5), sink="fixed").verdict == "cannot tell"
    assert found(Biased("fixed"), sink="fixed").verdict == "fail"


def test_a_sink_of_a_function_is_measured():
    finding = found(dense(sink=0.5))
    assert finding.verdict == "pass" and finding.measured[0] == pytest.approx([0.5] * 4)


def test_rows_that_add_up_to_more_are_no_sink():
    assert found(dense(after=2.0)).verdict == "cannot tell"


@pytest.mark.parametrize("kind", ["learned", "fixed"])
def test_the_sinks_of_our_own_models_are_named(kind):
    with seed_rng():
        settings = TransformerSettings(vocabulary=61, context=64, width=32, depth=2)
        model = config.override(settings, [f"sink={kind}", "positions=alibi"]).build()
    finding = found(model, causal=True, sink=kind)
    assert finding.verdict == "pass" and finding.detail.startswith(
        f"{'a ' * (kind == 'fixed')}{kind} sink"
    )
