"""Attention that decodes: a growing cache, a cache with room for all, and a ring.

Axes: b batch, h heads, t time, s slots, d head width, c width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.mutants.originals.grouped import angles, rotate_half


class GrowingCache(nn.Module):
    """Rotary; keys are kept as they are compared."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def new_cache(self) -> dict[str, Tensor]:
        return {}

    def forward(self, x: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        start = cache["k"].shape[2] if cache else 0
        stop = start + x.shape[1]
        cos, sin = angles(torch.arange(start, stop), self.head_width, 10000.0)
        q, k = rotate_half(q, cos, sin), rotate_half(k, cos, sin)
        if cache:
            k = torch.cat((cache["k"], k), dim=2)
            v = torch.cat((cache["v"], v), dim=2)
        if cache is not None:
            cache["k"], cache["v"] = k, v
        seen = torch.arange(stop)[None, :] <= torch.arange(start, stop)[:, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.merge(out.transpose(1, 2).flatten(2))


class RoomyCache(nn.Module):
    """Room for the longest text from the beginning; `start` says where new tokens go."""

    longest = 160

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def new_cache(self) -> dict[str, Any]:
        return {"length": 0}

    def forward(self, x: Tensor, cache: dict[str, Any] | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        start, t = 0, x.shape[1]
        if cache is not None:
            start = cache["length"]
            if start == 0:
                cache["k"] = k.new_zeros(*k.shape[:2], self.longest, k.shape[3])
                cache["v"] = v.new_zeros(*v.shape[:2], self.longest, v.shape[3])
            cache["k"][:, :, start : start + t] = k
            cache["v"][:, :, start : start + t] = v
            cache["length"] = start + t
            k, v = cache["k"][:, :, : start + t], cache["v"][:, :, : start + t]
        seen = torch.ones(t, start + t, dtype=torch.bool).tril(start)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.merge(out.transpose(1, 2).flatten(2))


class RingCache(nn.Module):
    """A window whose cache has as many slots: position n is in slot n modulo window."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def project(self, x: Tensor) -> Tensor:
        return self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        places = torch.arange(x.shape[1])
        back = places[:, None] - places[None, :]
        seen = (back >= 0) & (back < self.window)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.merge(out.transpose(1, 2).flatten(2))

    def new_cache(self) -> dict[str, Any]:
        return {"length": 0}

    def step(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        """One position."""
        q, k, v = self.project(x)
        at = cache["length"]
        if at == 0:
            cache["k"] = k.new_zeros(*k.shape[:2], self.window, k.shape[3])
            cache["v"] = v.new_zeros(*v.shape[:2], self.window, v.shape[3])
        cache["k"][:, :, at % self.window] = k[:, :, 0]
        cache["v"][:, :, at % self.window] = v[:, :, 0]
        cache["length"] = at + 1
        seen = torch.arange(self.window)[None, :] <= at
        out = F.scaled_dot_product_attention(q, cache["k"], cache["v"], attn_mask=seen)
        return self.merge(out.transpose(1, 2).flatten(2))
