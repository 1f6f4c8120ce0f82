"""Bugs that were first made by program (`audit/mutants/`), and that the audit did not find then.

Axes: b batch, h heads, t time, d head width, v vocabulary.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.audit.bugs.cases import CAUSAL, Case
from attnlab.audit.bugs.fused import Fused
from attnlab.audit.bugs.training import IGNORE, SmallModel


class OwnKey(Fused):
    """A query attends to its own key; with a mask one off the first attends to nothing."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        place = torch.arange(x.shape[1])
        seen = place < place[:, None] if self.wrong else place <= place[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


class PackedRows(Fused):
    """Who belongs to one text is one mask, who comes later another; both are needed."""

    def forward(self, x: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        t = x.shape[1]
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        if segment_ids is not None:
            own = segment_ids[:, None, :, None] == segment_ids[:, None, None]
            seen = own if self.wrong else seen & own
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


class Turned(Fused):
    """Another base than the one that is declared, and that weights were trained with."""

    bias = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        d, base = q.shape[-1], 20000.0 if self.wrong else 10000.0
        speed = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = torch.arange(x.shape[1])[:, None] * speed
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)

        def turn(part: Tensor) -> Tensor:
            a, b = part.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        return self.outer(y.transpose(1, 2).flatten(2))


class Accumulation(SmallModel):
    """Gradients of parts add up to that of the loss: a mean over tokens that are no padding."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(tokens)

    def loss(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        labels = tokens if padding is None else tokens.masked_fill(padding, IGNORE)
        return F.cross_entropy(self(tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def accumulate(self, tokens: Tensor, parts: int, padding: Tensor | None = None) -> None:
        labels = tokens if padding is None else tokens.masked_fill(padding, IGNORE)
        counted = labels[:, 1:] != (0 if self.wrong else IGNORE)
        for some, wanted in zip(tokens.chunk(parts), labels.chunk(parts), strict=True):
            predicted, targets = self(some)[:, :-1].flatten(0, 1), wanted[:, 1:].flatten()
            (F.cross_entropy(predicted, targets, reduction="sum") / counted.sum()).backward()


def _exchanged(wrong: bool) -> object:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        t, scores = q.shape[2], (k @ q.mT if wrong else q @ k.mT) * q.shape[-1] ** -0.5
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -math.inf).softmax(-1) @ v

    return attention


def _key_blocks(wrong: bool) -> object:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keys in blocks; the first key of a block must not count for the block before it too."""
        t, places = q.shape[2], torch.arange(q.shape[2])
        above, below = torch.zeros_like(q), q.new_zeros(*q.shape[:3], 1)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(places > places[:, None], -math.inf)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        for start in range(0, t, 16):
            some = slice(start, start + 16 + wrong)
            above = above + weights[..., some] @ v[:, :, some]
            below = below + weights[..., some].sum(-1, keepdim=True)
        return above / below

    return attention


CASES = (
    Case(
        name="own-key-hidden",
        bug="a causal mask one off: no query attends to its own key",
        make=partial(OwnKey, 32, 4),
        reasons=("heads",),
        declared=CAUSAL,
    ),
    Case(
        name="exchanged",
        bug="queries are taken for keys, and keys for queries",
        make=_exchanged,
        reasons=("heads",),
        declared=CAUSAL,
    ),
    Case(
        name="packed-not-causal",
        bug="a mask that separates texts in a row replaces the causal mask",
        make=partial(PackedRows, 32, 4),
        reasons=("packing",),
        declared=CAUSAL,
    ),
    Case(
        name="border-key-twice",
        bug="the first key of a block counts for the block before it too",
        make=_key_blocks,
        reasons=("positions",),
        declared={**CAUSAL, "positions": "none"},
    ),
    Case(
        name="other-base",
        bug="rotations have another base than weights were trained with",
        make=partial(Turned, 32, 4),
        reasons=("positions",),
        declared={**CAUSAL, "positions": "rotary", "rope_base": 10000.0},
    ),
    Case(
        name="divided-by-other-tokens",
        bug="gradients in parts are divided by another number than that of the tokens in the loss",
        make=Accumulation,
        reasons=("training",),
        declared=CAUSAL,
    ),
)
