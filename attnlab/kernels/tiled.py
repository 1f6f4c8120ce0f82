"""Banded attention in plain PyTorch, a tile of queries at a time: needs no compiler.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.
Cost: O(q · band) time; beside the results O(tile · band) memory. Weights are not kept: a tile has
whole rows of scores, so the backward pass makes its weights again. Query heads that share a
key/value head are laid side by side as rows: keys are never repeated.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlab.kernels.band import Band

TILE = 64
SCORES_AT_ONCE = 1 << 21  # numbers in a tile of scores: a few MB, so that it stays in the caches


def forward(band: Band) -> tuple[Tensor, Tensor]:
    q, v, tiling = band.q, band.v, _Tiling(band)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    for tile in tiling.tiles():
        weights, *_ = tiling.weights(tile)
        tiling.write(out, tile, weights @ v[:, :, tile.keys])
        del weights  # the next tile has room for its own
    return out, q.new_empty(*q.shape[:3], 0)  # it keeps nothing of the softmax


def backward(
    band: Band, out: Tensor, softmax: Tensor, grad_out: Float[Tensor, "b h q e"], learned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k, v, tiling = band.q, band.k, band.v, _Tiling(band)
    grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    grad_table = q.new_zeros(0, dtype=torch.float64)  # it sums over many pairs
    if learned and band.table is not None:
        grad_table = torch.zeros_like(band.table, dtype=torch.float64)
    grad_sinks = q.new_zeros(0) if band.sinks is None else torch.zeros_like(band.sinks)
    for tile in tiling.tiles():
        keys, values, grads = k[:, :, tile.keys], v[:, :, tile.keys], tiling.rows(grad_out, tile)
        weights, bend, sunk = tiling.weights(tile)
        grad_v[:, :, tile.keys] += weights.transpose(-1, -2) @ grads
        slant = grads @ values.transpose(-1, -2)
        mean = (weights * slant).sum(-1, keepdim=True)
        slant -= mean
        slant *= weights
        if sunk is not None:
            grad_sinks -= tiling.by_head(sunk * mean).sum((0, 2, 3)).to(grad_sinks.dtype)
        if len(grad_table):
            tiling.add_to_table(grad_table, tile, slant)
        if bend is not None:
            slant *= bend
        slant *= band.scale
        tiling.write(grad_q, tile, slant @ keys)
        grad_k[:, :, tile.keys] += slant.transpose(-1, -2) @ tiling.rows(q, tile)
    return grad_q, grad_k, grad_v, grad_table.to(q.dtype), grad_sinks


@dataclass(frozen=True)
class _Tile:
    """A run of queries and the keys that any of them attends to."""

    queries: slice
    keys: slice
    ranges: Int[Tensor, "#b t 3"]  # of its queries, counted from its first key


class _Tiling:
    """One call: its tensors, cut into tiles, and the masks that tiles have in common."""

    def __init__(self, band: Band) -> None:
        self.band, self.q, self.k = band, band.q, band.k
        self.kv_heads, self.group = self.k.shape[1], self.q.shape[1] // self.k.shape[1]
        self.newest: tuple[_Tile, Tensor] | None = None  # with its mask

    def tiles(self) -> Iterator[_Tile]:
        queries, start = self.q.shape[2], 0
        while start < queries:
            size = TILE
            keys = self._keys(slice(start, min(start + size, queries)))
            row = self.q.shape[0] * self.q.shape[1] * max(keys.stop - keys.start, 1)
            size = max(min(size, SCORES_AT_ONCE // row), 1)
            tile = slice(start, min(start + size, queries))
            if size < TILE:
                keys = self._keys(tile)
            yield _Tile(tile, keys, self.band.mask.ranges(tile) - keys.start)
            start += size

    def _keys(self, queries: slice) -> slice:
        """Those that any of a run of queries attends to."""
        ranges = self.band.mask.ranges(queries)
        first = int(ranges[:, 0, 0].amin())
        return slice(first, max(int(ranges[:, -1, 1].amax()), first))

    def rows(self, x: Tensor, tile: _Tile) -> Tensor:
        """[b, h, q, …] -> [b, g, rows, …] of a tile: a group's heads one after another."""
        return x[:, :, tile.queries].unflatten(1, (self.kv_heads, -1)).flatten(2, 3)

    def by_head(self, rows: Tensor) -> Tensor:
        """[b, g, rows, k] -> [b, h, q, k]"""
        return rows.unflatten(2, (self.group, -1)).flatten(1, 2)

    def write(self, target: Tensor, tile: _Tile, rows: Tensor) -> None:
        part = target[:, :, tile.queries]
        part.copy_(rows.reshape(part.shape))

    def weights(self, tile: _Tile) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The softmax of a tile's scores, [b, g, rows, k], 0 in a row without keys.

        And the derivative of the cap, and the weight of the sinks, if there are any.
        """
        band, bend, sunk = self.band, None, None
        queries, keys = self.rows(self.q, tile), self.k[:, :, tile.keys]
        scores = queries.mul(band.scale) @ keys.transpose(-1, -2)
        largest = torch.finfo(scores.dtype).max
        scores.clamp_(-largest, largest)  # inf - inf would be NaN
        if band.cap:
            scores.div_(band.cap).tanh_()
            bend = 1 - scores.square()
            scores.mul_(band.cap)
        scores.add_(self.mask(tile))
        if band.padding is not None:
            scores.masked_fill_(band.padding[:, None, None, tile.keys], -torch.inf)
        weights = scores.softmax(-1)
        if band.sinks is not None:
            sinks = band.sinks.to(scores.dtype).view(self.kv_heads, self.group, 1, 1)
            sinks = sinks.expand(-1, -1, len(tile.ranges[0]), -1).flatten(1, 2)
            over = scores.logsumexp(-1, keepdim=True) - sinks
            weights *= over.sigmoid()
            sunk = (-over).sigmoid()
        blind = (scores == -torch.inf).all(-1, keepdim=True)
        return weights.masked_fill_(blind, 0), bend, sunk

    def mask(self, tile: _Tile) -> Tensor:
        """What is added to a tile's scores, [#b, g, rows, k]: the bias, and minus infinity.

        One is kept: tiles away from the ends have the same one after another, and all of those at
        an end would be as large as a window squared.
        """
        made = None
        if self.newest is not None and _alike(self.newest[0], tile):
            made = self.newest[1]
        self.newest = None  # so that there are never two
        self.newest = tile, self._made(tile) if made is None else made
        return self.newest[1]

    def _made(self, tile: _Tile) -> Tensor:
        ours = tile.ranges[:, :, :, None]
        at = torch.arange(tile.keys.stop - tile.keys.start, device=self.q.device)
        unseen = (at < ours[:, :, 0]) | (at >= ours[:, :, 1])
        added = torch.zeros(1, 1, 1, *unseen.shape[1:], dtype=self.q.dtype, device=self.q.device)
        if self.band.table is not None:
            bias = self.band.table.to(self.q.dtype)[:, self._columns(tile)]
            added = bias.transpose(0, 1).unflatten(1, (self.kv_heads, self.group))
        added = added.masked_fill(unseen[:, None, None], -torch.inf)
        return added.expand(-1, self.kv_heads, self.group, -1, -1).flatten(2, 3)

    def _columns(self, tile: _Tile) -> Int[Tensor, "#b t k"]:
        """Of the table, for each query and key of a tile."""
        at = torch.arange(tile.keys.stop - tile.keys.start, device=self.q.device)
        last = self.band.table.shape[1] - 1 if self.band.table is not None else 0
        return (self.band.zero + at - tile.ranges[:, :, 2, None]).clamp(0, last)

    def add_to_table(self, table: Tensor, tile: _Tile, slant: Tensor) -> None:
        columns, by_head = self._columns(tile), self.by_head(slant)
        shared = by_head.sum(0, keepdim=True) if len(columns) == 1 else by_head
        for row, columns_of_row in zip(shared, columns, strict=True):
            table.index_add_(1, columns_of_row.flatten(), row.flatten(1).to(table.dtype))


def _alike(one: _Tile, other: _Tile) -> bool:
    """Whether two tiles have one mask."""
    sizes = [tile.keys.stop - tile.keys.start for tile in (one, other)]
    return sizes[0] == sizes[1] and torch.equal(one.ranges, other.ranges)
