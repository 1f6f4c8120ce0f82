"""Window bugs: one key too many or too few, everywhere or only after the first wrap.

Axes: b batch, h heads, t time, d head width, c width, n blocks.
"""

import math
from collections import deque

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.audit.bugs.cases import Case
from attnlab.audit.bugs.fused import Fused


def banded_attention(q: Tensor, k: Tensor, v: Tensor, back: int) -> Tensor:
    """Every key up to `back` before the query, and the query's own."""
    i = torch.arange(q.size(2), device=q.device).unsqueeze(1)
    j = torch.arange(k.size(2), device=k.device).unsqueeze(0)
    visible = (j <= i) & (j >= i - back)
    s = torch.matmul(q, k.transpose(2, 3)).div(math.sqrt(q.size(3)))
    return torch.matmul(s.masked_fill(~visible, -1e300).softmax(dim=3), v)


def _band(wrong: bool) -> object:
    window = 8

    def sliding_window_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return banded_attention(q, k, v, back=window if wrong else window - 1)

    return sliding_window_attention


class DequeAttention(Fused):
    """Decodes from a queue as long as the window; once that is full, the oldest key goes early."""

    window = 5

    def new_cache(self) -> deque[tuple[Tensor, Tensor]]:
        return deque(maxlen=self.window)

    def _whole(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ones = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=ones.tril() & ones.triu(1 - self.window)
        )

    def forward(self, x: Tensor, cache: deque[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is None:
            return self.outer(self._whole(q, k, v).transpose(1, 2).flatten(2))
        outs = []
        for i in range(x.shape[1]):
            wrapped = len(cache) == self.window
            cache.append((k[:, :, i : i + 1], v[:, :, i : i + 1]))
            kept = list(cache)[1 if wrapped and self.wrong else 0 :]
            keys, values = (torch.cat(parts, dim=2) for parts in zip(*kept, strict=True))
            outs.append(F.scaled_dot_product_attention(q[:, :, i : i + 1], keys, values))
        return self.outer(torch.cat(outs, dim=2).transpose(1, 2).flatten(2))


class BlockLocalAttention(Fused):
    """Blocks as wide as the window look at themselves and at the block before."""

    bias, window = False, 8

    def forward(self, x: Tensor) -> Tensor:
        t, w = x.shape[1], self.window
        padded = F.pad(self.inner(x), (0, 0, 0, -t % w))
        q, k, v = (
            part.unflatten(1, (-1, w)).unflatten(-1, (self.heads, -1)).transpose(2, 3)
            for part in padded.chunk(3, dim=-1)
        )  # [b, n, h, w, d]
        k, v = (torch.cat((F.pad(y, (0, 0) * 3 + (1, 0))[:, :-1], y), dim=3) for y in (k, v))
        back = torch.arange(w)[:, None] + w - torch.arange(2 * w)[None, :]
        seen = (back >= 0) & (back <= w if self.wrong else back < w)
        there = torch.ones(q.shape[1], 1, 1, 2 * w, dtype=torch.bool)
        there[0, ..., :w] = False  # before the first block there is nothing
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen & there)
        return self.outer(y.transpose(2, 3).flatten(3).flatten(1, 2)[:, :t])


class DilatedAttention(Fused):
    """Every second key only: the reach of a window, and not one."""

    window = 7

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1])
        back = places[:, None] - places
        seen = (back >= 0) & (back < self.window)
        if self.wrong:
            seen &= back % 2 == 0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


CASES = (
    Case(
        name="dilated",
        bug="a window of w that leaves out every second key",
        make=lambda wrong: DilatedAttention(32, 4, wrong),
        reasons=("window",),
        declared={"causal": True, "window": 7},
    ),
    Case(
        name="one-too-many",
        bug="with a window of w a query attends to w keys before it and its own",
        make=_band,
        reasons=("window",),
        declared={"causal": True, "window": 8},
    ),
    Case(
        name="off-after-wrap",
        bug="decoding drops one key too many once the cache is full",
        make=lambda wrong: DequeAttention(32, 4, wrong),
        reasons=("cache", "window"),
        declared={"causal": True, "window": 5, "cache": True},
    ),
    Case(
        name="off-after-first-block",
        bug="one key too many, in all blocks but the first",
        make=lambda wrong: BlockLocalAttention(32, 4, wrong),
        reasons=("window",),
        declared={"causal": True, "window": 8},
    ),
)
