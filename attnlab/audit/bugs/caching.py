"""Cache bugs: whole texts come out right, and the same text in pieces does not.

Axes: b batch, h heads, t new positions, s all positions so far, d head width, c width.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs import protocols
from attnlab.audit.bugs.cases import Case
from attnlab.audit.bugs.fused import Fused

STEPPED = protocols.STEPPED


class Joined(Fused):
    """Queries are the last rows of a square; `is_causal` puts them at its top."""

    bias = False

    def new_cache(self) -> dict[str, Tensor]:
        return {}

    def forward(self, x: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat((cache["k"], k), dim=2), torch.cat((cache["v"], v), dim=2)
            cache["k"], cache["v"] = k, v
        t, s = q.shape[2], k.shape[2]
        if self.wrong and t > 1:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            seen = torch.ones(t, s, dtype=torch.bool, device=x.device).tril(s - t)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


@dataclass
class Rolling:
    """`window` slots; position p stands in slot p % window."""

    k: Tensor | None = None
    v: Tensor | None = None
    places: Tensor | None = None  # of the slots, -1 where nothing is
    seen: int = 0


class RollingAttention(nn.Module):
    """Written into the slots and read from them; a long beginning writes over its own start."""

    def __init__(self, width: int, heads: int, window: int, wrong: bool) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.wrong = wrong

    def make_cache(self) -> Rolling:
        return Rolling()

    def forward(self, x: Tensor, cache: Rolling | None = None) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        start = cache.seen if cache else 0
        new = torch.arange(start, start + x.shape[1], device=x.device)
        places = new
        if cache is not None:
            k, v, places = self._remember(cache, k, v, new)
        back = new[:, None] - places[None, :]
        seen = (back >= 0) & (back < self.window) & (places >= 0)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, torch.finfo(q.dtype).min)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def _remember(
        self, cache: Rolling, k: Tensor, v: Tensor, new: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if cache.k is None or cache.v is None or cache.places is None:
            room = (k.shape[0], self.heads, self.window, k.shape[3])
            cache.k, cache.v = k.new_zeros(room), v.new_zeros(room)
            cache.places = new.new_full((self.window,), -1)
        before = cache.k.clone(), cache.v.clone(), cache.places.clone()
        last = slice(-min(len(new), self.window), None)
        slots = new[last] % self.window
        cache.k[:, :, slots], cache.v[:, :, slots] = k[:, :, last], v[:, :, last]
        cache.places[slots] = new[last]
        cache.seen += len(new)
        if self.wrong:
            return cache.k, cache.v, cache.places
        return (
            torch.cat((before[0], k), dim=2),
            torch.cat((before[1], v), dim=2),
            torch.cat((before[2], new)),
        )


def turned(x: Tensor, start: int, base: float = 10000.0) -> Tensor:
    """Rotary positions, halves paired, counted from start."""
    half = x.shape[-1] // 2
    speed = base ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(start, start + x.shape[-2], dtype=torch.float32)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class RotaryDecoder(nn.Module):
    """Each piece of text is turned as if it were the first."""

    def __init__(self, hidden_size: int, num_heads: int, wrong: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.kv_proj = nn.Linear(hidden_size, 2 * hidden_size)
        self.wrong = wrong

    def init_cache(self) -> list[Tensor]:
        return []

    def forward(self, hidden_states: Tensor, past_key_value: list[Tensor] | None = None) -> Tensor:
        b, t, _ = hidden_states.shape
        shape = (b, t, -1, self.head_dim)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k, v = self.kv_proj(hidden_states).view(shape).transpose(1, 2).chunk(2, dim=1)
        past = past_key_value[0].shape[2] if past_key_value else 0
        offset = 0 if self.wrong else past
        q, k = turned(q, offset), turned(k, offset)
        if past_key_value:
            k = torch.cat((past_key_value[0], k), dim=2)
            v = torch.cat((past_key_value[1], v), dim=2)
        if past_key_value is not None:
            past_key_value[:] = [k, v]
        future = torch.ones(t, past + t, dtype=torch.bool, device=q.device).triu(past + 1)
        scores = (q @ k.mT / self.head_dim**0.5).masked_fill(future, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1)


class Past:
    def __init__(self, layers: int) -> None:
        self.kv: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self.length = 0


class PositionedGpt(nn.Module):
    """Two layers with learned positions; the first piece of a text is counted by each of them."""

    def __init__(self, vocab_size: int, n_embd: int, n_head: int, n_layer: int, wrong: bool):
        super().__init__()
        self.vocab_size, self.n_head, self.n_layer = vocab_size, n_head, n_layer
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(512, n_embd)
        self.attn = nn.ModuleList(nn.Linear(n_embd, 3 * n_embd) for _ in range(n_layer))
        self.proj = nn.ModuleList(nn.Linear(n_embd, n_embd) for _ in range(n_layer))
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wrong = wrong

    def new_cache(self) -> Past:
        return Past(self.n_layer)

    def forward(self, idx: Tensor, past: Past | None = None) -> Tensor:
        b, t = idx.shape
        start = 0 if past is None else past.length
        x = self.wte(idx) + self.wpe(torch.arange(start, start + t, device=idx.device))
        for number, (attn, proj) in enumerate(zip(self.attn, self.proj, strict=True)):
            q, k, v = attn(F.layer_norm(x, x.shape[-1:])).view(b, t, 3, self.n_head, -1).unbind(2)
            if past is not None:
                kept = past.kv[number]
                if kept is not None:
                    k, v = torch.cat((kept[0], k), dim=1), torch.cat((kept[1], v), dim=1)
                past.kv[number] = (k, v)
                prefill = kept is None and t > 1
                past.length += t if number == 0 or (self.wrong and prefill) else 0
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
            future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(k.shape[1] - t + 1)
            weights = scores.masked_fill(future, -math.inf).softmax(-1)
            x = x + proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, t, -1))
        return self.lm_head(x)


class WindowedDecoder(Fused):
    """One token at a time needs no causal mask, but still its window."""

    window = 7

    def empty_cache(self) -> None:
        return None

    def forward(self, x: Tensor, cache: Any = None) -> tuple[Tensor, tuple[Tensor, Any]]:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
        t, s = q.shape[2], k.shape[2]
        band = None
        if t > 1 or not self.wrong:
            ones = torch.ones(t, s, dtype=torch.bool, device=x.device)
            band = ones.tril(s - t) & ones.triu(s - t - self.window + 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=band)
        return self.outer(y.transpose(1, 2).flatten(2)), (k, v)


class RecurrentAttention(nn.Module):
    """Linear attention with a state that fades; one memory serves all texts."""

    def __init__(self, channels: int, wrong: bool) -> None:
        super().__init__()
        self.keep = nn.Linear(channels, channels)
        self.key, self.ask = nn.Linear(channels, 8), nn.Linear(channels, 8)
        self.value = nn.Linear(channels, channels)
        self.memory: dict[str, Tensor] = {}
        self.wrong = wrong

    def new_cache(self) -> dict[str, Tensor]:
        return self.memory if self.wrong else {}

    def forward(self, x: Tensor, state: dict[str, Tensor] | None = None) -> Tensor:
        b, t, c = x.shape
        memory = x.new_zeros(b, 8, c)
        if state:
            memory = state["memory"]
        keep = torch.sigmoid(self.keep(x))
        k, v, q = self.key(x), self.value(x), self.ask(x)
        outs = []
        for i in range(t):
            memory = memory * keep[:, i, None] + k[:, i, :, None] * v[:, i, None]
            outs.append((q[:, i, :, None] * memory).sum(1))
        if state is not None:
            state["memory"] = memory
        return torch.stack(outs, dim=1)


class AlibiDecoder(nn.Module):
    """Distances |i - j| of a whole text are made once and cut to size, at the wrong end."""

    def __init__(self, dim: int, heads: int, wrong: bool, longest: int = 256) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim)
        place = torch.arange(longest)
        slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
        distance = (place[:, None] - place[None, :]).abs()
        self.register_buffer("bias", -slopes[:, None, None] * distance)
        self.wrong = wrong

    def new_cache(self) -> list[Tensor]:
        return []

    def forward(self, x: Tensor, kv_cache: list[Tensor] | None = None) -> Tensor:
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if kv_cache is not None:
            if kv_cache:
                k, v = torch.cat((kv_cache[0], k), dim=2), torch.cat((kv_cache[1], v), dim=2)
            kv_cache[:] = [k, v]
        t, s = q.shape[2], k.shape[2]
        rows = slice(0, t) if self.wrong else slice(s - t, s)
        future = torch.ones(t, s, dtype=torch.bool, device=x.device).triu(s - t + 1)
        bias = self.get_buffer("bias")[:, rows, :s].to(q.dtype).masked_fill(future, -math.inf)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return y.transpose(1, 2).flatten(2)


class TupleAttention(Fused):
    """Keys and values go out with the outputs, and come back with the next piece."""

    def forward(
        self, hidden_states: Tensor, past_key_value: tuple | None = None, use_cache: bool = False
    ) -> tuple:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.inner(hidden_states).chunk(3, dim=-1)
        )
        t = q.shape[2]
        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=2)
            v = torch.cat((past_key_value[1], v), dim=2)
        n = k.shape[2]
        present = (k, v) if use_cache else None
        if self.wrong and present is not None and t > 1:
            present = (k[:, :, -t:], v[:, :, -t:])  # a piece replaces what was before it
        seen = torch.ones(t, n, dtype=torch.bool).tril(n - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2)), present


class DictDecoder(nn.Module):
    """Layers share one dictionary, each under its own number."""

    def __init__(self, vocab_size: int, dim: int, depth: int, wrong: bool) -> None:
        super().__init__()
        self.vocab_size, self.depth = vocab_size, depth
        self.tokens = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(depth))
        self.head = nn.Linear(dim, vocab_size)
        self.wrong = wrong

    def forward(self, tokens: Tensor, kv_cache: dict | None = None) -> Tensor:
        x, t = self.tokens(tokens), tokens.shape[1]
        for number, layer in enumerate(self.layers):
            q, k, v = layer(x).chunk(3, dim=-1)
            if kv_cache is not None:
                place = 0 if self.wrong else number
                if number in kv_cache:
                    before = kv_cache[place]
                    k, v = (torch.cat(both, dim=1) for both in zip(before, (k, v), strict=True))
                kv_cache[number] = (k, v)
            n = k.shape[1]
            seen = torch.ones(t, n, dtype=torch.bool).tril(n - t)
            x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.head(x)


class BufferedAttention(Fused):
    """Keys and values lie in tables of the module's own, written from `start_pos` on."""

    keys: Tensor
    values: Tensor

    def __init__(self, width: int, heads: int, max_len: int, wrong: bool) -> None:
        super().__init__(width, heads, wrong)
        room = torch.zeros(8, heads, max_len, width // heads)
        self.register_buffer("keys", room, persistent=False)
        self.register_buffer("values", room.clone(), persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, start_pos: int = 0) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        end = start_pos + t
        self.keys[:b, :, start_pos:end], self.values[:b, :, start_pos:end] = k, v
        seen = torch.ones(t, end, dtype=torch.bool)
        if t > 1:
            seen = seen.tril(0 if self.wrong else start_pos)
        y = F.scaled_dot_product_attention(
            q, self.keys[:b, :, :end], self.values[:b, :, :end], attn_mask=seen
        )
        return self.outer(y.transpose(1, 2).flatten(2))


class TwiceWrong(Fused):
    """A window of 5 keys, with two bugs: one in single steps, one in chunks on a warm cache."""

    bias = False
    window = 5

    def new_cache(self) -> dict[str, Tensor]:
        return {}

    def forward(self, x: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat((cache["k"], k), dim=2), torch.cat((cache["v"], v), dim=2)
            cache["k"], cache["v"] = k, v
        t, s = q.shape[2], k.shape[2]
        first, window = s - t, self.window
        if self.wrong and first and t == 1:
            window += 1  # the slot that should have been given up
        if self.wrong and first and t > 1:
            first = 0  # the chunk is taken for the beginning of the text
        back = torch.arange(first, first + t)[:, None] - torch.arange(s)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=(back >= 0) & (back < window))
        return self.outer(y.transpose(1, 2).flatten(2))


CASES = (
    Case(
        name="window-and-chunks",
        bug="single steps attend to one key too many, and chunks start at position 0: two bugs",
        make=lambda wrong: TwiceWrong(32, 4, wrong),
        reasons=("cache",),
        declared={**STEPPED, "window": 5},
    ),
    Case(
        name="piece-replaces",
        bug="keys given back after a piece of several tokens are those of the piece alone",
        make=lambda wrong: TupleAttention(32, 4, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
    Case(
        name="first-layers-keys",
        bug="in a dictionary of caches every layer reads that of the first",
        make=lambda wrong: DictDecoder(29, 32, 2, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
    Case(
        name="buffers-top-left",
        bug="a later piece sees the tables as if it stood at their beginning",
        make=lambda wrong: BufferedAttention(32, 4, 128, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
    Case(
        name="top-left",
        bug="causal mask aligned top-left when queries are fewer than keys",
        make=lambda wrong: Joined(32, 4, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
    Case(
        name="ring-overwritten",
        bug="ring buffer overwritten by a prefill longer than the window",
        make=lambda wrong: RollingAttention(32, 4, 6, wrong),
        reasons=("cache",),
        declared={**STEPPED, "window": 6},
    ),
    Case(
        name="positions-restart",
        bug="position ids restart with every piece",
        make=lambda wrong: RotaryDecoder(32, 4, wrong),
        reasons=("cache",),
        declared={**STEPPED, "positions": "rotary"},
    ),
    Case(
        name="positions-twice",
        bug="positions counted twice after a prefill",
        make=lambda wrong: PositionedGpt(31, 32, 4, 2, wrong),
        reasons=("cache",),
        declared={**STEPPED, "positions": "absolute"},
    ),
    Case(
        name="window-ignored",
        bug="window ignored when one token is decoded",
        make=lambda wrong: WindowedDecoder(32, 4, wrong),
        reasons=("cache",),
        declared={**STEPPED, "window": 7},
    ),
    Case(
        name="not-reset",
        bug="state of the first text is still there for the second",
        make=lambda wrong: RecurrentAttention(16, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
    Case(
        name="alibi-front-rows",
        bug="ALiBi rows taken from the front of the table while decoding",
        make=lambda wrong: AlibiDecoder(32, 4, wrong),
        reasons=("cache",),
        declared={**STEPPED, "positions": "alibi"},
    ),
    *protocols.CASES,
)
