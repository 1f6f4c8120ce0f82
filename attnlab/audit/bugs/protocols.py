"""Cache bugs in code that shares its cache with the caller in one of the less usual ways.

Axes: b batch, h heads, t new positions, s positions with room, d head width, c width, n state.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs.cases import Case
from attnlab.audit.bugs.fused import Fused

STEPPED = {"causal": True, "cache": True}


def rotated(x: Tensor) -> Tensor:
    """Rotary positions from 0 on, halves paired; x [b, h, t, d]."""
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * speed
    one, other = x.chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((one * cos - other * sin, one * sin + other * cos), dim=-1)


class WholeTextGpt(nn.Module):
    """Takes all tokens with every call; with a cache it computes the last one only.

    Keys are kept as they are and rotated when they are used. What is given back must not be what
    was rotated: with the next token it would be rotated again.
    """

    def __init__(self, vocab_size: int, dim: int, heads: int, wrong: bool) -> None:
        super().__init__()
        self.vocab_size, self.heads, self.wrong = vocab_size, heads, wrong
        self.tokens, self.places = nn.Embedding(vocab_size, dim), nn.Embedding(160, dim)
        self.project, self.logits = nn.Linear(dim, 3 * dim), nn.Linear(dim, vocab_size)

    def forward(
        self, tokens: Tensor, cache: Any = None, return_cache: bool = False
    ) -> Tensor | tuple[Tensor, Any]:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        if cache is not None:
            x = x[:, -1:]
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
        kept, t, s = (k, v), q.shape[2], k.shape[2]
        k = rotated(k)
        if self.wrong and cache is not None:
            kept = (k, v)
        q = rotated(F.pad(q, (0, 0, s - t, 0)))[:, :, s - t :]  # at the end of the text
        seen = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
        logits = self.logits(x + y)
        return (logits, kept) if return_cache else logits


class RoomyAttention(Fused):
    """Makes room for keys and values when it is told to; positions say where they are written."""

    keys: Tensor | None = None
    values: Tensor | None = None
    longest = 144

    def set_kv_cache(self, batch_size: int, dtype: torch.dtype | None = None) -> None:
        width = self.inner.in_features // self.heads
        room = torch.zeros(batch_size, self.heads, self.longest, width, dtype=dtype)
        self.keys, self.values = room, room.clone()

    def forward(self, x: Tensor, input_pos: Tensor | None = None) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1])
        if input_pos is None:
            seen = places <= places[:, None]
        else:
            if self.keys is None or self.values is None:
                raise RuntimeError("there is no room for keys yet; call set_kv_cache first")
            k, v = self.keys.index_copy_(2, input_pos, k), self.values.index_copy_(2, input_pos, v)
            # the rows of a piece are those of its positions, not the first of the table
            rows = input_pos if not self.wrong or len(input_pos) == 1 else places
            seen = torch.arange(self.longest) <= rows[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


class KeptAttention(Fused):
    """Keeps keys and values itself; a text that begins at 0 is a new one, and takes their place."""

    kept: tuple[Tensor, Tensor] | None = None

    def __init__(self, width: int, heads: int, wrong: bool) -> None:
        super().__init__(width, heads, wrong)
        self.table = nn.Embedding(160, width)

    def forward(self, x: Tensor, start_pos: int | None = None) -> Tensor:
        t, first = x.shape[1], start_pos or 0
        x = x + self.table(torch.arange(first, first + t))
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if start_pos is not None:
            if self.kept is not None and (start_pos > 0 or self.wrong):
                k, v = torch.cat((self.kept[0], k), dim=2), torch.cat((self.kept[1], v), dim=2)
            self.kept = k, v
        s = k.shape[2]
        seen = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


class Forgetful(Fused):
    """Keeps keys and values itself until it is told to forget them: both of them."""

    keys: Tensor | None = None
    values: Tensor | None = None

    def reset_cache(self) -> None:
        self.keys = None
        if not self.wrong:
            self.values = None

    def forward(self, x: Tensor, use_cache: bool = False) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        t = x.shape[1]
        if use_cache:
            self.keys = k = k if self.keys is None else torch.cat((self.keys, k), dim=2)
            self.values = v = v if self.values is None else torch.cat((self.values, v), dim=2)
        s = k.shape[2]
        seen = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        y = F.scaled_dot_product_attention(q, k, v[:, :, :s], attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


class StaticAttention(Fused):
    """The caller has tables of keys and values, and says where the new ones are written."""

    def forward(
        self,
        x: Tensor,
        k_cache: Tensor | None = None,
        v_cache: Tensor | None = None,
        cache_position: Tensor | None = None,
    ) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        rows = torch.arange(x.shape[1]) if cache_position is None else cache_position
        if k_cache is not None and v_cache is not None:
            k, v = k_cache.index_copy_(2, rows, k), v_cache.index_copy_(2, rows, v)
        seen = torch.arange(k.shape[2]) <= rows[:, None]
        if self.wrong and k_cache is not None:
            seen = seen | (torch.arange(k.shape[2]) > rows[-1])  # room that nobody wrote to yet
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


class StateBlock(nn.Module):
    """A short convolution and a fading state; a step takes (state, recent inputs)."""

    def __init__(self, width: int, state: int, wrong: bool) -> None:
        super().__init__()
        self.wrong, self.kernel = wrong, 4
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.conv1d = nn.Conv1d(width, width, self.kernel, groups=width, padding=self.kernel - 1)
        self.A_log = nn.Parameter(torch.rand(width, state))
        self.write, self.read = nn.Linear(width, state), nn.Linear(width, state)

    def _next(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Of x [b, c] and a state [b, c, n]."""
        state = state * torch.exp(-self.A_log.exp()) + x[..., None] * self.write(x)[:, None]
        return (state * self.read(x)[:, None]).sum(-1), state

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.enter(x).chunk(2, dim=-1)
        x = F.silu(self.conv1d(x.mT)[..., : x.shape[1]].mT)
        state, outs = x.new_zeros(*x[:, 0].shape, self.A_log.shape[1]), []
        for one in x.unbind(1):
            out, state = self._next(one, state)
            outs.append(out)
        return self.leave(torch.stack(outs, dim=1) * F.silu(gate))

    def step(self, x: Tensor, cache: tuple[Tensor | None, Tensor]) -> tuple[Tensor, Any]:
        state, inputs = cache
        x, gate = self.enter(x).chunk(2, dim=-1)
        recent = torch.cat((inputs, x[..., None]), dim=-1)
        convolved = F.silu(self.conv1d(recent)[..., self.kernel - 1])
        if state is None:
            state = x.new_zeros(*x.shape, self.A_log.shape[1])
        out, state = self._next(convolved, state)
        if self.wrong:  # what was computed, for what came in
            recent = torch.cat((inputs, convolved[..., None]), dim=-1)
        return self.leave(out * F.silu(gate)), (state, recent[..., 1:])


class StateModel(nn.Module):
    """Layers with a state each; the caller makes a list of them before the first step."""

    def __init__(self, width: int, n_layers: int, wrong: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(StateBlock(width, 5, wrong) for _ in range(n_layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x) / math.sqrt(2)
        return x

    def step(self, x: Tensor, caches: list[Any]) -> tuple[Tensor, list[Any]]:
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, StateBlock)
            out, caches[number] = layer.step(x, caches[number])
            x = x + out / math.sqrt(2)
        return x, caches


class PlacedAttention(Fused):
    """Does not count for itself: the caller says at which positions the new tokens stand."""

    def __init__(self, width: int, heads: int, wrong: bool) -> None:
        super().__init__(width, heads, wrong)
        self.table = nn.Embedding(160, width)

    def forward(
        self, x: Tensor, past_key_value: Any = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        if position_ids is None:
            position_ids = torch.arange(x.shape[1])
        x = x + self.table(position_ids)
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=2)
            v = torch.cat((past_key_value[1], v), dim=2)
        t, s = q.shape[2], k.shape[2]
        seen = torch.ones(t, s, dtype=torch.bool).tril(0 if self.wrong and t > 1 else s - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2)), (k, v)


CASES = (
    Case(
        name="rotated-twice",
        bug="keys are given back rotated, and with the next token rotated again",
        make=lambda wrong: WholeTextGpt(29, 32, 4, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
    Case(
        name="first-rows-of-the-room",
        bug="a later piece is masked by the first rows of a table made beforehand",
        make=lambda wrong: RoomyAttention(32, 4, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
    Case(
        name="second-text-appended",
        bug="keys that the module keeps are still there when a text begins at 0 again",
        make=lambda wrong: KeptAttention(32, 4, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
    Case(
        name="half-reset",
        bug="reset_cache forgets the keys of the last text, and not its values",
        make=lambda wrong: Forgetful(32, 4, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
    Case(
        name="unwritten-room",
        bug="room of a static cache that nobody wrote to yet is attended to",
        make=lambda wrong: StaticAttention(32, 4, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
    Case(
        name="state-after-convolution",
        bug="a convolution is given its outputs, not its inputs, with the next step",
        make=lambda wrong: StateModel(16, 2, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
    Case(
        name="told-positions-top-left",
        bug="positions are told and right, and the causal mask is that of the first piece",
        make=lambda wrong: PlacedAttention(32, 4, wrong),
        reasons=("cache",),
        declared=STEPPED,
    ),
)
