"""Attention weights left out at random: as often as asked, and by no path that would forget to."""

import pytest
import torch
from problems import Problem

from attnlab.kernels import LinearBias, Request, attention, choose

PART = 0.3


@pytest.mark.parametrize("path", ["reference", "sdpa"])
@pytest.mark.parametrize("options", [{}, {"window": 5}, {"causal": False}], ids=str)
def test_weights_are_left_out_as_often_as_asked_and_the_others_scaled_up(path, options):
    """Values are unit vectors, so the output is the weights. 20,000 of them at least: five standard
    errors of the share are 1.7 %."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 30, 4, 20, 8)
    values = torch.eye(20).expand(30, 4, 20, 20)
    whole = attention(q, k, values, path=path, **options)
    dropped = attention(q, k, values, path=path, dropout=PART, **options)
    seen = whole > 0
    kept = dropped > 0
    assert not (kept & ~seen).any()
    share = 1 - kept.sum() / seen.sum()
    assert abs(float(share) - PART) < 0.017
    assert torch.allclose(dropped[kept], whole[kept] / (1 - PART), rtol=1e-5)


def test_the_same_seed_leaves_out_the_same_weights():
    (q, k, v), _, options = Problem(queries=33).tensors()
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(attention(q, k, v, dropout=PART, **options))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])


@pytest.mark.parametrize(
    "changes",
    [
        {"queries": 200},  # without dropout: native
        {"queries": 200, "window": 20},
        {"queries": 7, "window": 3},
        {"queries": 50, "causal": False},
    ],
    ids=str,
)
def test_no_path_is_taken_that_leaves_out_nothing(changes):
    (q, k, v), _, options = Problem(**changes).tensors()
    request = Request(q=q, k=k, v=v, dropout=PART, **options)
    assert choose(request).path in ("sdpa", "reference")
    for path in ("native", "tiled", "flex"):
        with pytest.raises(ValueError, match="no weights at random"):
            choose(request, path)


def test_slopes_that_learn_go_by_the_reference():
    (q, k, v), _, _ = Problem(queries=20).tensors()
    slopes = torch.ones(q.shape[1], dtype=q.dtype, requires_grad=True)
    request = Request(q=q, k=k, v=v, bias=LinearBias(slopes), dropout=PART)
    assert choose(request).path == "reference"


@pytest.mark.parametrize("part", [-0.1, 1.0])
def test_a_part_that_is_no_probability_is_refused(part):
    (q, k, v), _, _ = Problem(queries=3).tensors()
    with pytest.raises(ValueError, match=f"dropout is {part}; it is a probability"):
        attention(q, k, v, dropout=part)
