"""Banded attention in plain PyTorch, a tile of queries at a time: needs no compiler.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.
Cost: O(q · band) time; beside the results O(tile · band) memory. Weights are not kept: a tile has
whole rows of scores, so the backward pass makes its weights again. Query heads that share a
key/value head are laid side by side as rows: keys are never repeated.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.kernels.band import Band

TILE = 64
SCORES_AT_ONCE = 1 << 21  # numbers in a tile of scores: a few MB, so that it stays in the caches


def forward(band: Band) -> tuple[Tensor, Tensor]:
    q, v, tiling = band.q, band.v, _Tiling(band)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    for tile in tiling.tiles():
        weights = tiling.weights(tile)
        tiling.write(out, tile, weights @ v[:, :, tile.keys])
    return out, q.new_empty(*q.shape[:3], 0)  # it keeps nothing of the softmax


def backward(
    band: Band, out: Tensor, softmax: Tensor, grad_out: Float[Tensor, "b h q e"]
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, tiling = band.q, band.k, band.v, _Tiling(band)
    grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for tile in tiling.tiles():
        keys, values, grads = k[:, :, tile.keys], v[:, :, tile.keys], tiling.rows(grad_out, tile)
        weights = tiling.weights(tile)
        grad_v[:, :, tile.keys] += weights.transpose(-1, -2) @ grads
        slant = grads @ values.transpose(-1, -2)
        slant -= (weights * slant).sum(-1, keepdim=True)
        slant *= weights
        slant *= band.scale
        tiling.write(grad_q, tile, slant @ keys)
        grad_k[:, :, tile.keys] += slant.transpose(-1, -2) @ tiling.rows(q, tile)
    return grad_q, grad_k, grad_v


class _Tile:
    """A run of queries and the keys that any of them attends to."""

    def __init__(self, queries: slice, keys: slice, ahead: int) -> None:
        self.queries, self.keys = queries, keys
        self.ahead = ahead  # of the first query's position over the first key's

    @property
    def shape(self) -> tuple[int, int, int]:
        """Tiles of one shape have one mask."""
        queries, keys = self.queries, self.keys
        return queries.stop - queries.start, keys.stop - keys.start, self.ahead


class _Tiling:
    """One call: its tensors, cut into tiles, and the masks that tiles have in common."""

    def __init__(self, band: Band) -> None:
        self.band, self.q, self.k = band, band.q, band.k
        self.kv_heads, self.group = self.k.shape[1], self.q.shape[1] // self.k.shape[1]
        self.newest: tuple[tuple[int, int, int], Tensor] | None = None  # shape and mask

    def tiles(self) -> list[_Tile]:
        queries, keys = self.q.shape[2], self.k.shape[2]
        width = min(self.band.left + self.band.right + TILE, keys)
        rows = SCORES_AT_ONCE // max(self.q.shape[0] * self.q.shape[1] * width, 1)
        size = max(min(TILE, rows), 1)
        tiles = []
        for start in range(0, queries, size):
            stop = min(start + size, queries)
            at = start + keys - queries
            first = min(max(at - self.band.left, 0), keys)
            end = max(min(at + stop - start + self.band.right, keys), first)
            tiles.append(_Tile(slice(start, stop), slice(first, end), at - first))
        return tiles

    def rows(self, x: Tensor, tile: _Tile) -> Tensor:
        """[b, h, q, …] -> [b, g, rows, …] of a tile: a group's heads one after another."""
        return x[:, :, tile.queries].unflatten(1, (self.kv_heads, -1)).flatten(2, 3)

    def write(self, target: Tensor, tile: _Tile, rows: Tensor) -> None:
        part = target[:, :, tile.queries]
        part.copy_(rows.reshape(part.shape))

    def weights(self, tile: _Tile) -> Tensor:
        """The softmax of a tile's scores, [b, g, rows, k]; 0 in a row without keys."""
        queries, keys = self.rows(self.q, tile), self.k[:, :, tile.keys]
        scores = queries.mul(self.band.scale) @ keys.transpose(-1, -2)
        largest = torch.finfo(scores.dtype).max
        scores.clamp_(-largest, largest).add_(self.mask(tile))  # inf - inf would be NaN
        if self.band.padding is not None:
            scores.masked_fill_(self.band.padding[:, None, None, tile.keys], -torch.inf)
        weights = scores.softmax(-1)
        if self.band.padding is not None or self.k.shape[2] < self.q.shape[2]:
            weights.masked_fill_((scores == -torch.inf).all(-1, keepdim=True), 0)
        return weights

    def mask(self, tile: _Tile) -> Tensor:
        """What is added to a tile's scores, [g, rows, k]: the bias, and minus infinity.

        One is kept: tiles away from the ends have the same one after another, and all of those at
        an end would be as large as a window squared.
        """
        if self.newest is None or self.newest[0] != tile.shape:
            self.newest = None  # so that there are never two
            self.newest = tile.shape, self._made(tile)
        return self.newest[1]

    def _made(self, tile: _Tile) -> Tensor:
        queries, keys, ahead = tile.shape
        device = self.q.device
        apart = torch.arange(ahead, ahead + queries, device=device)[:, None]
        apart = apart - torch.arange(keys, device=device)
        added = torch.zeros(1, 1, queries, keys, dtype=self.q.dtype, device=device)
        if self.band.slopes is not None:
            slopes = self.band.slopes.to(self.q.dtype).view(self.kv_heads, self.group, 1, 1)
            added = added - slopes * apart.abs()
        unseen = (apart > self.band.left) | (apart < -self.band.right)
        added = added.masked_fill(unseen, -torch.inf)
        shape = (self.kv_heads, self.group, queries, keys)
        return added.expand(shape).flatten(1, 2)
