"""Buffers that stay where they are: where a token lies, and how far back it is."""

import pytest
import torch

from attnlab.attention.static_cache import ALIGNED, StaticLayer, aligned, distances


def numbered(start, stop):
    """Keys that say which token they are of."""
    return torch.arange(float(start), stop).view(1, 1, -1, 1).expand(2, 3, -1, 4)


@pytest.mark.parametrize("window", [None, 1, 5, 16, 30])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_distances_find_every_token(window, count):
    layer = StaticLayer(window, 48)
    layer.append(numbered(0, count), -numbered(0, count))
    places = torch.arange(layer.places)
    for length in range(count, 48):
        found = distances(torch.tensor([length]), places)
        reach = length if window is None else min(window - 1, length)
        seen = (found > 0) & (found <= reach)
        want = torch.arange(length - reach, length).double()
        assert torch.equal(layer.k[1, 2, seen, 0].double().sort().values, want)
        assert torch.equal(layer.k[0, 0, seen, 3].long(), length - found[seen])
        assert torch.equal(layer.v, -layer.k)
        layer.k[:, :, length % layer.places] = length
        layer.v[:, :, length % layer.places] = -length


def test_a_ring_has_the_places_of_its_window():
    assert [aligned(count) for count in (1, ALIGNED, ALIGNED + 1)] == [16, 16, 32]
    assert [StaticLayer(window, 100).places for window in (None, 5, 50, 500)] == [112, 16, 64, 112]


def test_padding_is_kept_as_zeros_and_is_not_attended_to():
    layer, padding = StaticLayer(None, 16), torch.tensor([[True, True, False], [False] * 3])
    held = layer.append(numbered(1, 4), numbered(1, 4), padding)
    assert torch.equal(held.k, numbered(1, 4)) and held.key_padding is padding
    assert layer.k[:, 0, :5, 0].tolist() == [[0, 0, 3, 0, 0], [1, 2, 3, 0, 0]]


def test_other_texts_take_the_same_buffers():
    layer = StaticLayer(7, 40)
    layer.append(numbered(0, 30), numbered(0, 30))
    before = layer.k
    with pytest.raises(ValueError, match="the cache holds 2 texts, and these are tokens of 3"):
        layer.check(3)
    layer.reset()
    layer.check(3)
    layer.append(numbered(0, 3), numbered(0, 3))
    assert layer.k is before
    layer.reset()
    more = numbered(0, 3).repeat(2, 1, 1, 1)
    layer.append(more, more)
    assert layer.k is not before and layer.k.shape == (4, 3, 16, 4)
    assert layer.bytes == 2 * 4 * 3 * 16 * 4 * 4


def test_growing_keeps_what_is_there():
    full, ring, wide = (StaticLayer(window, 16) for window in (None, 9, 30))
    for layer in (full, ring, wide):
        layer.append(numbered(0, 16), numbered(0, 16))
        layer.grow(48)
        assert torch.equal(layer.k[:, :, :16], numbered(0, 16))
    assert [layer.places for layer in (full, ring, wide)] == [48, 16, 32]
