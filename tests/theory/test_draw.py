"""Random vectors are functions of their seed, with the distribution they claim."""

import numpy as np
import pytest
import torch
from torch import nn

from attnlab.theory.draw import normal, orthonormal, random_module, softmax, uniform_distance


def test_normal_numbers_are_normal():
    """100,000 of them; five standard errors of each moment."""
    x = normal(3, "test", 100, 1000)
    assert abs(x.mean()) < 0.016 and abs(x.var() - 1) < 0.023
    assert abs((x**3).mean()) < 0.062 and abs((x**4).mean() - 3) < 0.16
    assert (normal(3, "test", 100, 1000) == x).all()
    assert (normal(4, "test", 100, 1000) != x).any() and (normal(3, "more", 5) != x[0, :5]).all()


@pytest.mark.parametrize(("count", "width"), [(1, 1), (3, 7), (8, 8)])
def test_orthonormal_rows(count, width):
    rows = orthonormal(0, "rows", count, width)
    assert rows.shape == (count, width)
    assert np.abs(rows @ rows.T - np.eye(count)).max() < 1e-14


def test_too_many_directions_are_refused():
    with pytest.raises(ValueError, match="take a width of 5 or more"):
        orthonormal(0, "rows", 5, 4)


def test_softmax_of_large_scores():
    assert softmax(np.array([1e4, 1e4, -1e4])).tolist() == [0.5, 0.5, 0]


def test_how_far_a_sample_may_be_from_its_law():
    """Kolmogorov's limit: 1.36/√n at 5 %; the inequality is close to it."""
    assert uniform_distance(10_000, 0.05) == pytest.approx(0.01358, abs=1e-5)


def test_a_module_has_weights_of_its_seed_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    one, same, other = (random_module(lambda: nn.Linear(3, 2), seed, "layer") for seed in (0, 0, 1))
    assert torch.equal(one.weight, same.weight) and not torch.equal(one.weight, other.weight)
    assert one.weight.dtype == torch.float64 and not one.weight.requires_grad
    assert torch.equal(before, torch.random.get_rng_state())
