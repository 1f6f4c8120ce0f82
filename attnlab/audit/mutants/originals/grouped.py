"""Grouped heads with rotary positions, both layouts, and ALiBi.

Axes: b batch, h query heads, g key/value heads, t time, d head width, c width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def angles(positions: Tensor, width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [t, d / 2]."""
    powers = torch.arange(0, width, 2, dtype=torch.float64) / width
    turned = positions[:, None].double() * base**-powers
    return turned.cos(), turned.sin()


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Coordinate n turns together with n + d / 2."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Coordinate 2n turns together with 2n + 1."""
    first, second = x[..., 0::2], x[..., 1::2]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.flatten(-2)


class GroupedRotary(nn.Module):
    """Half-split, by products; `positions` may be given."""

    def __init__(self, width: int, heads: int, kv_heads: int, base: float = 10000.0) -> None:
        super().__init__()
        self.width, self.heads, self.kv_heads = width, heads, kv_heads
        self.head_width, self.base = width // heads, base
        self.query = nn.Linear(width, heads * self.head_width, bias=False)
        self.key = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.query(x).view(b, t, self.heads, self.head_width).transpose(1, 2)
        k = self.key(x).view(b, t, self.kv_heads, self.head_width).transpose(1, 2)
        v = self.value(x).view(b, t, self.kv_heads, self.head_width).transpose(1, 2)
        cos, sin = angles(torch.arange(t), self.head_width, self.base)
        q, k = rotate_half(q, cos, sin), rotate_half(k, cos, sin)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = q @ k.mT * self.head_width**-0.5
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return self.merge((weights @ v).transpose(1, 2).flatten(2))


class PairedRotary(nn.Module):
    """Interleaved, with PyTorch's own function."""

    def __init__(self, width: int, heads: int, kv_heads: int, base: float = 500.0) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.base = base
        self.project = nn.Linear(width, (heads + 2 * kv_heads) * self.head_width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        every = self.project(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        q, k, v = every.split(sizes, dim=1)
        cos, sin = angles(torch.arange(x.shape[1]), self.head_width, self.base)
        q, k = rotate_pairs(q, cos, sin), rotate_pairs(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.merge(out.transpose(1, 2).flatten(2))


def grouped_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Head by head: a query head reads the key/value head of its group."""
    heads, group, t = q.shape[1], q.shape[1] // k.shape[1], q.shape[2]
    seen = torch.ones(t, t, dtype=torch.bool).tril()
    outs = []
    for head in range(heads):
        own = head // group
        scores = q[:, head] @ k[:, own].mT / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        outs.append(weights @ v[:, own])
    return torch.stack(outs, dim=1)


class AlibiAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads, self.head_width = width, heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1) / self.heads)
        places = torch.arange(t)
        back = places[:, None] - places[None, :]
        bias = -slopes[:, None, None].to(x.dtype) * back
        scores = q @ k.mT / math.sqrt(self.head_width) + bias
        weights = scores.masked_fill(back < 0, -math.inf).softmax(-1)
        return self.merge((weights @ v).transpose(1, 2).flatten(2))
