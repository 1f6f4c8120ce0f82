"""Attention block by block: a softmax that is put together, and linear attention in chunks.

Axes: b batch, h heads, t time, d head width, c width.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def online_attention(q: Tensor, k: Tensor, v: Tensor, block: int = 8) -> Tensor:
    """The softmax of a row is put together of blocks of keys, with the largest score so far."""
    t, scale = q.shape[2], 1 / math.sqrt(q.shape[-1])
    places = torch.arange(t)
    highest = q.new_full((*q.shape[:3], 1), -math.inf)
    total = q.new_zeros(*q.shape[:3], 1)
    out = torch.zeros_like(q)
    for start in range(0, t, block):
        stop = min(start + block, t)
        scores = q @ k[:, :, start:stop].mT * scale
        scores = scores.masked_fill(places[start:stop] > places[:, None], -math.inf)
        highest_now = torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights = (scores - highest_now).exp()
        shrink = (highest - highest_now).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights @ v[:, :, start:stop]
        highest = highest_now
    return out / total


class LinearAttention(nn.Module):
    """Chunks of queries read the sums of all earlier chunks, and their own."""

    def __init__(self, width: int, heads: int, chunk: int = 8) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return F.elu(q) + 1, F.elu(k) + 1, v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        b, h, t, d = q.shape
        state, total = q.new_zeros(b, h, d, d), q.new_zeros(b, h, d, 1)
        outs = []
        for start in range(0, t, self.chunk):
            stop = min(start + self.chunk, t)
            queries, keys = q[:, :, start:stop], k[:, :, start:stop]
            values = v[:, :, start:stop]
            near = (queries @ keys.mT).tril()
            above = queries @ state + near @ values
            below = queries @ total + near.sum(-1, keepdim=True)
            outs.append(above / (below + 1e-6))
            state = state + keys.mT @ values
            total = total + keys.sum(2)[..., None]
        return self.merge(torch.cat(outs, dim=2).transpose(1, 2).flatten(2))

    def new_cache(self) -> dict[str, Any]:
        return {"state": 0.0, "total": 0.0}

    def step(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        """One position."""
        q, k, v = self.project(x)
        cache["state"] = cache["state"] + k.mT @ v
        cache["total"] = cache["total"] + k.mT
        out = q @ cache["state"] / (q @ cache["total"] + 1e-6)
        return self.merge(out.transpose(1, 2).flatten(2))
