"""Banded attention in plain PyTorch, a tile of queries at a time: needs no compiler.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.
Cost: O(q · band) time; beside the results O(tile · band) memory. Scores are not kept: the backward
pass computes them again from `softmax`, each row's largest score and 1 / the sum of its weights.
Query heads that share a key/value head are laid side by side as rows: keys are never repeated.
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
    out = q.new_empty(*q.shape[:3], v.shape[3])
    softmax = q.new_empty(*q.shape[:3], 2)
    for tile in _tiles(q, k, left, right):
        keys, values = k[:, :, tile.keys], v[:, :, tile.keys]
        scores = tile.scores(q, keys, slopes, padding, scale)
        highest = scores.amax(-1, keepdim=True) if scores.shape[-1] else scores.new_zeros(1)
        highest = highest.clamp(-_largest(scores), _largest(scores))
        weights = (scores - highest).clamp_(max=0).exp_()
        total = weights.sum(-1, keepdim=True)
        over = (1 / total).where(total > 0, 0)  # a query that sees nothing has weights of 0
        tile.write(out, weights @ values * over)
        tile.write(softmax, torch.cat((highest.expand_as(over), over), dim=-1))
    return out, softmax


def backward(
    grad_out: Float[Tensor, "b h q e"],
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    out: Float[Tensor, "b h q e"],
    softmax: Float[Tensor, "b h q 2"],
    slopes: Float[Tensor, " h"] | None,
    padding: Bool[Tensor, "b k"] | None,
    left: int,
    right: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for tile in _tiles(q, k, left, right):
        keys, values = k[:, :, tile.keys], v[:, :, tile.keys]
        queries, grads = tile.rows(q), tile.rows(grad_out)
        scores = tile.scores(q, keys, slopes, padding, scale)
        highest, over = tile.rows(softmax).split(1, dim=-1)
        weights = (scores - highest).clamp_(max=0).exp_() * over
        slant = grads @ values.transpose(-1, -2)
        slant = weights * (slant - (weights * slant).sum(-1, keepdim=True)) * scale
        tile.write(grad_q, slant @ keys)
        grad_k[:, :, tile.keys] += slant.transpose(-1, -2) @ queries
        grad_v[:, :, tile.keys] += weights.transpose(-1, -2) @ grads
    return grad_q, grad_k, grad_v


class _Tile:
    """Queries [start, stop) and the keys that any of them sees."""

    def __init__(self, start: int, stop: int, q: Tensor, k: Tensor, left: int, right: int) -> None:
        self.kv_heads, keys = k.shape[1], k.shape[2]
        offset = keys - q.shape[2]
        self.queries = slice(start, stop)
        first = min(max(start + offset - left, 0), keys)
        self.keys = slice(first, max(min(stop + offset + right, keys), first))
        self.offset, self.left, self.right = offset, left, right

    def rows(self, x: Tensor) -> Tensor:
        """[b, h, q, …] -> [b, g, rows, …] of this tile: a group's heads one after another."""
        return x[:, :, self.queries].unflatten(1, (self.kv_heads, -1)).flatten(2, 3)

    def write(self, target: Tensor, rows: Tensor) -> None:
        part = target[:, :, self.queries]
        part.copy_(rows.reshape(part.shape))

    def scores(
        self, q: Tensor, keys: Tensor, slopes: Tensor | None, padding: Tensor | None, scale: float
    ) -> Tensor:
        scores = (self.rows(q) * scale) @ keys.transpose(-1, -2)
        apart = self._distances(q.device)
        group = q.shape[1] // self.kv_heads
        parts = scores.unflatten(2, (group, -1))  # [b, g, heads of the group, q, k]
        if slopes is not None:
            parts -= slopes.view(self.kv_heads, group, 1, 1) * apart.abs()
        if padding is not None:
            parts.masked_fill_(padding[:, None, None, None, self.keys], -torch.inf)
        unseen = (apart > self.left) | (apart < -self.right)
        parts.masked_fill_(unseen, -torch.inf)
        return scores

    def _distances(self, device: torch.device) -> Tensor:
        queries = torch.arange(self.queries.start, self.queries.stop, device=device) + self.offset
        keys = torch.arange(self.keys.start, self.keys.stop, device=device)
        return queries[:, None] - keys[None, :]


def _tiles(q: Tensor, k: Tensor, left: int, right: int) -> list[_Tile]:
    queries, keys = q.shape[2], k.shape[2]
    band = min(left + right + TILE, keys)
    size = max(min(TILE, SCORES_AT_ONCE // max(q.shape[0] * q.shape[1] * band, 1)), 1)
    return [
        _Tile(start, min(start + size, queries), q, k, left, right)
        for start in range(0, queries, size)
    ]


def _largest(x: Tensor) -> float:
    return torch.finfo(x.dtype).max
