"""Heads: token vectors become queries, keys and values, are compared, and come together again.

Axes: b batch, t time, c model width, h query heads, g key/value heads, d head width.

Multi-head, grouped and multi-query attention are one module: they differ in how many key/value
heads the query heads share.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnlab.attention.cache import Cached, LayerCache
from attnlab.attention.scores import Score
from attnlab.config import setting, settings
from attnlab.kernels import LinearBias, Request, Rotation, rotate
from attnlab.kernels.request import check_bias, check_padding
from attnlab.kernels.rotary import check_rotation


@runtime_checkable
class HeadSettings(Protocol):
    """How many heads, and how wide: what `attention` in the registry names."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_width(self) -> int | None: ...


# Under RMS-norms. PyTorch's default is the epsilon of the dtype, so that a model would compute
# something else in float64 or bfloat16; this is float32's.
NORM_EPSILON = 2.0**-23

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
    if width % settings.heads:
        below = width - width % settings.heads
        near = f"{below} or {below + settings.heads}" if below else f"{settings.heads}"
        raise ValueError(
            f"width {width} does not divide into {settings.heads} heads; "
            f"use a width of {near}, or set attention.head_width"
        )
    return width // settings.heads


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """What holds in every layer of a model for one call: causality, positions and padding.

    A model makes and checks them once, and hands them to each of its layers.
    """

    causal: bool = True
    rotary: Rotation | None = None  # of the tokens of this call
    bias: LinearBias | None = None
    key_padding: Bool[Tensor, "b t"] | None = None  # True where a token of this call is padding

    def check(
        self, batch: int, time: int, heads: int, head_width: int, device: torch.device
    ) -> None:
        """A ValueError that names the rule where something does not fit the tokens or heads."""
        if self.rotary is not None:
            check_rotation(self.rotary, batch, time, head_width)
        if self.bias is not None:
            check_bias(self.bias, (batch, heads, time, time), device)
        if self.key_padding is not None:
            check_padding(self.key_padding, batch, time, device)


class HeadedAttention(nn.Module):
    def __init__(
        self,
        settings: HeadSettings,
        score: Score,
        *,
        width: int,
        window: int | None = None,
        linear_bias: bool = False,
        norm_heads: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if window is not None and window < 1:
            raise ValueError(f"window is {window}; it counts the query's own key, so use 1 or more")
        self.heads, self.kv_heads = settings.heads, settings.kv_heads
        self.head_width = head_width(settings, width)
        self.window = window
        self.score = score
        self.norm_heads = norm_heads
        self.drop = nn.Dropout(dropout)  # of weights, within the score
        together = (self.heads + 2 * self.kv_heads) * self.head_width
        self.project = nn.Linear(width, together, bias=linear_bias)  # q, k and v in one product
        self.merge = nn.Linear(self.heads * self.head_width, width, bias=linear_bias)

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        *,
        causal: bool = True,
        rotary: Rotation | None = None,
        bias: LinearBias | None = None,
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
            options.check(x.shape[0], x.shape[1], self.heads, self.head_width, x.device)
            if cache is not None:
                cache.check(x.shape[0])
        return self.join(self.score.attend(self.request(x, options, cache)))

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
        q, k, v = self._split(self.project(x))
        if options.rotary is not None:
            q, k = rotate(q, options.rotary), rotate(k, options.rotary)
        padding = options.key_padding
        held = Cached(k, v, padding) if cache is None else cache.append(k, v, padding)
        return Request(
            q=q,
            k=held.k,
            v=held.v,
            causal=options.causal,
            window=self.window,
            bias=options.bias,
            key_padding=held.key_padding,
            padding_mask=held.padding_mask,
            dropout=self.drop.p if self.training else 0.0,
        )

    def join(self, out: Float[Tensor, "b h t d"]) -> Float[Tensor, "b t c"]:
        """The heads side by side, as vectors of the model's width."""
        return self.merge(out.transpose(1, 2).flatten(2))

    def operations(self, context: int) -> float:
        """Of the score in training, for one token of a sample of `context` tokens."""
        keys = mean_keys(context, self.window)
        return self.heads * self.score.operations(self.head_width, keys).training

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = projected.unflatten(-1, (-1, self.head_width))
        if self.norm_heads:
            compared, v = heads.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
            compared = F.rms_norm(compared, (self.head_width,), eps=NORM_EPSILON)
            q, k = compared.split([self.heads, self.kv_heads], dim=2)
        else:
            q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def mean_keys(context: int, window: int | None) -> float:
    """Keys that a query attends to, on average over a causal sample."""
    if window is None or window >= context:
        return (context + 1) / 2
    return window - window * (window - 1) / (2 * context)
