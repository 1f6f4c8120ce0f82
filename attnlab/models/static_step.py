"""A step of decoding in which nothing depends on Python's numbers, so that it can be replayed.

Axes: b batch, c width, h query heads, g key/value heads, r = h / g, d head width, n places in a
layer's cache, v vocabulary.
Cost: one read of all weights; attention over `keys` places of the cache, of which some are unused.

`Transformer.forward` is the definition. Here the number of tokens read, the age of each row's new
token (how many come before it in its row) and the tokens are tensors on the device, and caches have
buffers that stay where they are (attention/static_cache.py). What differs from step to step is then
memory, not the operations: a CUDA graph of one step serves all that attend to as many places.

It runs on every device. `why_not` says which models it leaves to their own forward pass: code of a
person's own, hooks, scores that are no scaled dot product, values from elsewhere.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnlab.attention.cache import Cache
from attnlab.attention.heads import HeadedAttention
from attnlab.attention.positions import AlibiPositions, Positions, wide
from attnlab.attention.scores import ScaledDotScore
from attnlab.attention.static_cache import StaticLayer, aligned, distances
from attnlab.kernels import sdpa
from attnlab.models.decoding import why_not_standard
from attnlab.models.model import LanguageModel
from attnlab.models.transformer import Block, Transformer

# Those on which a step is captured. None yet: the same steps are right one by one, and no GPU has
# run a graph of them. It will be "cuda"; elsewhere nothing can be captured, and C is faster.
DEVICES: tuple[str, ...] = ()
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LEAST_KEYS = 256  # places that are attended to at first, if there are as many


def why_not(model: LanguageModel) -> str | None:
    """Why a model keeps its own forward pass."""
    if type(model) is not Transformer:
        return "only transformers with a cache have one"
    device = model.embed.weight.device
    if device.type not in DEVICES:
        return f"the model is on the {device.type}, where nothing is captured"
    return why_not_standard(model, device, DTYPES)


class Span(NamedTuple):
    """What a step's queries attend to in caches of one size."""

    place: Int[Tensor, " 1"]  # of the new token
    bias: Float[Tensor, "b #g #r n"]  # added to scores: minus infinity for what is not attended to


class Turn(NamedTuple):
    """x · cos + x[other] · sin: a rotation of any layout, the rest of a head left as it is."""

    cos: Float[Tensor, "b 1 d"]
    sin: Float[Tensor, "b 1 d"]
    other: Int[Tensor, " d"]  # the coordinate that each one is paired with

    def __call__(self, x: Float[Tensor, "b _h d"]) -> Float[Tensor, "b _h d"]:
        paired = x.index_select(-1, self.other)
        return torch.addcmul(x * self.cos, paired.to(self.sin.dtype), self.sin).to(x.dtype)


class Turns(NamedTuple):
    """The turns of all positions."""

    cos: Float[Tensor, "t d"]
    sin: Float[Tensor, "t d"]
    other: Int[Tensor, " d"]

    def at(self, positions: Int[Tensor, "b 1"]) -> Turn:
        cos, sin = (one.index_select(0, positions[:, 0])[:, None] for one in self[:2])
        return Turn(cos, sin, self.other)


class StaticStep:
    """Logits after one new token of each row; the token goes into `cache`, which it owns.

    Weights may change in place, but not move, and gains of heads may not change.
    """

    def __init__(self, model: Transformer, room: int) -> None:
        self.model, self.room = model, aligned(room)
        settings, weight = model.settings, model.embed.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.windows = [settings.window_of(layer) for layer in range(settings.depth)]
        self.layers = [StaticLayer(window, self.room) for window in self.windows]
        self.cache = Cache(self.layers)
        self.schemes = list(model.positions.of_layers())
        self.gains = [_gains(block.attention) for block in model.blocks]  # type: ignore[arg-type]
        slopes = [one.slopes for one in self.schemes if isinstance(one, AlibiPositions)]
        self.slopes = slopes[0].to(wide(self.dtype)) if slopes else None
        # PyTorch's kernel takes scores as they are, and its bias in the dtype of the queries
        exact_bias = self.slopes is None or wide(self.dtype) == self.dtype
        plain = settings.soft_cap is None and settings.sink is None
        self.fused = plain and exact_bias and self.dtype != torch.float64
        self._make_tables()

    def grow(self) -> None:
        """Twice the room: buffers move, and what was recorded with the old ones is void."""
        self.room *= 2
        for layer in self.layers:
            layer.grow(self.room)
        self._make_tables()

    def keys_at(self, length: int) -> int:
        """How many places a step attends to that comes after so many tokens.

        They double, and the last sizes are one: a step costs more with the number of places, and a
        graph is made for each number.
        """
        keys = max(1 << length.bit_length(), LEAST_KEYS)
        return self.room if 2 * keys > self.room else keys

    @torch.no_grad()
    def __call__(
        self,
        tokens: Int[Tensor, "b 1"],
        ages: Int[Tensor, "b 1"],
        length: Int[Tensor, " 1"],
        keys: int,
    ) -> Float[Tensor, "b v"]:
        """`length` is that of the cache, which the caller counts; `keys` is `keys_at` of it."""
        model, longest = self.model, self.model.longest
        # a row that has ended is still read: any position will do
        positions = ages if longest is None else ages.clamp(max=longest - 1)
        x = model.embedded(tokens, positions)
        turns = [None if table is None else table.at(positions) for table in self.tables]
        spans: dict[tuple[int, int | None], Span] = {}
        with sdpa.allowed_backends():
            for number, block in enumerate(model.blocks):
                assert isinstance(block, Block)
                seen, window = min(self.layers[number].places, keys), self.windows[number]
                if window is not None and window >= seen:
                    window = None
                if (seen, window) not in spans:
                    spans[seen, window] = self._span(length, ages, seen, window)
                turn = turns[model.positions.number(number)]
                x = self._block(number, block, x, turn, spans[seen, window])
        return model.logits_of(x)[:, -1]

    def _block(
        self, number: int, block: Block, x: Float[Tensor, "b 1 c"], turn: Turn | None, span: Span
    ) -> Float[Tensor, "b 1 c"]:
        attended = self._attend(number, block.attention_norm(x), turn, span)
        between = x + block.attended_norm(attended)
        inner = block.feedforward(block.feedforward_norm(x if block.parallel else between))
        return between + block.forwarded_norm(inner)

    def _attend(
        self, number: int, x: Float[Tensor, "b 1 c"], turn: Turn | None, span: Span
    ) -> Float[Tensor, "b 1 c"]:
        attention, layer = self.model.blocks[number].attention, self.layers[number]
        assert isinstance(attention, HeadedAttention)
        heads, kv_heads = attention.heads, attention.kv_heads
        projected = attention.project(x)[:, 0].unflatten(-1, (-1, attention.head_width))
        compared, values = projected.split([heads + kv_heads, kv_heads], dim=1)
        if attention.norm_heads:
            width, gains = (attention.head_width,), self.gains[number]
            compared = F.rms_norm(compared, width, eps=attention.norm_epsilon)
            compared = compared if gains is None else compared * gains
        if turn is not None:  # queries and keys at once
            compared = turn(compared)
        layer.k.index_copy_(2, span.place, compared[:, heads:, None])
        layer.v.index_copy_(2, span.place, values[:, :, None])
        q, seen = compared[:, :heads].unflatten(1, (kv_heads, -1)), span.bias.shape[-1]
        out = self._attended(attention, q, layer.k[:, :, :seen], layer.v[:, :, :seen], span.bias)
        return attention.merge(out.flatten(1)[:, None])

    def _attended(
        self,
        attention: HeadedAttention,
        q: Float[Tensor, "b g r d"],
        k: Float[Tensor, "b g n d"],
        v: Float[Tensor, "b g n d"],
        bias: Float[Tensor, "b #g #r n"],
    ) -> Float[Tensor, "b g r d"]:
        """Query heads that share a key/value head are its queries, so no key is repeated."""
        assert isinstance(attention.score, ScaledDotScore)
        scale, cap = attention.score.scale or q.shape[-1] ** -0.5, attention.soft_cap
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
        scores = (q @ k.transpose(-1, -2)).to(bias.dtype) * scale
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        largest = torch.finfo(scores.dtype).max  # infinite scores would give inf - inf = NaN
        scores = scores.clamp(-largest, largest) + bias
        if attention.sinks is None:
            return scores.softmax(-1).to(v.dtype) @ v
        sinks = attention.sinks.to(scores.dtype).view(*q.shape[1:3], 1)
        weights = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), -1).softmax(-1)
        return weights[..., :-1].to(v.dtype) @ v

    def _span(
        self,
        length: Int[Tensor, " 1"],
        ages: Int[Tensor, "b 1"],
        seen: int,
        window: int | None,
    ) -> Span:
        distance = distances(length, self.places[:seen])
        # neither beyond the window, nor beyond the first token of the row: padding, or no token yet
        attended = distance <= (ages if window is None else ages.clamp(max=window - 1))
        zero, off = self.zero, self.off
        if self.slopes is None:
            bias = torch.where(attended, zero, off)[:, None, None]
        else:
            kv_heads = self.model.settings.attention.kv_heads
            bias = torch.where(attended[:, None], -self.slopes[:, None] * distance, off)
            bias = bias.unflatten(1, (kv_heads, -1))
        return Span(length % seen, bias)

    def _make_tables(self) -> None:
        """What steps look up: places, rotations of all positions there is room for."""
        self.places = torch.arange(self.room, device=self.device)
        dtype = self.dtype if self.fused else wide(self.dtype)
        self.zero, self.off = (
            torch.full((), value, dtype=dtype, device=self.device) for value in (0.0, -math.inf)
        )
        self.tables = [self._table(one) for one in self.schemes]

    def _table(self, scheme: Positions) -> Turns | None:
        by = scheme.rotation_of_span(0, self.room, self.device, self.dtype)
        if by is None:
            return None
        attention = self.model.blocks[0].attention
        assert isinstance(attention, HeadedAttention)
        pairs, width = by.cos.shape[-1], attention.head_width
        turned = torch.arange(2 * pairs, device=self.device)
        side_by_side = by.layout == "interleaved"
        first, second = turned.view(pairs, 2).T if side_by_side else turned.view(2, pairs)
        cos, sin = by.cos.new_ones(self.room, width), by.sin.new_zeros(self.room, width)
        other = torch.arange(width, device=self.device)
        for here, there, sign in ((first, second, -1), (second, first, 1)):
            cos[:, here], sin[:, here] = by.cos[0, 0], sign * by.sin[0, 0]
            other[here] = there
        return Turns(cos, sin, other)


def _gains(attention: HeadedAttention) -> Tensor | None:
    """Of the norms of all query heads, then of all key heads."""
    if attention.gains is None:
        return None
    counts = attention.heads, attention.kv_heads
    return torch.cat(
        [
            (one.detach() + attention.norm_offset).expand(count, -1)
            for one, count in zip(attention.gains, counts, strict=True)
        ]
    )
