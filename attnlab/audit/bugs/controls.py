"""Controls: correct code of unusual kinds, and conventions that differ without being wrong.

Axes: b batch, h query heads, g key/value heads, t time, s slots, d head width, c width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs.cases import CAUSAL, Control
from attnlab.audit.bugs.fused import Fused
from attnlab.audit.bugs.lengths import CONTROLS as FEW_LENGTHS


def _past(t: int) -> Tensor:
    return torch.ones(t, t, dtype=torch.bool).tril()


class TwoSidedWindow(Fused):
    """An encoder in which a token attends to its neighbours on both sides."""

    reach = 3

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        i = torch.arange(x.shape[1])
        near = (i[:, None] - i[None, :]).abs() <= self.reach
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        return self.outer(y.transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(d_model, 4, 64, dropout=0.1, batch_first=True)

    def forward(self, src: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        return self.layer(src, src_key_padding_mask=key_padding_mask)


def far_window_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(8, 0): eight keys before the query and its own, as some kernels count."""
    i = torch.arange(q.shape[2])
    back = i[:, None] - i[None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(back >= 0) & (back <= 8))


def streaming_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The first two keys stay visible beside a window of six."""
    i = torch.arange(q.shape[2])
    back = i[:, None] - i[None, :]
    seen = (back >= 0) & ((back < 6) | (i[None, :] < 2))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class SinkAttention(nn.Module):
    """A score of its own for nothing: weights add up to less than 1."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~_past(x.shape[1]), -math.inf)
        sink = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]
        return (weights @ v).transpose(1, 2).flatten(2)


def capped_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """No score gets beyond 50."""
    scores = 50 * torch.tanh(q @ k.mT / q.shape[-1] ** 0.5 / 50)
    return scores.masked_fill(~_past(q.shape[2]), -math.inf).softmax(-1) @ v


def unscaled_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Some models put the scale into their initial weights."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)


def multi_query_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bjd->bhij", q, k[:, 0]) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~_past(q.shape[2]), -math.inf).softmax(-1)
    return torch.einsum("bhij,bjd->bhid", weights, v[:, 0])


class NormedAttention(nn.Module):
    """Queries and keys of length 1, and a learned temperature; seven query heads to a key head."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * kv_heads * self.head_dim, bias=False)
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), 10.0))

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.kv_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1) * self.temperature, F.normalize(k, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=True)
        return y.transpose(1, 2).flatten(2)


class BackwardRotary(Fused):
    """Turned by −θ, half of each head, neighbours paired: as good as any other rotation."""

    def _turn(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        speed = 500.0 ** (-torch.arange(0, half, 2, dtype=torch.float64) / half)
        angle = -torch.arange(x.shape[2], dtype=torch.float64)[:, None] * speed
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., :half:2], x[..., 1:half:2]
        moved = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
        return torch.cat((moved, x[..., half:]), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self._turn(q), self._turn(k), v, is_causal=True)
        return self.outer(y.transpose(1, 2).flatten(2))


def key_alibi_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A bias of slope · j alone: what is missing is the same for a whole row of scores."""
    heads, t = q.shape[1], q.shape[2]
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    bias = slopes.to(q.dtype)[:, None, None] * torch.arange(t)
    scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
    return scores.masked_fill(~_past(t), -math.inf).softmax(-1) @ v


class StaticCache(Fused):
    """Room for the longest text is there from the beginning; what is not yet written is masked."""

    bias, longest = False, 128

    def make_cache(self) -> dict[str, Tensor | int]:
        return {"at": 0}

    def forward(self, x: Tensor, kv_cache: dict[str, Tensor | int] | None = None) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        t, at = x.shape[1], 0
        if kv_cache is not None:
            at = int(kv_cache["at"])
            for name, new in (("k", k), ("v", v)):
                if name not in kv_cache:
                    kv_cache[name] = new.new_zeros(*new.shape[:2], self.longest, new.shape[3])
                slots = kv_cache[name]
                assert isinstance(slots, Tensor)
                slots[:, :, at : at + t] = new
                k, v = (slots, v) if name == "k" else (k, slots)
            kv_cache["at"] = at + t
        seen = torch.arange(k.shape[2])[None, :] <= torch.arange(at, at + t)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


class SelfOrCross(nn.Module):
    """Attends to a context if there is one, and else to the text itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.both = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def forward(
        self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        k, v = self.both(x if context is None else context).chunk(2, dim=-1)
        q, k, v = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.query(x), k, v)
        )
        seen = None if mask is None else mask[:, None, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return y.transpose(1, 2).flatten(2)


class TokenShift(nn.Module):
    """No attention at all: the token before, and a causal convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(channels))
        self.conv = nn.Conv1d(channels, channels, 4, padding=3, groups=channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        mixed = x * self.mix + before * (1 - self.mix)
        y = self.conv(mixed.mT)[..., : x.shape[1]].mT
        return self.out(F.silu(y))


class QuietPadding(nn.Module):
    """Outputs at padding are set to 0, and softmax is done in float32 whatever comes in."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT).float() / q.shape[-1] ** 0.5
        seen = _past(x.shape[1])[None, None]
        if attention_mask is not None:
            seen = seen & attention_mask[:, None, None].bool()
        weights = scores.masked_fill(~seen, torch.finfo(torch.float32).min).softmax(-1).to(v)
        y = (weights @ v).transpose(1, 2).flatten(2)
        return y if attention_mask is None else y * attention_mask[..., None].to(y)


CONTROLS = (
    Control(
        name="two-sided-window",
        why="declares nothing, and attends to neighbours on both sides",
        make=lambda: TwoSidedWindow(32, 4),
        options={"dim": 32},
    ),
    Control(
        name="encoder",
        why="declared bidirectional",
        make=lambda: Encoder(32),
        declared={"causal": False, "padding": True},
        options={"d_model": 32},
    ),
    Control(
        name="encoder-undeclared",
        why="attends to everything, and nothing else is declared",
        make=lambda: Encoder(32),
        options={"d_model": 32},
    ),
    Control(
        name="window-before-the-query",
        why="a window by another convention, and none is declared",
        make=lambda: far_window_attention,
        declared=CAUSAL,
    ),
    Control(
        name="first-keys-stay",
        why="a window that keeps the first keys, and none is declared",
        make=lambda: streaming_attention,
        declared=CAUSAL,
    ),
    Control(
        name="sinks",
        why="weights of a softmax with a sink add up to less than 1",
        make=lambda: SinkAttention(32, 4),
        declared={**CAUSAL, "positions": "none"},
    ),
    Control(
        name="capped-scores",
        why="scores are bent, the scale at 0 is as it should be",
        make=lambda: capped_attention,
        declared=CAUSAL,
    ),
    Control(
        name="unscaled",
        why="no scale is declared",
        make=lambda: unscaled_attention,
        declared=CAUSAL,
    ),
    Control(
        name="multi-query",
        why="one key head for all",
        make=lambda: multi_query_attention,
        declared={**CAUSAL, "kv_heads": 1},
        options={"kv_heads": 1},
    ),
    Control(
        name="normed-grouped",
        why="length-1 queries and keys, seven heads to one",
        make=lambda: NormedAttention(56, 7, 1),
        declared={**CAUSAL, "heads": 7, "kv_heads": 1},
        options={"width": 56},
    ),
    Control(
        name="backward-rotary",
        why="rotation by −θ of half a head, with another base",
        make=lambda: BackwardRotary(64, 4),
        declared={**CAUSAL, "positions": "rotary"},
    ),
    Control(
        name="alibi-of-keys",
        why="a bias by key position is one by distance, after softmax",
        make=lambda: key_alibi_attention,
        declared={**CAUSAL, "positions": "alibi"},
    ),
    Control(
        name="static-cache",
        why="decodes from a cache with empty slots",
        make=lambda: StaticCache(32, 4),
        declared={**CAUSAL, "cache": True},
        options={"dim": 32},
    ),
    Control(
        name="token-shift",
        why="causal without attention; reads five tokens",
        make=lambda: TokenShift(24),
        declared=CAUSAL,
        options={"channels": 24},
    ),
    Control(
        name="quiet-padding",
        why="zeros at padding, softmax in float32",
        make=lambda: QuietPadding(32, 4),
        declared={**CAUSAL, "padding": True},
    ),
    Control(
        name="torch-decoder",
        why="PyTorch's own, [t, b, c], causal by its caller's mask",
        make=lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64), 2),
        declared={**CAUSAL, "padding": True, "positions": "none"},
    ),
    Control(
        name="torch-multihead",
        why="attends to itself, or to keys and values of another length",
        make=lambda: nn.MultiheadAttention(32, 4, batch_first=True),
        declared={**CAUSAL, "heads": 4},
    ),
    Control(
        name="optional-context",
        why="without a context it attends to itself, in the same order either way",
        make=lambda: SelfOrCross(32, 4),
    ),
    *FEW_LENGTHS,
)
