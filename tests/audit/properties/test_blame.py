"""Of two backends that differ the one that is wrong is named, where that can be measured."""

import pytest
import torch
import torch.nn.functional as F

from attnlab.audit import Contract, Subject
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.backends import Backends
from attnlab.audit.subject.base import normal


def plain(x, padding):
    seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    if padding is not None:
        seen = seen & ~padding[:, None]
    return torch.nan_to_num(F.scaled_dot_product_attention(x, x, x, attn_mask=seen))


WRONG = {
    "later inputs": lambda x, padding: F.scaled_dot_product_attention(x, x, x),
    "rows of a batch": lambda x, padding: plain(x - x.mean(0, keepdim=True), padding),
    "no numbers": lambda x, padding: plain(x, padding) / 0.0,
    "reads padding": lambda x, padding: plain(x, None),
    "cannot tell which": lambda x, padding: 1.1 * plain(x, padding),
}


class Way(Subject):
    pads = True

    def __init__(self, name, compute):
        self.name, self.compute = name, compute

    def draw(self, batch, length, seed):
        return normal(seed, batch, length, 8)

    def run(self, x, *, padding=None, positions=None):
        return self.compute(x, padding)


def several(causal=True, **ways):
    made = {name: Way(name, compute) for name, compute in ways.items()}
    first = next(iter(made.values()))
    first.backends = made
    return Backends().examine(Probe(first, Contract(causal=causal)))


@pytest.mark.parametrize("symptom", WRONG)
@pytest.mark.parametrize("first", ["slow", "fast"])
def test_the_one_that_is_wrong_is_named(symptom, first):
    ways = {"slow": plain, "fast": WRONG[symptom]}
    if symptom == "no numbers":
        first = "slow"  # else there is no tolerance
    finding = several(**{name: ways[name] for name in sorted(ways, key=lambda one: one != first)})
    assert finding.verdict == "fail" and symptom in finding.detail, finding.detail
    assert ("fast is wrong" in finding.detail) == (symptom != "cannot tell which")
    assert "slow is wrong" not in finding.detail


def test_one_against_two_that_agree_is_alone():
    louder = WRONG["cannot tell which"]
    finding = several(slow=plain, fast=louder, other=plain)
    assert finding.aspect == "fast" and "fast is alone" in finding.detail
    finding = several(fast=louder, slow=plain, other=plain)
    assert "fast is alone" in finding.detail and len(finding.besides) == 1


def test_who_sees_later_inputs_is_wrong_only_where_causality_is_declared():
    finding = several(causal=None, slow=plain, fast=WRONG["later inputs"])
    assert "fast attends to later inputs" in finding.detail and "is wrong:" not in finding.detail


def test_every_backend_that_differs_is_a_finding():
    finding = several(slow=plain, fast=WRONG["later inputs"], other=WRONG["no numbers"])
    assert [finding.aspect, finding.besides[0].aspect] == ["fast", "other"]
