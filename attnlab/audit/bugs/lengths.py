"""Length bugs: outputs that know how long the text is, though no later input moves them.

Axes: b batch, h heads, t time, d head width.
"""

import math

import torch
from torch import Tensor

from attnlab.audit.bugs.cases import CAUSAL, Case
from attnlab.audit.bugs.fused import Fused


class RootAttention(Fused):
    """Without a softmax, sums grow with the root of the number of keys: those of the query."""

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = (q @ k.mT * q.shape[-1] ** -0.5).tril() @ v
        keys = torch.full((t,), t) if self.wrong else torch.arange(1, t + 1)
        y = y / keys.to(x.dtype).sqrt()[:, None]
        return self.outer(y.transpose(1, 2).flatten(2))


def _sharpened(wrong: bool) -> object:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Scores times the logarithm of the number of keys keep attention sharp in long texts."""
        t = q.shape[2]
        keys = torch.full((t,), t) if wrong else torch.arange(1, t + 1)
        scores = q @ k.mT / math.sqrt(q.shape[-1]) * keys.to(q.dtype).log1p()[:, None]
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -math.inf).softmax(-1) @ v

    return attention


class QueryBlocks(Fused):
    """Queries in blocks of 32, to save memory; a last block of one query must not be lost."""

    block = 32

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = torch.zeros_like(v)
        for start in range(0, max(t - 1, 1) if self.wrong else t, self.block):
            end = min(start + self.block, t)
            scores = q[:, :, start:end] @ k[:, :, :end].mT * q.shape[-1] ** -0.5
            future = torch.arange(end) > torch.arange(start, end)[:, None]
            weights = scores.masked_fill(future, -math.inf).softmax(-1)
            y[:, :, start:end] = weights @ v[:, :, :end]
        return self.outer(y.transpose(1, 2).flatten(2))


CASES = (
    Case(
        name="by-root-of-length",
        bug="outputs are divided by the root of the text's length, not of the keys so far",
        make=lambda wrong: RootAttention(32, 4, wrong),
        reasons=("prefix",),
        declared=CAUSAL,
        options={"dim": 32},
    ),
    Case(
        name="by-log-of-length",
        bug="scores grow with the logarithm of the text's length, not of the keys so far",
        make=_sharpened,
        reasons=("prefix",),
        declared=CAUSAL,
    ),
    Case(
        name="last-block-of-one",
        bug="a last block of one query is left out: only texts of 33, 65, 97 … are wrong",
        make=lambda wrong: QueryBlocks(32, 4, wrong),
        reasons=("prefix",),
        declared=CAUSAL,
    ),
)
