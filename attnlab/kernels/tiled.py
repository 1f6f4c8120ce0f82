"""Banded attention in plain PyTorch, a tile of queries at a time: needs no compiler.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.
Cost: O(q · band) time; beside the results O(tile · band) memory. Weights are not kept: a tile has
whole rows of scores, so the backward pass makes its weights again. Query heads that share a
key/value head are laid side by side as rows: keys are never repeated.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

TILE = 64
SCORES_AT_ONCE = 1 << 21  # numbers in a tile of scores: a few MB, so that it stays in the caches


def forward(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    slopes: Float[Tensor, " h"] | None,
    padding: Bool[Tensor, "b k"] | None,
    left: int,
    right: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    band = _Band(q, k, slopes, padding, left, right, scale)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    for tile in band.tiles():
        weights = band.weights(tile)
        band.write(out, tile, weights @ v[:, :, tile.keys])
    return out, q.new_empty(*q.shape[:3], 0)  # it keeps nothing of the softmax


def backward(
    grad_out: Float[Tensor, "b h q e"],
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    out: Float[Tensor, "b h q e"],
    softmax: Tensor,
    slopes: Float[Tensor, " h"] | None,
    padding: Bool[Tensor, "b k"] | None,
    left: int,
    right: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    band = _Band(q, k, slopes, padding, left, right, scale)
    grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for tile in band.tiles():
        keys, values, grads = k[:, :, tile.keys], v[:, :, tile.keys], band.rows(grad_out, tile)
        weights = band.weights(tile)
        grad_v[:, :, tile.keys] += weights.transpose(-1, -2) @ grads
        slant = grads @ values.transpose(-1, -2)
        slant -= (weights * slant).sum(-1, keepdim=True)
        slant *= weights
        slant *= scale
        band.write(grad_q, tile, slant @ keys)
        grad_k[:, :, tile.keys] += slant.transpose(-1, -2) @ band.rows(q, tile)
    return grad_q, grad_k, grad_v


class _Tile:
    """A run of queries and the keys that any of them sees."""

    def __init__(self, queries: slice, keys: slice, ahead: int) -> None:
        self.queries, self.keys = queries, keys
        self.ahead = ahead  # of the first query's position over the first key's

    @property
    def shape(self) -> tuple[int, int, int]:
        """Tiles of one shape have one mask."""
        queries, keys = self.queries, self.keys
        return queries.stop - queries.start, keys.stop - keys.start, self.ahead


class _Band:
    """One call: its tensors, cut into tiles, and the masks that tiles have in common."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        slopes: Tensor | None,
        padding: Tensor | None,
        left: int,
        right: int,
        scale: float,
    ) -> None:
        self.q, self.k, self.slopes, self.padding = q, k, slopes, padding
        self.left, self.right, self.scale = left, right, scale
        self.kv_heads, self.group = k.shape[1], q.shape[1] // k.shape[1]
        self.masks: dict[tuple[int, int, int], Tensor] = {}

    def tiles(self) -> list[_Tile]:
        queries, keys = self.q.shape[2], self.k.shape[2]
        width = min(self.left + self.right + TILE, keys)
        rows = SCORES_AT_ONCE // max(self.q.shape[0] * self.q.shape[1] * width, 1)
        size = max(min(TILE, rows), 1)
        tiles = []
        for start in range(0, queries, size):
            stop = min(start + size, queries)
            at = start + keys - queries
            first = min(max(at - self.left, 0), keys)
            end = max(min(at + stop - start + self.right, keys), first)
            tiles.append(_Tile(slice(start, stop), slice(first, end), at - first))
        return tiles

    def rows(self, x: Tensor, tile: _Tile) -> Tensor:
        """[b, h, q, …] -> [b, g, rows, …] of a tile: a group's heads one after another."""
        return x[:, :, tile.queries].unflatten(1, (self.kv_heads, -1)).flatten(2, 3)

    def write(self, target: Tensor, tile: _Tile, rows: Tensor) -> None:
        part = target[:, :, tile.queries]
        part.copy_(rows.reshape(part.shape))

    def weights(self, tile: _Tile) -> Tensor:
        """The softmax of a tile's scores, [b, g, rows, k]; 0 in a row that sees nothing."""
        queries, keys = self.rows(self.q, tile), self.k[:, :, tile.keys]
        scores = queries.mul(self.scale) @ keys.transpose(-1, -2)
        largest = torch.finfo(scores.dtype).max
        scores.clamp_(-largest, largest).add_(self.mask(tile))  # inf - inf would be NaN
        if self.padding is not None:
            scores.masked_fill_(self.padding[:, None, None, tile.keys], -torch.inf)
        weights = scores.softmax(-1)
        if self.padding is not None or self.k.shape[2] < self.q.shape[2]:
            weights.masked_fill_((scores == -torch.inf).all(-1, keepdim=True), 0)
        return weights

    def mask(self, tile: _Tile) -> Tensor:
        """What is added to a tile's scores, [g, rows, k]: the bias, and minus infinity."""
        if tile.shape not in self.masks:
            queries, keys, ahead = tile.shape
            device = self.q.device
            apart = torch.arange(ahead, ahead + queries, device=device)[:, None]
            apart = apart - torch.arange(keys, device=device)
            added = torch.zeros(1, 1, queries, keys, dtype=self.q.dtype, device=device)
            if self.slopes is not None:
                slopes = self.slopes.to(self.q.dtype).view(self.kv_heads, self.group, 1, 1)
                added = added - slopes * apart.abs()
            unseen = (apart > self.left) | (apart < -self.right)
            added = added.masked_fill(unseen, -torch.inf)
            shape = (self.kv_heads, self.group, queries, keys)
            self.masks[tile.shape] = added.expand(shape).flatten(1, 2)
        return self.masks[tile.shape]
