"""Every registered property of the audit finds a known bug and leaves its twin alone."""

import pytest
import torch
from torch import nn

from attnlab import registry
from attnlab.audit.bugs.cases import Case, cases
from attnlab.audit.probe.probe import Probe


class Attention(nn.Module):
    """Causal attention; `wrong` subtracts the mean over the rows, as a norm may do by mistake."""

    def __init__(self, wrong):
        super().__init__()
        self.layer, self.wrong = nn.Linear(6, 18), wrong

    def forward(self, x):
        q, k, v = self.layer(x - x.mean(0, keepdim=True) if self.wrong else x).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def half_precision(wrong):
    def attend(q, k, v):
        dtype = torch.bfloat16 if wrong else q.dtype
        scores = (q.to(dtype) @ k.to(dtype).mT).to(q) / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ v

    return attend


# what no case of the development set shows to the property alone
MORE = [
    Case(name="rows", bug="a mean over the rows", make=Attention, reasons=("batch",)),
    Case(name="half", bug="half precision", make=half_precision, reasons=("precision",)),
]
CASES = [*(case for family in cases().values() for case in family), *MORE]


NAMES = [option.name for option in registry.options("property")]


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_is_done_and_what_fails_it(name):
    """`attnlab list property.NAME` shows that; it stands nowhere else."""
    first, _, rest = registry.load("property", name).__doc__.partition("\n\n")
    assert len(first.split()) > 2 and "Fails: " in rest


@pytest.mark.parametrize("name", NAMES)
def test_it_fails_a_known_bug_and_not_its_twin(name):
    examined = registry.load("property", name)()
    assert examined.name == name
    tried = [case for case in CASES if name in case.reasons]
    assert tried, f"no case of the development set names {name} as a reason"
    for case in tried:
        verdicts = [
            examined.examine(Probe(case.subject(wrong), case.contract)).verdict
            for wrong in (True, False)
        ]
        assert verdicts[1] != "fail", case.name
        if verdicts[0] == "fail":
            return
    pytest.fail(f"{name} fails none of {', '.join(case.name for case in tried)}")
