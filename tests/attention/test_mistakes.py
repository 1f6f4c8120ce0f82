"""The two mistakes are what their names say, and nothing else."""

import dataclasses

import pytest
import torch

from attnlab import config
from attnlab.attention.mistakes import GrowingRotary, HeadRotary
from attnlab.attention.positions import NoPositions, Rotary, Shape
from attnlab.models.transformer import TransformerSettings

SHAPE = Shape(width=32, heads=4, head_width=8, context=16)
T = torch.arange(9)[None]


def angles(settings):
    by = settings.build(SHAPE).rotation(T, torch.float64)
    return torch.atan2(by.sin, by.cos)[0]


def test_growing_frequencies_are_the_right_ones_upside_down():
    """Pair n of p turns by base^(n/p) a token, where it should turn by base^(-n/p)."""
    wrong, right = angles(GrowingRotary(base=16.0)), angles(Rotary(base=16.0))
    rates = 16.0 ** (torch.arange(4, dtype=torch.float64) / 4)
    turn = torch.pi * 2
    for found, rate in ((wrong, rates), (right, 1 / rates)):
        want = torch.remainder(T[0, :, None] * rate + torch.pi, turn) - torch.pi
        torch.testing.assert_close(found[0], want)
    assert (wrong - right).abs().max() > 1


def test_by_head_the_angle_counts_heads_and_no_tokens():
    found = angles(HeadRotary(base=16.0))
    assert found.shape == (4, 9, 4)
    assert (found == found[:, :1]).all()
    torch.testing.assert_close(found[:, 0], angles(Rotary(base=16.0))[0, :4])


def logits(positions, tokens, **changes):
    torch.manual_seed(0)
    base = TransformerSettings(vocabulary=11, context=16, width=32, depth=2, **changes)
    model = dataclasses.replace(base, positions=positions).build().double().eval()
    with torch.no_grad():
        return model(tokens)


@pytest.mark.parametrize("layout", ["half-split", "interleaved"])
def test_turning_by_head_is_having_no_positions(layout):
    tokens = torch.randint(11, (2, 13))
    without = logits(NoPositions(), tokens)
    torch.testing.assert_close(logits(HeadRotary(layout=layout), tokens), without)
    assert (logits(Rotary(layout=layout), tokens) - without).abs().max() > 1e-5


def test_keys_may_have_fewer_heads():
    tokens = torch.randint(11, (2, 13))
    base = TransformerSettings(vocabulary=11, context=16, width=32, depth=1)
    words = ["attention=grouped", "attention.heads=4", "attention.kv_heads=2"]
    model = config.override(base, [*words, "positions=rotary-by-head"]).build()
    assert model(tokens).isfinite().all()
