"""Moves of weights that stand in a conversion besides those of `attnlab.interop.layouts`.

Axes: r rows of a weight or bias, heads · d of them; d head width. Each needs torch only and calls
no other function, so that its source can stand in a script.
"""

import torch
from torch import Tensor


def swap_halves(weight: Tensor) -> Tensor:
    """Rows of two fused weights in the other order, such as gate and up; its own inverse."""
    first, second = weight.chunk(2)
    return torch.cat([second, first])


def reverse_half_split(weight: Tensor, heads: int, rotated: int) -> Tensor:
    """Pairs (0, r/2), (1, r/2 + 1) … mirrored: they turn the other way. Its own inverse."""
    rows = weight.unflatten(0, (heads, -1)).clone()
    rows[:, rotated // 2 : rotated] *= -1
    return rows.flatten(0, 1)


def reverse_interleaved(weight: Tensor, heads: int, rotated: int) -> Tensor:
    """Pairs (0, 1), (2, 3) … mirrored: they turn the other way. Its own inverse."""
    rows = weight.unflatten(0, (heads, -1)).clone()
    rows[:, 1:rotated:2] *= -1
    return rows.flatten(0, 1)


def move_part(weight: Tensor, heads: int, rotated: int, first: int, to: int) -> Tensor:
    """Of each head, so many rows from row `first` on stand from row `to` on; others keep order."""
    rows = weight.unflatten(0, (heads, -1))
    part = rows[:, first : first + rotated]
    rest = torch.cat([rows[:, :first], rows[:, first + rotated :]], 1)
    return torch.cat([rest[:, :to], part, rest[:, to:]], 1).flatten(0, 1)


def shift_rows(table: Tensor, by: int, rows: int) -> Tensor:
    """A table of so many rows, in which row i + by is row i of the one given; others are 0."""
    moved = table.new_zeros(rows, *table.shape[1:])
    first, last = max(by, 0), min(rows, table.shape[0] + by)
    moved[first:last] = table[first - by : last - by]
    return moved
