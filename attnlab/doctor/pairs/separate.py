"""A language model with separate projections, attention written out and angles in tables.

Axes: b batch, t time, s keys, h query heads, g key/value heads, d head width, c width.
"""

import math
from struct import pack, unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.doctor.pairs.style import Style


class Matrix(nn.Module):
    """A linear layer whose weight is [in, out]."""

    def __init__(self, inner: int, outer: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inner, outer) / inner**0.5)
        self.bias = nn.Parameter(torch.zeros(outer)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        out = x @ self.weight
        return out if self.bias is None else out + self.bias


def linear(style: Style, inner: int, outer: int) -> nn.Module:
    made = Matrix if style.turned else nn.Linear
    return made(inner, outer, bias=style.bias)


class Norm(nn.Module):
    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = style
        start = torch.zeros if style.one_plus else torch.ones
        self.weight = nn.Parameter(start(style.width))
        self.bias = nn.Parameter(torch.zeros(style.width)) if style.norm == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.style.norm == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.style.epsilon)
        x = x * (1 + self.weight if self.style.one_plus else self.weight)
        return x if self.bias is None else x + self.bias


def activate(x: Tensor, name: str) -> Tensor:
    if name == "silu":
        return F.silu(x)
    if name == "relu-squared":
        return F.relu(x).square()
    if name == "gelu":
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rotate(x: Tensor, style: Style, shift: int) -> Tensor:
    """x [b, h, t, d]"""
    d = style.rotated
    rates = style.base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d) / style.factor
    if style.rounded:
        rates = torch.tensor([unpack("f", pack("f", one))[0] for one in rates], dtype=rates.dtype)
    angles = torch.outer(torch.arange(x.shape[2]) + shift, rates).to(x)
    cos, sin = angles.cos(), angles.sin() * (-1 if style.backward else 1)
    first = x.shape[-1] - d if style.tail else 0
    before, turned, rest = x[..., :first], x[..., first : first + d], x[..., first + d :]
    if style.layout == "half-split":
        one, two = turned.chunk(2, -1)
        turned = torch.cat([one * cos - two * sin, two * cos + one * sin], -1)
    else:
        one, two = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([one * cos - two * sin, two * cos + one * sin], -1).flatten(-2)
    return torch.cat([before, turned, rest], -1)


class Attention(nn.Module):
    def __init__(self, style: Style, layer: int) -> None:
        super().__init__()
        self.style, self.layer = style, layer
        inner = style.kv_heads * style.head_width
        self.wq = linear(style, style.width, style.width)
        self.wk, self.wv = linear(style, style.width, inner), linear(style, style.width, inner)
        self.wo = linear(style, style.width, style.width)
        if style.head_norm:
            self.q_norm = nn.RMSNorm(style.head_width, eps=style.epsilon)
            self.k_norm = nn.RMSNorm(style.head_width, eps=style.epsilon)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        style, group = self.style, self.style.heads // self.style.kv_heads
        q, k, v = (
            one(x).unflatten(-1, (-1, style.head_width)).transpose(1, 2)
            for one in (self.wq, self.wk, self.wv)
        )
        if style.head_norm == "before":
            q, k = self.q_norm(q), self.k_norm(k)
        if style.positions == "rotary":
            q = rotate(q, style, style.shift + style.query_shift)
            k = rotate(k, style, style.shift)
        if style.head_norm == "after":
            q, k = self.q_norm(q), self.k_norm(k)
        k, v = (
            one.repeat(1, group, 1, 1) if style.tiled else one.repeat_interleave(group, 1)
            for one in (k, v)
        )
        scale = style.head_width**-0.5 if style.scale is None else style.scale
        scores = q @ k.transpose(-1, -2)
        scores = scores * (scale * (style.first_layer_scale if self.layer == 0 else 1.0))
        if style.positions == "alibi":
            slopes = 2.0 ** -torch.arange(1, style.heads + 1, dtype=scores.dtype)
            distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
            scores = scores - slopes[:, None, None] * distance
        if style.score_cap is not None:
            scores = style.score_cap * torch.tanh(scores / style.score_cap)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        if style.one_more:
            weights = torch.cat([scores, torch.zeros_like(scores[..., :1])], -1)
            weights = weights.softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        if style.dropout:
            weights = F.dropout(weights, style.dropout, training=True)
        return self.wo((weights @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = style
        self.w1 = linear(style, style.width, style.hidden)
        self.w2 = linear(style, style.hidden, style.width)
        self.w3 = linear(style, style.width, style.hidden) if style.gated else None

    def forward(self, x: Tensor) -> Tensor:
        name = self.style.activation
        if self.w3 is None:
            return self.w2(activate(self.w1(x), name))
        gate, up = (self.w3, self.w1) if self.style.gate_last else (self.w1, self.w3)
        return self.w2(activate(gate(x), name) * up(x))


class Block(nn.Module):
    def __init__(self, style: Style, layer: int) -> None:
        super().__init__()
        self.style = style
        self.norm1, self.attention = Norm(style), Attention(style, layer)
        self.norm2, self.feed_forward = Norm(style), FeedForward(style)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        place, part = self.style.norm_place, self.style.residual
        if place == "before":
            x = x + part * self.attention(self.norm1(x), hidden)
            return x + part * self.feed_forward(self.norm2(x))
        if place == "sum":
            x = self.norm1(x + part * self.attention(x, hidden))
            return self.norm2(x + part * self.feed_forward(x))
        x = x + self.norm1(part * self.attention(x, hidden))
        return x + self.norm2(part * self.feed_forward(x))


class Separate(nn.Module):
    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style, self.context = style, style.context
        self.vocab_size, self.window = style.vocabulary, style.window
        self.tok_embeddings = nn.Embedding(style.vocabulary, style.width)
        if style.positions == "learned":
            rows = style.context + style.first_row
            self.pos_embeddings = nn.Embedding(rows, style.width)
        self.layers = nn.ModuleList(Block(style, n) for n in range(style.depth))
        self.norm = Norm(style)
        if not style.tied:
            self.output = nn.Linear(style.width, style.vocabulary, bias=False)

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        style, length = self.style, tokens.shape[1]
        x = self.tok_embeddings(tokens) * style.embedding_scale
        if style.positions == "learned":
            x = x + self.pos_embeddings(torch.arange(length) + style.first_row)
        distance = torch.arange(length)[:, None] - torch.arange(length)
        hidden = distance < 0
        if style.window is not None:
            hidden = hidden | (distance >= style.window)
        if attention_mask is not None:
            padding = attention_mask == (1 if style.upside_down else 0)
            hidden = hidden | padding[:, None, None]
        for block in self.layers:
            x = block(x, hidden)
        table = self.tok_embeddings.weight if style.tied else self.output.weight
        logits = F.linear(self.norm(x), table)
        if style.logit_cap is not None:
            logits = style.logit_cap * torch.tanh(logits / style.logit_cap)
        return logits
