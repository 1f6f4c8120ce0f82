"""Rotary positions as they are measured, against the definition that turned them."""

import pytest
import torch

from attnlab.doctor.pairs.separate import rotate
from attnlab.doctor.pairs.style import Style
from attnlab.doctor.rotation import Rotation, changed, measure, turn


def repeated(length=5, heads=3, d=8, seed=0):
    one = torch.randn(2, heads, 1, d, generator=torch.Generator().manual_seed(seed)).double()
    return one.expand(2, heads, length, d)


@pytest.mark.parametrize("layout", ["half-split", "interleaved"])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("backward", [False, True])
def test_layout_part_direction_and_base_are_found(layout, fraction, backward):
    style = Style(layout=layout, fraction=fraction, backward=backward, base=700.0)
    found = measure(rotate(repeated(), style, shift=4))
    assert (found.layout, found.rotated) == (layout, 8 * fraction)
    assert (found.direction, found.base) == (-1 if backward else 1, 700.0)


@pytest.mark.parametrize("layout", ["half-split", "interleaved"])
def test_a_part_at_the_end_of_a_head_is_found_there(layout):
    style = Style(layout=layout, fraction=0.5, tail=True, base=700.0)
    found = measure(rotate(repeated(), style, 0))
    assert (found.layout, found.start, found.rotated, found.base) == (layout, 4, 4, 700.0)


def test_rates_in_float32_have_the_base_they_were_computed_of():
    assert measure(rotate(repeated(), Style(base=500_000.0, rounded=True), 0)).base == 500_000.0


def test_rates_that_are_no_powers_have_no_base():
    assert measure(rotate(repeated(), Style(factor=3.0), 0)).base is None


@pytest.mark.parametrize("broken", ["still", "random", "stretched"])
def test_what_does_not_turn_is_no_rotation(broken):
    x = rotate(repeated(), Style(), 0)
    growing = 1.1 ** torch.arange(5).double()[:, None]  # a spiral at one speed
    other = {"still": repeated(), "random": torch.randn(2, 3, 5, 8), "stretched": x * growing}
    assert measure(other[broken]) is None


def test_turning_back_and_on_by_other_rates_is_the_other_convention():
    a, b = Style(base=100.0), Style(base=100.0, fraction=0.5)
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    own, positions = measure(rotate(repeated(), a, 0)), torch.arange(7)
    target = changed(own, rotated=4)
    found = turn(turn(rotate(x, a, 0), own, -positions), target, positions)
    torch.testing.assert_close(found, rotate(x, b, 0), rtol=0, atol=1e-12)


def test_other_rates_of_a_rotation_that_is_reversed_are_reversed():
    own, rates = Rotation("half-split", 4, (1.0, 0.1)), (1.0, 0.5)
    assert changed(own, rates=rates, reversed=True).rates == (-1.0, -0.5)


def test_without_a_base_another_part_cannot_be_said():
    assert changed(Rotation("half-split", 8, (1.0, 0.3, 0.2, 0.1)), rotated=4) is None
