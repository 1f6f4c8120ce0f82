"""Layouts of attention weights: the conventions in which code bases differ, and the way between.

Axes: r rows of a weight or bias, heads · d of them; d head width. All else is left as it is.

Each function moves rows and computes nothing (`mean_heads` excepted), so that a function and its
inverse give the same bits back. They need torch only and call no other function, so that their
source can stand in a script. A bias is a weight without columns.
"""

import torch
from torch import Tensor


def interleaved_to_half_split(weight: Tensor, heads: int, rotated: int | None = None) -> Tensor:
    """Rows of queries or keys that turn in pairs (0, 1), (2, 3) … turn as (0, d/2), (1, d/2 + 1) …

    Of each head the first `rotated` rows turn; None: all.
    """
    rows = weight.unflatten(0, (heads, -1))
    turned = rows.shape[1] if rotated is None else rotated
    parts = [rows[:, 0:turned:2], rows[:, 1:turned:2], rows[:, turned:]]
    return torch.cat(parts, 1).flatten(0, 1)


def half_split_to_interleaved(weight: Tensor, heads: int, rotated: int | None = None) -> Tensor:
    """The inverse of `interleaved_to_half_split`."""
    rows = weight.unflatten(0, (heads, -1))
    turned = rows.shape[1] if rotated is None else rotated
    first, second = rows[:, : turned // 2], rows[:, turned // 2 : turned]
    pairs = torch.stack([first, second], 2).flatten(1, 2)
    return torch.cat([pairs, rows[:, turned:]], 1).flatten(0, 1)


def fuse_by_kind(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All queries, then all keys, then all values, as in GPT-2."""
    return torch.cat([q, k, v])


def split_by_kind(fused: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of `fuse_by_kind`."""
    width = fused.shape[0] // (heads + 2 * kv_heads)
    q, k, v = fused.split([heads * width, kv_heads * width, kv_heads * width])
    return q, k, v


def fuse_by_group(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int) -> Tensor:
    """For each key/value head its queries, its key and its value, as in GPT-NeoX and Falcon."""
    group, width = heads // kv_heads, q.shape[0] // heads
    parts = [
        one.unflatten(0, (kv_heads, count * width)) for one, count in ((q, group), (k, 1), (v, 1))
    ]
    return torch.cat(parts, 1).flatten(0, 1)


def split_by_group(fused: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of `fuse_by_group`."""
    group, width = heads // kv_heads, fused.shape[0] // (heads + 2 * kv_heads)
    rows = fused.unflatten(0, (kv_heads, -1))
    q, k, v = rows.split([group * width, width, width], 1)
    return q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


def tiled_to_neighbours(weight: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Query heads that read key/value head i % kv_heads come to read i // (heads // kv_heads).

    The columns of the output projection move alike: give it transposed.
    """
    rows = weight.unflatten(0, (heads // kv_heads, kv_heads, -1))
    return rows.transpose(0, 1).flatten(0, 2)


def neighbours_to_tiled(weight: Tensor, heads: int, kv_heads: int) -> Tensor:
    """The inverse of `tiled_to_neighbours`."""
    rows = weight.unflatten(0, (kv_heads, heads // kv_heads, -1))
    return rows.transpose(0, 1).flatten(0, 2)


def repeat_heads(weight: Tensor, kv_heads: int, heads: int) -> Tensor:
    """Keys or values of shared heads, once for each query head: grouped becomes multi-head."""
    rows = weight.unflatten(0, (kv_heads, -1))
    return rows.repeat_interleave(heads // kv_heads, 0).flatten(0, 1)


def mean_heads(weight: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Keys or values of so many heads, the mean of each group of neighbours: another function.

    It undoes `repeat_heads`, up to rounding.
    """
    return weight.unflatten(0, (kv_heads, heads // kv_heads, -1)).mean(1).flatten(0, 1)
