"""Padding bugs: rows of a batch that are right alone and wrong beside longer ones.

Axes: b batch, h heads, t time, d head width, c width.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs.cases import Case
from attnlab.audit.bugs.fused import Fused

PADDED = {"causal": True, "padding": True}


class LeftPaddedModel(nn.Module):
    """A text that begins later must not be taken for one that stands later."""

    def __init__(self, vocab_size: int, hidden_size: int, num_layers: int, wrong: bool) -> None:
        super().__init__()
        self.vocab_size, self.num_layers = vocab_size, num_layers
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        self.places = nn.Embedding(300, hidden_size)
        self.qkv = nn.ModuleList(nn.Linear(hidden_size, 3 * hidden_size) for _ in range(num_layers))
        self.lm_head = nn.Linear(hidden_size, vocab_size)
        self.wrong = wrong

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if self.wrong:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        else:
            position_ids = (attention_mask.cumsum(1) - 1).clamp(min=0)
        x = self.tokens(input_ids) + self.places(position_ids)
        t = input_ids.shape[1]
        past = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        seen = past & attention_mask[:, None, None, :].bool()
        seen = seen | torch.eye(t, dtype=torch.bool, device=x.device)  # something, at least itself
        for layer in self.qkv:
            q, k, v = layer(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            x = x + y.transpose(1, 2).flatten(2)
        return self.lm_head(x)


class QueryMasked(nn.Module):
    """Padding is to be left out as keys; left out as queries it is still read."""

    def __init__(self, d_model: int, n_head: int, wrong: bool) -> None:
        super().__init__()
        self.n_head = n_head
        self.w_qs, self.w_ks = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.w_vs, self.fc = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.wrong = wrong

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        q, k, v = (
            w(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
            for w in (self.w_qs, self.w_ks, self.w_vs)
        )
        attn = q @ k.mT / math.sqrt(q.shape[-1])
        if key_padding_mask is not None:
            pad = (
                key_padding_mask[:, None, :, None]
                if self.wrong
                else key_padding_mask[:, None, None]
            )
            attn = attn.masked_fill(pad, -1e9)
        out = attn.softmax(dim=-1) @ v
        return self.fc(out.transpose(1, 2).flatten(2))


class StackedHeads(nn.Module):
    """Heads go into the batch, head after head; the masks must go the same way."""

    def __init__(self, num_units: int, num_heads: int, wrong: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.queries = nn.Linear(num_units, num_units, bias=False)
        self.keys = nn.Linear(num_units, num_units, bias=False)
        self.values = nn.Linear(num_units, num_units, bias=False)
        self.wrong = wrong

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        t = x.shape[1]
        q, k, v = (
            torch.cat(f(x).chunk(self.num_heads, dim=-1), dim=0)
            for f in (self.queries, self.keys, self.values)
        )  # [h b, t, d]
        scores = torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5
        least = torch.finfo(scores.dtype).min
        if padding_mask is not None:
            if self.wrong:
                masks = padding_mask.repeat_interleave(self.num_heads, dim=0)
            else:
                masks = padding_mask.repeat(self.num_heads, 1)
            scores = scores.masked_fill(masks[:, None, :], least)
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, least).softmax(-1)
        return torch.cat(torch.bmm(weights, v).chunk(self.num_heads, dim=0), dim=-1)


class TwoMaskedLayers(nn.Module):
    """Padding on the left attends to nothing; its NaN comes back as a value of the next layer."""

    def __init__(self, dim: int, heads: int, depth: int, wrong: bool) -> None:
        super().__init__()
        self.heads, self.depth = heads, depth
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.inner = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(depth))
        self.outer = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.wrong = wrong

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        t = x.shape[1]
        blocked = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)[None, None]
        if key_padding_mask is not None:
            blocked = blocked | key_padding_mask[:, None, None]
        for norm, inner, outer in zip(self.norms, self.inner, self.outer, strict=True):
            q, k, v = inner(norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            scores = q @ k.mT / q.shape[-1] ** 0.5
            fill = -math.inf if self.wrong else torch.finfo(scores.dtype).min
            weights = scores.masked_fill(blocked, fill).softmax(-1)
            x = x + outer((weights @ v).transpose(1, 2).flatten(2))
        return x


class PackedModel(nn.Module):
    """Texts in one row have numbers; a later one must not see those before it."""

    def __init__(self, vocab_size: int, hidden_size: int, wrong: bool) -> None:
        super().__init__()
        self.vocab_size, self.wrong = vocab_size, wrong
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        self.places = nn.Embedding(128, hidden_size)
        self.qkv = nn.ModuleList(nn.Linear(hidden_size, 3 * hidden_size) for _ in range(2))
        self.lm_head = nn.Linear(hidden_size, vocab_size)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
    ) -> Tensor:
        t = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(t, device=input_ids.device)[None]
        x = self.tokens(input_ids) + self.places(position_ids)
        seen = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()[None, None]
        if document_ids is not None:
            one, other = document_ids[:, None, :, None], document_ids[:, None, None]
            seen = seen & ((one >= other) if self.wrong else (one == other))
        for layer in self.qkv:
            q, k, v = layer(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            x = x + y.transpose(1, 2).flatten(2)
        return self.lm_head(x)


class PackedByStarts(Fused):
    """Where texts begin and end is given; a position at an end belongs to the next text."""

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        t = x.shape[1]
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        if cu_seqlens is not None:
            places = torch.arange(t, device=x.device, dtype=cu_seqlens.dtype)
            text = torch.searchsorted(cu_seqlens[1:], places, right=not self.wrong)
            seen = seen & (text[:, None] == text)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -math.inf)
        return self.outer((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class AddedMask(Fused):
    """A mask [b, 1, 1, t] that is added to scores belongs to the keys, the last axis."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        q, k, v = (
            self.inner(hidden_states).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if attention_mask is not None:
            scores = scores + (attention_mask.mT if self.wrong else attention_mask)
        return self.outer((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def _in_blocks(wrong: bool) -> Callable[..., Tensor]:
    """Texts are filled up to a multiple of 8 with zeros."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        t = q.shape[2]
        more = -t % 8
        k, v = (F.pad(one, (0, 0, 0, more)) for one in (k, v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is None and not wrong:
            mask = torch.ones(len(q), t, dtype=torch.bool)
        if mask is not None:
            seen = F.pad(mask, (0, more))  # with a mask the zeros are hidden, without one not
            scores = scores.masked_fill(~seen[:, None, None], torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ v

    return attend


CASES = (
    Case(
        name="zeros-of-a-block",
        bug="a function of q, k and v fills up a block with zeros, and attends to them unmasked",
        make=_in_blocks,
        reasons=("padding", "weights"),
        declared={"causal": False, "padding": True},
    ),
    Case(
        name="added-to-queries",
        bug="a mask that is added is turned, so that padded queries are hidden and not keys",
        make=lambda wrong: AddedMask(32, 4, wrong),
        reasons=("padding",),
        declared={"causal": False, "padding": True},
    ),
    Case(
        name="left-padding-positions",
        bug="left padding with position ids shared by all rows",
        make=lambda wrong: LeftPaddedModel(37, 32, 2, wrong),
        reasons=("padding",),
        declared={**PADDED, "positions": "absolute"},
    ),
    Case(
        name="masked-queries",
        bug="padding mask on the axis of the queries",
        make=lambda wrong: QueryMasked(32, 4, wrong),
        reasons=("padding",),
        declared={"causal": False, "padding": True},
    ),
    Case(
        name="masks-for-other-rows",
        bug="masks repeated (b, h) for heads laid out (h, b)",
        make=lambda wrong: StackedHeads(24, 3, wrong),
        reasons=("padding", "batch"),
        declared=PADDED,
        options={"width": 24},
    ),
    Case(
        name="masked-row-nan",
        bug="a row of scores that is masked throughout gives NaN, and the next layer reads it",
        make=lambda wrong: TwoMaskedLayers(32, 4, 2, wrong),
        reasons=("padding", "finite"),
        declared=PADDED,
    ),
    Case(
        name="packed-later-sees-earlier",
        bug="in a row of several texts a later one attends to those before it",
        make=lambda wrong: PackedModel(37, 32, wrong),
        reasons=("packing",),
        declared={"causal": True},
    ),
    Case(
        name="packed-seam",
        bug="the first position of a text counts as the last of the one before",
        make=lambda wrong: PackedByStarts(32, 4, wrong),
        reasons=("packing",),
        declared={"causal": True},
        options={"n_embd": 32},
    ),
)
