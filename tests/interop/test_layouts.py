"""Layouts: each way and back gives the same bits, and the function that they say stays the same."""

import pytest
import torch

from attnlab.interop import layouts
from attnlab.kernels import attention, rotate
from attnlab.kernels.rotary import rotation_at

SHAPES = [(4, 4, 6), (4, 2, 6), (6, 2, 8), (7, 1, 2)]


def weights(heads, kv_heads, width, columns=5):
    generator = torch.Generator().manual_seed(heads * width)
    return [
        torch.randn(count * width, columns, generator=generator, dtype=torch.float64)
        for count in (heads, kv_heads, kv_heads)
    ]


@pytest.mark.parametrize(("heads", "kv_heads", "width"), SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_every_way_and_back_gives_the_same_bits(heads, kv_heads, width, bias):
    q, k, v = (one[:, 0] if bias else one for one in weights(heads, kv_heads, width))
    for rotated in (None, width, width // 2 * 2 - 2 or None):
        half = layouts.interleaved_to_half_split(q, heads, rotated)
        assert layouts.half_split_to_interleaved(half, heads, rotated).equal(q)
    kinds = layouts.split_by_kind(layouts.fuse_by_kind(q, k, v), heads, kv_heads)
    groups = layouts.split_by_group(
        layouts.fuse_by_group(q, k, v, heads, kv_heads), heads, kv_heads
    )
    for found in (kinds, groups):
        assert all(one.equal(wanted) for one, wanted in zip(found, (q, k, v), strict=True))
    tiled = layouts.neighbours_to_tiled(q, heads, kv_heads)
    assert layouts.tiled_to_neighbours(tiled, heads, kv_heads).equal(q)
    repeated = layouts.repeat_heads(k, kv_heads, heads)
    torch.testing.assert_close(layouts.mean_heads(repeated, heads, kv_heads), k)


@pytest.mark.parametrize("rotated", [None, 4])
def test_scores_are_the_same_in_both_rotary_layouts(rotated):
    heads, width, time = 3, 8, 5
    q, k, _ = weights(heads, heads, width)
    x = torch.randn(1, time, 5, dtype=torch.float64)
    turned = rotated or width
    rates = 10_000.0 ** (-torch.arange(turned // 2, dtype=torch.float64) / (turned // 2))
    positions = torch.arange(time)[None]
    scores = []
    for layout in ("interleaved", "half-split"):
        rotation = rotation_at(positions, rates, layout=layout, dtype=torch.float64)
        vectors = []
        for weight in (q, k):
            if layout == "half-split":
                weight = layouts.interleaved_to_half_split(weight, heads, rotated)
            rows = (x @ weight.T).unflatten(-1, (heads, -1)).transpose(1, 2)
            vectors.append(rotate(rows, rotation))
        scores.append(vectors[0] @ vectors[1].mT)
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-12, atol=1e-12)


def test_tiled_heads_are_the_same_function_as_neighbours():
    heads, kv_heads, width, time = 6, 2, 4, 7
    q, k, v = weights(heads, kv_heads, width)
    x = torch.randn(2, time, 5, dtype=torch.float64)

    def split(weight, count):
        return (x @ weight.T).unflatten(-1, (count, -1)).transpose(1, 2)

    keys, values = split(k, kv_heads), split(v, kv_heads)
    tile = heads // kv_heads
    tiled = attention(split(q, heads), keys.repeat(1, tile, 1, 1), values.repeat(1, tile, 1, 1))
    moved = layouts.tiled_to_neighbours(q, heads, kv_heads)
    neighbours = attention(split(moved, heads), keys, values)
    order = layouts.tiled_to_neighbours(torch.arange(heads), heads, kv_heads)
    torch.testing.assert_close(neighbours, tiled[:, order], rtol=1e-12, atol=1e-12)
