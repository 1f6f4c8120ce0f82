"""Rules move numbers and lose none: there and back gives the same bits."""

import pytest
import torch

from attnlab.interop import rules
from attnlab.interop.rules import Heads

DRAWS = torch.Generator().manual_seed(0)
HEADS = [Heads(4, 4), Heads(4, 2), Heads(6, 1), Heads(4, 2, rotated=6), Heads(4, 2, rotated=4)]


def fused(heads, *columns):
    return torch.randn((heads.heads + 2 * heads.kv_heads) * 6, *columns, generator=DRAWS)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("columns", [(5,), ()], ids=["matrix", "bias"])
@pytest.mark.parametrize(
    "make",
    [
        lambda heads: heads.separate("ours", "q", "k", "v"),
        lambda heads: heads.by_kind("ours", "qkv"),
        lambda heads: heads.by_kind("ours", "qkv", transpose=True),
        lambda heads: heads.by_group("ours", "qkv"),
    ],
    ids=["separate", "by kind", "transposed", "by group"],
)
def test_queries_keys_and_values_go_there_and_back(heads, columns, make):
    rule, weight = make(heads), fused(heads, *columns)
    there = rule.to_theirs([weight])
    assert len(there) == len(rule.theirs)
    assert all(one.is_contiguous() for one in there)
    assert torch.equal(rule.to_ours(there)[0], weight)


@pytest.mark.parametrize("rotated", [None, 4, 6])
def test_gains_of_heads_turn_as_their_rows_do(rotated):
    gains = torch.arange(6.0)
    rule = Heads(4, 2, rotated).gain("ours", "theirs")
    assert torch.equal(rule.to_ours(rule.to_theirs([gains]))[0], gains)
    rows = Heads(1, 1, rotated).apart(torch.cat([gains, gains, gains])[:, None])[0][:, 0]
    assert torch.equal(rule.to_theirs([gains])[0], rows)


@pytest.mark.parametrize("shape", [(3, 5), (3,)])
def test_transposed_matrices_go_there_and_back(shape):
    weight = torch.randn(shape, generator=DRAWS)
    rule = rules.transposed("ours", "theirs")
    assert rule.to_theirs([weight])[0].shape == shape[::-1]
    assert torch.equal(rule.to_ours(rule.to_theirs([weight]))[0], weight)


def test_stacked_matrices_go_there_and_back():
    gate, up = torch.randn(2, 4, 3, generator=DRAWS)
    rule = rules.stacked(["gate", "up"], "both")
    assert rule.to_theirs([gate, up])[0].shape == (8, 3)
    back = rule.to_ours(rule.to_theirs([gate, up]))
    assert torch.equal(back[0], gate) and torch.equal(back[1], up)


def test_what_we_have_no_weight_for_is_constant():
    rule = rules.constant("norm.weight", 1.0, 5)
    assert rule.ours == () and torch.equal(rule.to_theirs([])[0], torch.ones(5))
