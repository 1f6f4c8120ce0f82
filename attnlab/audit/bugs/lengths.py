"""Length bugs: outputs that know how long the text is, leaks that only some lengths or places
show, and leaks in code that takes few lengths.

Axes: b batch, h heads, t time, d head width; query i, key j.
"""

import math
from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs.cases import CAUSAL, Case, Control
from attnlab.audit.bugs.fused import Fused

Leak = Callable[[Tensor, Tensor, int], Tensor]  # of i, j and t: whether i attends to a later j


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


class Limited(Fused):
    """Causal attention that takes texts of `least` to `most`, or those that `fits` says."""

    def __init__(
        self,
        wrong: bool,
        leak: Leak | None = None,
        *,
        least: int = 1,
        most: int | None = None,
        fits: Callable[[int], bool] = lambda t: True,
    ) -> None:
        super().__init__(32, 4, wrong)
        self.leak, self.least, self.most, self.fits = leak, least, most, fits

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        if t < self.least or t > (self.most or t) or not self.fits(t):
            raise ValueError(f"no texts of {t}")
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        i, j = torch.arange(t)[:, None], torch.arange(t)
        seen = j <= i
        if self.wrong and self.leak is not None:
            seen = seen | self.leak(i, j, t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


class RootOfShort(RootAttention):
    """The same for texts of up to 16."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 16:
            raise ValueError("more than 16 positions")
        return super().forward(x)


class SmallGPT(nn.Module):
    """One block with a table of positions and a mask, both of `block_size`."""

    def __init__(self, wrong: bool, block_size: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=61, n_embd=32, n_head=4, block_size=block_size)
        self.tokens, self.places = nn.Embedding(61, 32), nn.Embedding(block_size, 32)
        self.attention, self.head = nn.Linear(32, 96), nn.Linear(32, 61)
        later = torch.ones(block_size, block_size, dtype=torch.bool)
        self.register_buffer("later", later.triu(2 if wrong else 1), persistent=False)

    def forward(self, idx: Tensor) -> Tensor:
        t = idx.shape[1]
        assert t <= self.config.block_size, f"cannot forward {t}, block size is exhausted"
        x = self.tokens(idx) + self.places(torch.arange(t))
        q, k, v = self.attention(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(self.later[:t, :t], -math.inf)  # type: ignore[index]
        logits: Tensor = self.head(x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return logits


class OneLength(Fused):
    """Keys of all twelve positions have a bias: texts of twelve, and no other."""

    def __init__(self, wrong: bool) -> None:
        super().__init__(32, 4, wrong)
        self.seq_len = 12
        self.bias_of_keys = nn.Parameter(torch.zeros(12))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.bias_of_keys
        later = torch.ones(12, 12, dtype=torch.bool).triu(2 if self.wrong else 1)
        y = scores.masked_fill(later, -math.inf).softmax(-1) @ v
        return self.outer(y.transpose(1, 2).flatten(2))


def at_border(chunk: int) -> Leak:
    """The last query of each chunk attends to the first key of the next."""
    return lambda i, j, t: (i % chunk == chunk - 1) & (j == i + 1)


def at_length(wrong: Callable[[int], bool]) -> Leak:
    """In texts of such a length every query attends to the next key."""
    return lambda i, j, t: (j == i + 1) & wrong(t)


def _leak(name: str, bug: str, leak: Leak, **limits: int) -> Case:
    return Case(
        name=name,
        bug=bug,
        make=lambda wrong: Limited(wrong, leak, **limits),  # type: ignore[arg-type]
        reasons=("causality",),
        declared=CAUSAL,
    )


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
    _leak(
        "at-least-three", "sees the next key, and takes no text below 3", at_length(bool), least=3
    ),
    _leak("at-most-16", "sees the next key, and takes no text above 16", at_length(bool), most=16),
    _leak("chunks-of-24", "the end of a chunk of 24 sees the next chunk", at_border(24)),
    _leak("chunks-of-40", "the end of a chunk of 40 sees the next chunk", at_border(40)),
    _leak("chunks-of-96", "the end of a chunk of 96 sees the next chunk", at_border(96)),
    _leak("texts-of-47", "texts of 47 see the next key", at_length(lambda t: t == 47)),
    _leak("one-past-32", "texts of 33, 65, 97 … see it", at_length(lambda t: t % 32 == 1 < t)),
    Case(
        name="small-block",
        bug="sees the next token; its table of positions ends at 10",
        make=lambda wrong: SmallGPT(wrong, 10),
        reasons=("causality",),
        declared=CAUSAL,
    ),
    Case(
        name="one-length",
        bug="sees the next key, and takes texts of 12 only",
        make=OneLength,
        reasons=("causality",),
        declared=CAUSAL,
    ),
    Case(
        name="by-root-of-few",
        bug="outputs are divided by the root of the text's length; it takes no text above 16",
        make=lambda wrong: RootOfShort(32, 4, wrong),
        reasons=("prefix",),
        declared=CAUSAL,
        options={"dim": 32},
    ),
)

CONTROLS = (
    Control(
        name="refuses-23",
        why="causal, and takes every length but one",
        make=lambda: Limited(False, fits=lambda t: t != 23),
        declared=CAUSAL,
    ),
    Control(
        name="refuses-odd",
        why="causal, and takes even lengths only",
        make=lambda: Limited(False, fits=lambda t: t % 2 == 0),
        declared=CAUSAL,
    ),
    Control(
        name="at-least-nine",
        why="causal, and takes no text below 9",
        make=lambda: Limited(False, least=9),
        declared=CAUSAL,
    ),
    Control(
        name="at-most-nine",
        why="causal, and takes no text above 9",
        make=lambda: Limited(False, most=9),
        declared=CAUSAL,
    ),
)
