"""Position bugs: models that train, and know less of where things stand than they should.

Axes: b batch, h query heads, g key/value heads, t time, d head width, c width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs.cases import Case
from attnlab.audit.bugs.fused import Fused

ROTARY = {"causal": True, "positions": "rotary"}
ALIBI = {"causal": True, "positions": "alibi"}


def rotate_half(x: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class MixedLayouts(Fused):
    """Halves are turned together, so the frequencies must come twice in a row of halves."""

    bias = False

    def _tables(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        d = like.shape[-1]
        inv_freq = 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d)
        freqs = torch.outer(torch.arange(length).float(), inv_freq)
        if self.wrong:
            emb = freqs.repeat_interleave(2, dim=-1)
        else:
            emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(like), emb.sin().to(like)

    def forward(self, hidden_states: Tensor) -> Tensor:
        b, t, _ = hidden_states.shape
        q, k, v = self.inner(hidden_states).view(b, t, 3, self.heads, -1).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        cos, sin = self._tables(t, q)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outer(y.transpose(1, 2).reshape(b, t, -1))


def interleaved_rotation(x: Tensor, axis: int, theta: float = 10000.0) -> Tensor:
    """Neighbouring numbers as one complex number, turned by where it stands along the axis."""
    d = x.shape[-1]
    freqs = theta ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    angles = torch.outer(torch.arange(x.shape[axis], dtype=torch.float32), freqs)
    shape = [1] * x.dim()
    shape[axis], shape[-1] = angles.shape
    turn = torch.polar(torch.ones_like(angles), angles).view(shape)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2).type_as(x)


class ComplexRotary(nn.Module):
    """Rotates after the heads have moved in front of time, along the axis where time was."""

    def __init__(self, dim: int, n_heads: int, wrong: bool) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.wv, self.wo = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        xq, xk, xv = (
            w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        axis = 1 if self.wrong else 2
        xq, xk = interleaved_rotation(xq, axis), interleaved_rotation(xk, axis)
        out = F.scaled_dot_product_attention(xq, xk, xv, is_causal=True)
        return self.wo(out.transpose(1, 2).flatten(2))


class CoarseAngles(Fused):
    """Angles in the precision of the weights; beyond 256 positions fall together."""

    def __init__(self, width: int, heads: int, wrong: bool) -> None:
        super().__init__(width, heads, wrong)
        self.kind = torch.bfloat16 if wrong else torch.float32

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        speed = (10000.0 ** (-torch.arange(half) / half)).to(self.kind)
        angle = (positions.to(self.kind)[:, None, :, None] * speed).float()
        a, b = x.split(half, dim=-1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self._turn(q, position_ids), self._turn(k, position_ids)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outer(y.transpose(1, 2).flatten(2))


class ShortTable(Fused):
    """Rotations from a table of 50 rows: longer texts need more rows, not the same ones again."""

    rows = 50

    def __init__(self, width: int, heads: int, again: bool, wrong: bool) -> None:
        super().__init__(width, heads, wrong)
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        places, half = torch.arange(x.shape[1]), q.shape[-1] // 2
        if self.wrong:
            places = places % self.rows if self.again else places.clamp(max=self.rows - 1)
        angle = places[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.cat((angle, angle), dim=-1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        q, k = (part * cos + rotate_half(part) * sin for part in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outer(y.transpose(1, 2).flatten(2))


def slopes_of(heads: int, first: int = 1) -> Tensor:
    """2^(-8/h), 2^(-16/h), …, 2^-8"""
    return 2.0 ** (-8 * torch.arange(first, heads + first) / heads)


def alibi_attention(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, sign: int = -1) -> Tensor:
    t = q.shape[2]
    back = torch.arange(t)[:, None] - torch.arange(t)[None, :]
    bias = sign * slopes.to(q.dtype)[:, None, None] * back
    scores = q @ k.mT * q.shape[3] ** -0.5 + bias
    return scores.masked_fill(back < 0, -math.inf).softmax(-1) @ v


def _signed(wrong: bool) -> object:
    def attention_with_linear_biases(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return alibi_attention(q, k, v, slopes_of(q.shape[1]), sign=1 if wrong else -1)

    return attention_with_linear_biases


def _sloped(wrong: bool) -> object:
    def alibi(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = query.shape[1]
        return alibi_attention(query, key, value, slopes_of(heads, first=0 if wrong else 1))

    return alibi


class AlibiModel(nn.Module):
    """Two layers in which nearer must count for more, and counts for less."""

    def __init__(self, vocab_size: int, d_model: int, n_heads: int, n_layers: int, wrong: bool):
        super().__init__()
        self.vocab_size, self.n_heads, self.n_layers = vocab_size, n_heads, n_layers
        self.embed = nn.Embedding(vocab_size, d_model)
        self.qkv = nn.ModuleList(nn.Linear(d_model, 3 * d_model) for _ in range(n_layers))
        self.unembed = nn.Linear(d_model, vocab_size)
        self.sign = 1 if wrong else -1

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for qkv in self.qkv:
            q, k, v = qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
            y = alibi_attention(q, k, v, slopes_of(self.n_heads), self.sign)
            x = x + y.transpose(1, 2).flatten(2)
        return self.unembed(x)


def from_interleaved(x: Tensor, heads: int) -> Tensor:
    """Neighbours to halves, head by head: [b, t, heads * d] with pairs (2i, 2i + 1)."""
    return x.unflatten(-1, (heads, -1, 2)).transpose(-1, -2).flatten(-3)


def _converted(wrong: bool) -> object:
    def converted_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        h, g, d = q.shape[1], k.shape[1], q.shape[3]
        flat_q, flat_k = (y.transpose(1, 2).flatten(2) for y in (q, k))
        q = from_interleaved(flat_q, h).unflatten(-1, (h, d)).transpose(1, 2)
        # keys have heads of their own, and fewer of them
        k = from_interleaved(flat_k, h if wrong else g).unflatten(-1, (g, d)).transpose(1, 2)
        angle = torch.arange(q.shape[2])[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
        angle = torch.cat((angle, angle), dim=-1)
        cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        q, k = (y * cos + rotate_half(y) * sin for y in (q, k))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return converted_attention


CASES = (
    Case(
        name="rope-mixed-layouts",
        bug="frequencies interleaved but rotation half-split",
        make=lambda wrong: MixedLayouts(32, 4, wrong),
        reasons=("positions",),
        declared={**ROTARY, "rope_layout": "half-split"},
    ),
    Case(
        name="rope-by-head",
        bug="rotation along the head axis: no positions at all",
        make=lambda wrong: ComplexRotary(32, 4, wrong),
        reasons=("positions",),
        declared={**ROTARY, "rope_layout": "interleaved"},
    ),
    Case(
        name="rope-bfloat16",
        bug="angles in bfloat16",
        make=lambda wrong: CoarseAngles(32, 4, wrong),
        reasons=("positions", "precision"),
        declared=ROTARY,
    ),
    Case(
        name="rope-starts-again",
        bug="positions of the rotations start again at the end of a table of 50",
        make=lambda wrong: ShortTable(32, 4, True, wrong),
        reasons=("positions",),
        declared=ROTARY,
    ),
    Case(
        name="rope-stops",
        bug="positions of the rotations stop at the end of a table of 50",
        make=lambda wrong: ShortTable(32, 4, False, wrong),
        reasons=("positions",),
        declared=ROTARY,
    ),
    Case(
        name="alibi-sign",
        bug="ALiBi favours what is far away",
        make=_signed,
        reasons=("positions",),
        declared=ALIBI,
    ),
    Case(
        name="alibi-sign-model",
        bug="ALiBi favours what is far away, inside a model",
        make=lambda wrong: AlibiModel(23, 32, 4, 2, wrong),
        reasons=("positions",),
        declared=ALIBI,
    ),
    Case(
        name="alibi-slopes",
        bug="ALiBi slopes begin at 1 instead of 2^(-8/h)",
        make=_sloped,
        reasons=("positions",),
        declared=ALIBI,
    ),
    Case(
        name="permuted-keys",
        bug="keys permuted for another rotary layout with the number of query heads",
        make=_converted,
        reasons=("positions", "heads", "scale"),
        declared={**ROTARY, "kv_heads": 2, "heads": 4},
        options={"kv_heads": 2},
    ),
)
