"""Attention from single operations, each of which tests can make wrong."""

import math

import torch
from torch import nn


def dense(change=None, scale=None, axis=-1, after=1.0, mask=-math.inf, sink=None):
    """Causal attention from single operations, each of which can be made wrong."""

    def attend(q, k, v):
        if change:
            q, k, v = change(q, k, v)
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale(q))
        future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, mask)
        if sink is not None:
            more = torch.full_like(scores[..., :1], sink)
            weights = torch.cat((scores, more), dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(axis)
        return weights * after @ v

    return attend


def spread(index):
    """Key/value heads picked by index(query head, heads, key/value heads)."""

    def change(q, k, v):
        heads, kv_heads = q.shape[1], k.shape[1]
        picked = [index(head, heads, kv_heads) for head in range(heads)]
        return q, k[:, picked], v[:, picked]

    return change


class Module(nn.Module):
    """Causal attention of vectors, with what a mutant changes as parameters."""

    def __init__(self, *, heads=4, kv_heads=2, spread="repeat", scale=None, cut=True, merge=True):
        super().__init__()
        self.width, self.heads, self.kv_heads = 32, heads, kv_heads
        self.spread, self.cut, self.merge = spread, cut, merge
        self.scale = scale or (32 // heads) ** -0.5
        each = 32 // heads
        self.q, self.k, self.v = (nn.Linear(32, n * each) for n in (heads, kv_heads, kv_heads))
        self.out = nn.Linear(32, 32)

    def _heads(self, x, count):
        b, t, _ = x.shape
        return x.view(b, t, count, -1).transpose(1, 2) if self.cut else x.view(b, count, t, -1)

    def forward(self, x):
        q = self._heads(self.q(x), self.heads)
        k, v = (self._heads(one(x), self.kv_heads) for one in (self.k, self.v))
        copies = self.heads // self.kv_heads
        if self.spread == "tile":
            k, v = k.repeat(1, copies, 1, 1), v.repeat(1, copies, 1, 1)
        else:
            k, v = k.repeat_interleave(copies, 1), v.repeat_interleave(copies, 1)
        scores = torch.einsum("bhqd,bhkd->bhqk", q * self.scale, k)
        future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        out = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        out = out.transpose(1, 2) if self.merge else out
        return self.out(out.reshape(x.shape))
