"""Norms, each against its formula."""

import pytest
import torch

from attnlab.attention.norms import NORM_EPSILON, make_norm

X = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def root(x, epsilon):
    return (x.square().mean(-1, keepdim=True) + epsilon).sqrt()


@pytest.mark.parametrize("epsilon", [None, 0.3])
@pytest.mark.parametrize("offset", [False, True])
def test_an_rms_norm_divides_by_the_root_of_the_mean_square(offset, epsilon):
    norm = make_norm("rms", 7, offset=offset, epsilon=epsilon).double()
    used = NORM_EPSILON if epsilon is None else epsilon
    torch.testing.assert_close(norm(X), X / root(X, used))  # gains begin at 1
    torch.nn.init.normal_(norm.weight)
    gains = norm.weight + 1 if offset else norm.weight
    torch.testing.assert_close(norm(X), X / root(X, used) * gains)


def test_a_unit_norm_has_no_gains():
    norm = make_norm("unit", 7, epsilon=0.3)
    assert not list(norm.parameters())
    torch.testing.assert_close(norm(X), X / root(X, 0.3))


@pytest.mark.parametrize(("epsilon", "used"), [(None, 1e-5), (0.3, 0.3)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_norm_takes_the_mean_away_first(bias, epsilon, used):
    norm = make_norm("layer", 7, bias=bias, epsilon=epsilon).double()
    centred = X - X.mean(-1, keepdim=True)
    torch.testing.assert_close(norm(X), centred / root(centred, used))
    assert (norm.bias is not None) == bias
