"""Bugs of texts that share a row, and of chunks that a text is cut into.

Axes: b batch, h heads, t time, s positions so far, d head width, n texts of a row.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs.cases import CAUSAL, Case
from attnlab.audit.bugs.fused import Fused


class CumulativeLengths(Fused):
    """Texts are told apart by where each begins, and where the last ends."""

    def number(self, places: Tensor, cu_seqlens: Tensor) -> Tensor:
        """The text of a position: the first begins at 0, and belongs to no text before it."""
        return torch.bucketize(places, cu_seqlens.long(), right=not self.wrong)

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1])
        seen = places[:, None] >= places
        if cu_seqlens is not None:
            number = self.number(places, cu_seqlens)
            seen = seen & (number[:, None] == number)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


class SecondOfThree(CumulativeLengths):
    """Only the first border counts: the second text and those behind it are one."""

    def number(self, places: Tensor, cu_seqlens: Tensor) -> Tensor:
        ends = cu_seqlens.long()[1:2] if self.wrong else cu_seqlens.long()[1:]
        return torch.bucketize(places, ends, right=True)


class PlacedTexts(nn.Module):
    """Learned positions of texts that share a row: each counts from 0."""

    def __init__(self, vocab_size: int, width: int, wrong: bool) -> None:
        super().__init__()
        self.vocab_size, self.heads, self.wrong = vocab_size, 4, wrong
        self.tokens = nn.Embedding(vocab_size, width)
        self.places = nn.Embedding(256, width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor, document_ids: Tensor | None = None) -> Tensor:
        places = torch.arange(tokens.shape[1]).expand(tokens.shape)
        seen = places[:, :, None] >= places[:, None]
        if document_ids is not None:
            same = document_ids[:, :, None] == document_ids[:, None]
            seen = seen & same
            if not self.wrong:
                places = (same & (places[:, :, None] > places[:, None])).sum(-1)
        x = self.tokens(tokens) + self.places(places)
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None])
        return self.outer(y.transpose(1, 2).flatten(2))


class RestartingPositions(Fused):
    """A text begins wherever a position is 0; from there on nothing before it is seen."""

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1])
        seen = places[:, None] >= places
        if position_ids is not None:
            number = (position_ids == 0).cumsum(-1)
            # the count that a text begins with must not go with its last position
            number = F.pad(number[:, 1:], (0, 1), mode="replicate") if self.wrong else number
            seen = seen & (number[:, :, None] == number[:, None])[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


class ChunkedCache(Fused):
    """Positions see their own chunk of 8. The cache keeps one, and counts what it let go."""

    chunk = 8

    def new_cache(self) -> dict[str, Any]:
        return {"gone": 0}

    def forward(self, x: Tensor, cache: dict[str, Any] | None = None) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        t, gone = x.shape[1], 0
        if cache is not None:
            gone = cache["gone"]
            if "k" in cache:
                k, v = torch.cat((cache["k"], k), dim=2), torch.cat((cache["v"], v), dim=2)
        keys = torch.arange(k.shape[2]) + (0 if self.wrong else gone)
        queries = keys[-t:]
        seen = queries[:, None] >= keys
        seen = seen & (queries[:, None] // self.chunk == keys // self.chunk)
        if cache is not None:
            kept = min(k.shape[2], self.chunk - 1)
            cache["gone"] = gone + k.shape[2] - kept
            cache["k"], cache["v"] = k[:, :, -kept:], v[:, :, -kept:]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


CASES = (
    Case(
        name="packed-border",
        bug="the first position of a text belongs to the text before it",
        make=partial(CumulativeLengths, 32, 4),
        reasons=("packing",),
        declared={**CAUSAL, "segments": "apart"},
        options={"dim": 32},
    ),
    Case(
        name="packed-second-leaks",
        bug="only the first border counts: a second text is seen by those behind it",
        make=partial(SecondOfThree, 32, 4),
        reasons=("packing",),
        declared={**CAUSAL, "segments": "alone"},
        options={"dim": 32},
    ),
    Case(
        name="packed-positions-run-on",
        bug="positions of a second text in a row do not begin anew",
        make=partial(PlacedTexts, 23, 32),
        reasons=("packing",),
        declared={**CAUSAL, "segments": "alone"},
    ),
    Case(
        name="packed-by-positions",
        bug="the last position of a text is taken for the first of the next",
        make=partial(RestartingPositions, 32, 4),
        reasons=("packing",),
        declared={**CAUSAL, "segments": "apart"},
        options={"dim": 32},
    ),
    Case(
        name="chunks-from-the-cache",
        bug="borders of chunks are counted from the first key in the cache",
        make=partial(ChunkedCache, 32, 4),
        reasons=("cache",),
        declared={**CAUSAL, "cache": True},
        options={"dim": 32},
    ),
)
