"""Heads: token vectors become queries, keys and values, are compared, and come together again.

Axes: b batch, t time, c model width, h query heads, g key/value heads, d head width.

Multi-head, grouped and multi-query attention are one module: they differ in how many key/value
heads the query heads share.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab import registry
from attnlab.attention.cache import Cached, LayerCache
from attnlab.attention.norms import NORM_EPSILON
from attnlab.attention.positions import PositionsSettings
from attnlab.attention.scores import Score
from attnlab.attention.values import FirstValues, TokenValues
from attnlab.config import setting, settings
from attnlab.kernels import Bias, Request, Rotation, Segments, rotate
from attnlab.kernels.request import check_bias, check_counts, check_padding, check_segments
from attnlab.kernels.rotary import check_rotation

Sink = Literal["learned", "fixed"]
Gating = Literal["elementwise", "headwise"]
ValueResidual = Literal["first"]


@runtime_checkable
class HeadSettings(Protocol):
    """How many heads, and how wide: what `attention` in the registry names."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_width(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What a model says of the layer that an attention stands in."""

    width: int
    context: int | None = None
    vocabulary: int | None = None
    layer: int = 0
    positions: PositionsSettings | None = None
    # what is asked of the attention
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    sink: Sink | None = None
    gate: Gating | None = None
    value_residual: ValueResidual | None = None
    value_embedding: bool = False
    shared_kv: int | None = None  # the earlier layer whose keys and values it reads
    norm_heads: bool = False
    head_gains: bool = False  # of those norms
    norm_epsilon: float | None = None
    norm_offset: bool = False
    dropout: float = 0.0
    linear_bias: bool = False
    qkv_bias: bool | None = None  # None: as linear_bias

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(
                f"window is {self.window}; it counts the query's own key, so use 1 or more"
            )

    @property
    def has_qkv_bias(self) -> bool:
        return self.linear_bias if self.qkv_bias is None else self.qkv_bias

    def refuse(self, names: Collection[str], why: str) -> None:
        """A ValueError where one of these is asked for, with what to write instead."""
        for one in fields(self):
            asked = getattr(self, one.name)
            if one.name in names and asked != one.default:
                off = LEFT_OUT.get(one.name, "none")
                setting = "attention_dropout" if one.name == "dropout" else one.name
                raise ValueError(
                    f"{why}, so model.{setting}={'true' if off == 'false' else asked} would not "
                    f"reach it; write model.{setting}={off}"
                )


# how a person leaves out what is asked of an attention, where that is not none
LEFT_OUT = {
    "dropout": "0",
    "norm_heads": "false",
    "head_gains": "false",
    "shared_kv": "false",
    "value_embedding": "false",
}


@runtime_checkable
class LayerSettings(HeadSettings, Protocol):
    """An attention that makes a module of its own, called as HeadedAttention is."""

    def build(self, layer: Layer) -> nn.Module: ...


def takes_scores(attention: str) -> bool:
    """Whether a registered attention can have any score: no module of its own stands for it."""
    return not isinstance(registry.load("attention", attention)(), LayerSettings)


def is_recurrent(attention: str) -> bool:
    """Whether a registered attention keeps a state, and compares no queries with keys."""
    return getattr(registry.load("attention", attention), "recurrent", False)


HEAD_WIDTH = "coordinates of a query, key or value"


@settings
class MultiHead:
    """Every query head has a key/value head of its own."""

    heads: int = setting(4, low=1, about="query heads, and as many key/value heads")
    head_width: int | None = setting(None, low=1, none="width / heads", about=HEAD_WIDTH)

    @property
    def kv_heads(self) -> int:
        return self.heads


@settings
class Grouped:
    """Query head i reads key/value head i // (heads // kv_heads)."""

    heads: int = setting(4, low=1, about="query heads, a multiple of kv_heads")
    kv_heads: int = setting(2, low=1, about="key/value heads, each shared by heads / kv_heads")
    head_width: int | None = setting(None, low=1, none="width / heads", about=HEAD_WIDTH)

    def check(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"attention.heads {self.heads} is not a multiple of attention.kv_heads "
                f"{self.kv_heads}; every key/value head must serve the same number of query heads"
            )


@settings
class MultiQuery:
    """All query heads share one key/value head."""

    heads: int = setting(4, low=1, about="query heads, all reading one key/value head")
    head_width: int | None = setting(None, low=1, none="width / heads", about=HEAD_WIDTH)

    @property
    def kv_heads(self) -> int:
        return 1


def head_width(settings: HeadSettings, width: int) -> int:
    if settings.head_width is not None:
        return settings.head_width
    maps: int = getattr(settings, "maps", 1)  # of weights, that a head has
    parts = settings.heads * maps
    if width % parts:
        below = width - width % parts
        near = f"{below} or {below + parts}" if below else f"{parts}"
        of_maps = "" if maps == 1 else f" of {maps} maps"
        raise ValueError(
            f"width {width} does not divide into {settings.heads} heads{of_maps}; "
            f"use a width of {near}, or set model.attention.head_width"
        )
    return width // parts


def rotary_width(settings: HeadSettings, width: int) -> int:
    """Coordinates of a query or key that positions can turn."""
    own: int | None = getattr(settings, "rotary_width", None)
    return own or head_width(settings, width)


def combinations() -> list[tuple[str, str]]:
    """Every attention that compares queries with keys, and every score that it can have."""
    scores = [option.name for option in registry.options("score")]
    return [
        (option.name, score)
        for option in registry.options("attention")
        for score in scores
        if not is_recurrent(option.name) and (score == "scaled-dot" or takes_scores(option.name))
    ]


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """What holds in every layer of a model for one call: causality, positions and padding.

    A model makes and checks them once, and hands them to each of its layers.
    """

    causal: bool = True
    rotary: Rotation | None = None  # of the tokens of this call
    bias: Bias | Tensor | None = None  # a tensor has all tokens so far as its last axis
    temperature: Float[Tensor, "#b 1 t 1"] | None = None  # what queries are multiplied by
    key_padding: Bool[Tensor, "b t"] | None = None  # True where a token of this call is padding
    prefix: Int[Tensor, " b"] | None = None  # tokens at the beginning that all others attend to
    segments: Segments | None = None  # documents in a row
    tokens: Int[Tensor, "b t"] | None = None  # whose vectors these are
    first_values: list[Tensor] = field(default_factory=list)  # of the first layer, once it has run
    # of layers whose keys and values are read by others: None until they have run
    shared: dict[int, Cached | None] = field(default_factory=dict)

    def tempered(self, q: Float[Tensor, "b h t d"]) -> Float[Tensor, "b h t d"]:
        """Queries with their temperature, if they have one."""
        return q if self.temperature is None else (q * self.temperature).to(q.dtype)

    def check(
        self,
        batch: int,
        time: int,
        heads: int,
        head_width: int,
        device: torch.device,
        *,
        read: int = 0,
    ) -> None:
        """A ValueError that names the rule where something does not fit the tokens or heads.

        `read` tokens of the same texts came before.
        """
        if self.rotary is not None:
            check_rotation(self.rotary, batch, time, head_width)
        if self.bias is not None:
            check_bias(self.bias, (batch, heads, time, read + time), device)
        if self.key_padding is not None:
            check_padding(self.key_padding, batch, time, device)
        if self.prefix is not None:
            check_counts("prefix", self.prefix, batch, read + time, device)
        if self.segments is not None:
            check_segments("tokens", self.segments.queries, batch, time, device)


class HeadedAttention(nn.Module):
    """The interface of all attentions: `forward(x, *, options, cache)`.

    Others change how queries, keys and values are made (`_make_projections`, `request`) or what is
    done with them (`attended`, `weights`).
    """

    def __init__(self, settings: HeadSettings, score: Score, layer: Layer) -> None:
        super().__init__()
        self.heads, self.kv_heads = settings.heads, settings.kv_heads
        self.head_width = head_width(settings, layer.width)
        self.rotary_width = rotary_width(settings, layer.width)
        self.window, self.chunk, self.soft_cap = layer.window, layer.chunk, layer.soft_cap
        self.layer, self.shared_kv = layer.layer, layer.shared_kv
        self.sinks: Tensor | None
        if layer.sink == "learned":
            self.sinks = nn.Parameter(torch.zeros(self.heads))
        else:
            fixed = None if layer.sink is None else torch.zeros(self.heads)
            self.register_buffer("sinks", fixed, persistent=False)
        self.score = score
        self.norm_heads = layer.norm_heads
        self.norm_epsilon = NORM_EPSILON if layer.norm_epsilon is None else layer.norm_epsilon
        self.norm_offset = float(layer.norm_offset)
        self.gains: nn.ParameterList | None = None  # of queries and of keys
        if layer.head_gains:
            one = 0.0 if layer.norm_offset else 1.0
            count = 1 if layer.shared_kv is not None else 2
            self.gains = nn.ParameterList(torch.full((self.head_width,), one) for _ in range(count))
        self.drop = nn.Dropout(layer.dropout)  # of weights, within the score
        self._make_projections(settings, layer)
        each = self.merge.in_features // self.heads  # coordinates of a value
        self.gate: Gate | None = None
        if layer.gate is not None:
            self.gate = Gate(layer.gate, layer.width, self.heads, each, bias=layer.linear_bias)
        self.embedding: TokenValues | None = None
        self.residual: FirstValues | None = None
        if layer.shared_kv is not None:
            return  # its values are made elsewhere
        if layer.value_embedding:
            assert layer.vocabulary is not None
            self.embedding = TokenValues(layer.vocabulary, self.kv_heads, each)
        if layer.value_residual is not None:
            self.residual = FirstValues(layer.layer)

    def _make_projections(self, settings: HeadSettings, layer: Layer) -> None:
        kv_heads = 0 if layer.shared_kv is not None else self.kv_heads
        self.projected = self.heads, kv_heads, kv_heads  # q, k and v in one product
        inner = sum(self.projected) * self.head_width
        self.project = nn.Linear(layer.width, inner, bias=layer.has_qkv_bias)
        self.merge = nn.Linear(self.heads * self.head_width, layer.width, bias=layer.linear_bias)

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        *,
        causal: bool = True,
        rotary: Rotation | None = None,
        bias: Bias | None = None,
        key_padding: Bool[Tensor, "b t"] | None = None,
        cache: LayerCache | None = None,
        options: AttentionOptions | None = None,
    ) -> Float[Tensor, "b t c"]:
        """The attended vectors.

        With a cache, x are the next tokens of the same texts. `options` stand for the four
        arguments before the cache; they are checked already.
        """
        if options is None:
            options = AttentionOptions(
                causal=causal, rotary=rotary, bias=bias, key_padding=key_padding
            )
            options.check(x.shape[0], x.shape[1], self.heads, self.rotary_width, x.device)
            if cache is not None:
                cache.check(x.shape[0])
        out = self.attended(x, options, cache)
        return self.join(out if self.gate is None else out * self.gate(x))

    def attended(
        self, x: Float[Tensor, "b t c"], options: AttentionOptions, cache: LayerCache | None = None
    ) -> Float[Tensor, "b h t _e"]:
        """What each token of x attends to, in every head."""
        return self.score.attend(self.request(x, options, cache))

    def weights(
        self, x: Float[Tensor, "b t c"], options: AttentionOptions
    ) -> Float[Tensor, "b h t t"]:
        """How much each token takes of each other token, to look at."""
        return self.score.weights(self.request(x, options))

    def request(
        self,
        x: Float[Tensor, "b t c"],
        options: AttentionOptions,
        cache: LayerCache | None = None,
    ) -> Request:
        """What the score is given: queries of x, and the keys and values that they attend to."""
        return self._request_of(*self._read(x, options, cache), options)

    def _read(
        self, x: Tensor, options: AttentionOptions, cache: LayerCache | None
    ) -> tuple[Tensor, Cached]:
        """Queries of x, and what they attend to: it goes into the cache here."""
        q, k, v = self._split(self.project(x))
        if options.rotary is not None:
            q = self._rotate(q, options.rotary)
        q = options.tempered(q)
        if self.shared_kv is not None:
            return q, _left_by(self.shared_kv, options)
        if self.embedding is not None:
            v = self.embedding(v, options.tokens)
        if self.residual is not None:
            v = self.residual(v, options.first_values)
        if options.rotary is not None:
            k = self._rotate(k, options.rotary)
        padding = options.key_padding
        held = Cached(k, v, padding) if cache is None else cache.append(k, v, padding)
        if self.layer in options.shared:
            options.shared[self.layer] = held
        return q, held

    def _request_of(
        self, q: Float[Tensor, "b h t d"], held: Cached, options: AttentionOptions
    ) -> Request:
        bias = options.bias
        if isinstance(bias, Tensor):  # a ring holds the last keys only
            bias = bias[..., -held.k.shape[2] :]
        return Request(
            q=q,
            k=held.k,
            v=held.v,
            causal=options.causal,
            window=self.window,
            chunk=self.chunk,
            prefix=options.prefix,
            segments=options.segments,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
            bias=bias,
            key_padding=held.key_padding,
            padding_mask=held.padding_mask,
            dropout=self.drop.p if self.training else 0.0,
        )

    def join(self, out: Float[Tensor, "b h t _e"]) -> Float[Tensor, "b t c"]:
        """The heads side by side, as vectors of the model's width."""
        return self.merge(out.transpose(1, 2).flatten(2))

    def operations(self, context: int) -> float:
        """Of the score in training, for one token of a sample of `context` tokens."""
        return self.operations_of(mean_keys(context, self.window, self.chunk))

    def operations_of(self, keys: float) -> float:
        """The same for one token that attends to `keys` keys."""
        return self.heads * self.score.operations(self.head_width, keys).training

    def _rotate(self, vectors: Tensor, by: Rotation) -> Tensor:
        return rotate(vectors, by)

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = projected.unflatten(-1, (-1, self.head_width))
        queries, keys, values = self.projected
        if self.norm_heads:
            compared, v = heads.split([queries + keys, values], dim=2)
            compared = F.rms_norm(compared, (self.head_width,), eps=self.norm_epsilon)
            q, k = compared.split([queries, keys], dim=2)
            if self.gains is not None:
                q = q * (self.gains[0] + self.norm_offset)
                if keys:
                    k = k * (self.gains[1] + self.norm_offset)
        else:
            q, k, v = heads.split(self.projected, dim=2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _left_by(layer: int, options: AttentionOptions) -> Cached:
    """Keys and values of an earlier layer, which others share."""
    held = options.shared.get(layer)
    if held is None:
        raise ValueError(
            f"this layer reads the keys and values of layer {layer}, which has not run; call the "
            "whole model, or give the options that layer was given"
        )
    return held


class Gate(nn.Module):
    """sigmoid(W x), which what x has attended to is multiplied by before the heads are merged.

    One gate for each coordinate of a head, or one for each head.
    """

    def __init__(self, kind: Gating, width: int, heads: int, head_width: int, *, bias: bool):
        super().__init__()
        self.heads = heads
        each = head_width if kind == "elementwise" else 1
        self.project = nn.Linear(width, heads * each, bias=bias)

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b h t _d"]:
        return self.project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2).sigmoid()


def mean_keys(context: int, window: int | None, chunk: int | None = None) -> float:
    """Keys that a query attends to, on average over a causal sample."""
    if chunk is not None and chunk < context:
        whole, rest = divmod(context, chunk)
        parts = whole * chunk * mean_keys(chunk, window) + rest * mean_keys(rest or 1, window)
        return parts / context
    if window is None or window >= context:
        return (context + 1) / 2
    return window - window * (window - 1) / (2 * context)
