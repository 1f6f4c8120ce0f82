"""The feed-forward part: each kind against its formula, all with the same number of parameters."""

import math

import pytest
import torch
import torch.nn.functional as F

from attnlab.models.feedforward import KINDS, make_feedforward

X = torch.randn(1, 3, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def tanh_gelu(x):
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS = {
    "gelu": lambda m, x: m.up(x) * (1 + torch.erf(m.up(x) / math.sqrt(2))) / 2,
    "gelu-tanh": lambda m, x: tanh_gelu(m.up(x)),
    "swiglu": lambda m, x: m.gate(x) * m.gate(x).sigmoid() * m.up(x),
    "geglu": lambda m, x: tanh_gelu(m.gate(x)) * m.up(x),
    "squared-relu": lambda m, x: F.relu(m.up(x)) ** 2,
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_its_formula(kind, bias):
    torch.manual_seed(0)
    part = make_feedforward(kind, 12, 4.0, bias=bias).double()
    torch.testing.assert_close(part(X), part.down(FORMULAS[kind](part, X)))
    assert sum(p.numel() for p in part.parameters() if p.ndim == 2) == 2 * 12 * 48
    assert any(p.ndim == 1 for p in part.parameters()) == bias
