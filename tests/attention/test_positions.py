"""Position schemes."""

import math

import pytest
import torch

from attnlab.attention import positions as schemes
from attnlab.attention.positions import Shape, alibi_slopes, sinusoids

SHAPE = Shape(width=12, heads=4, head_width=8, context=16)
T = torch.arange(5)[None]


def test_sinusoids_are_the_formula():
    table = sinusoids(torch.tensor([[0, 1, 7]]), 6)[0]
    for row, t in zip(table, (0, 1, 7), strict=True):
        want = [f(t / 10_000 ** (2 * n / 6)) for n in range(3) for f in (math.sin, math.cos)]
        torch.testing.assert_close(row, torch.tensor(want, dtype=torch.float64))


def test_sinusoids_of_an_odd_width_end_with_a_sine():
    assert sinusoids(T, 5).shape == (1, 5, 5)


def test_added_schemes_add_the_same_wherever_the_text_is_cut():
    for settings in (schemes.Learned(), schemes.Sinusoidal(base=100.0)):
        scheme = settings.build(SHAPE)
        x = torch.randn(2, 5, 12)
        whole = scheme.add_to(x, T)
        parts = [scheme.add_to(x[:, :2], T[:, :2]), scheme.add_to(x[:, 2:], T[:, 2:])]
        assert torch.equal(whole, torch.cat(parts, dim=1))
        assert not torch.equal(whole, x)
        assert scheme.rotation(T, torch.float32) is None and scheme.bias(T, 5) is None


def test_rotary_turns_a_fraction_of_the_width():
    by = schemes.Rotary(fraction=0.5).build(SHAPE).rotation(T, torch.bfloat16)
    assert by.cos.shape == (1, 1, 5, 2)
    assert by.cos.dtype == torch.float32  # bfloat16 angles would be wrong by whole turns


@pytest.mark.parametrize("heads", [1, 2, 8, 6, 12])
def test_alibi_slopes_fall_from_head_to_head(heads):
    slopes = alibi_slopes(heads)
    assert len(slopes) == heads and len(set(slopes.tolist())) == heads
    assert ((slopes > 0) & (slopes < 1)).all()


def test_alibi_slopes_of_the_paper():
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    twelve = [2.0**-n for n in range(1, 9)] + [2.0 ** -(n + 0.5) for n in range(4)]
    torch.testing.assert_close(alibi_slopes(12), torch.tensor(twelve))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schemes.Rotary(base=0), r"positions\.base is 0"),
        (lambda: schemes.Sinusoidal(base=-1), r"positions\.base is -1"),
        (lambda: schemes.Rotary(fraction=1.5), r"positions\.fraction is 1.5"),
        (
            lambda: schemes.Rotary(layout="halves"),
            "positions.layout is 'halves'; did you mean 'half-split'",
        ),
        (lambda: schemes.Rotary(fraction=0.1).build(SHAPE), "less than one pair"),
    ],
)
def test_nonsense_is_refused(make, message, unchecked_shapes):
    with pytest.raises(ValueError, match=message):
        make()
