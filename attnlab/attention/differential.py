"""Differential attention (Ye et al. 2024): what two softmax maps both attend to is taken away.

Axes: b batch, t time, c model width, h heads, g key/value heads, d head width; values have 2d.

    out = (softmax(q₁ k₁ᵀ / √d) − λ · softmax(q₂ k₂ᵀ / √d)) v
    λ   = exp(a₁ · b₁) − exp(a₂ · b₂) + start,      start = 0.8 − 0.6 · exp(−0.3 · layer)
    each head:  (1 − start) · RMS-norm(out)

The vectors a and b are learned, one λ for all heads of a layer; layers count from 0. A row of the
difference adds up to 1 − λ, and single weights can be negative.
Cost: two calls of the kernels, each with h heads of keys d and values 2d wide. With the default
head width, projections are those of multi-head attention with 2h heads.
"""

import math
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.attention.cache import LayerCache
from attnlab.attention.heads import (
    AttentionOptions,
    HeadedAttention,
    HeadSettings,
    Layer,
)
from attnlab.attention.norms import NORM_EPSILON
from attnlab.attention.scores import ScaledDotScore
from attnlab.config import refusal, setting, settings
from attnlab.kernels import Request, Rotation, rotate

SPREAD = 0.1  # of the vectors behind λ at the start, as in the paper


@settings
class Differential:
    """Each head subtracts one softmax map, times a learned λ, from another."""

    maps: ClassVar[int] = 2

    heads: int = setting(4, low=1, about="query heads, each with two maps")
    group: int = setting(1, low=1, about="query heads that share a key/value head")
    head_width: int | None = setting(
        None, low=1, none="width / (2 heads)", about="coordinates of a query or key; values: twice"
    )

    def check(self) -> None:
        if self.heads % self.group:
            raise refusal(self, "group", f"it must divide attention.heads, {self.heads}")

    @property
    def kv_heads(self) -> int:
        return self.heads // self.group

    def build(self, layer: Layer) -> "DifferentialAttention":
        return DifferentialAttention(self, layer)


class DifferentialAttention(HeadedAttention):
    def __init__(self, settings: Differential, layer: Layer) -> None:
        super().__init__(settings, ScaledDotScore(), layer)
        self.start = 0.8 - 0.6 * math.exp(-0.3 * layer.layer)

    def _make_projections(self, settings: HeadSettings, layer: Layer) -> None:
        kv_heads = 0 if layer.shared_kv is not None else self.kv_heads
        # q₁, q₂, k₁, k₂ and v, which counts twice since it is twice as wide
        self.projected = 2 * self.heads, 2 * kv_heads, 2 * kv_heads
        inner = sum(self.projected) * self.head_width
        self.project = nn.Linear(layer.width, inner, bias=layer.has_qkv_bias)
        self.norm = nn.RMSNorm(2 * self.head_width, eps=NORM_EPSILON)
        self.merge = nn.Linear(
            self.heads * 2 * self.head_width, layer.width, bias=layer.linear_bias
        )
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.empty(self.head_width).normal_(std=SPREAD)) for _ in range(4)
        )

    @property
    def subtracted(self) -> Float[Tensor, ""]:
        """λ"""
        first = (self.lambda_q1 * self.lambda_k1).sum().exp()
        return first - (self.lambda_q2 * self.lambda_k2).sum().exp() + self.start

    def attended(
        self, x: Float[Tensor, "b t c"], options: AttentionOptions, cache: LayerCache | None = None
    ) -> Float[Tensor, "b h t e"]:
        first, second = map(self.score.attend, self.requests(x, options, cache))
        return (1 - self.start) * self.norm(first - self.subtracted * second)

    def weights(
        self, x: Float[Tensor, "b t c"], options: AttentionOptions
    ) -> Float[Tensor, "b h t t"]:
        """The difference of the two maps."""
        first, second = map(self.score.weights, self.requests(x, options))
        return first - self.subtracted * second

    def requests(
        self, x: Float[Tensor, "b t c"], options: AttentionOptions, cache: LayerCache | None = None
    ) -> tuple[Request, Request]:
        """One of each map; both have the same values."""
        q, held = self._read(x, options, cache)
        (q1, q2), (k1, k2) = q.chunk(2, dim=1), held.k.chunk(2, dim=1)
        first = self._request_of(q1, held._replace(k=k1), options)
        return first, replace(first, q=q2, k=k2)

    def request(
        self, x: Tensor, options: AttentionOptions, cache: LayerCache | None = None
    ) -> Request:
        raise NotImplementedError("a head has two maps: see `requests`")

    def operations_of(self, keys: float) -> float:
        """Of a head two products q·k of width d, and two sums of values of width 2d."""
        return 3 * 2.0 * self.heads * 6 * self.head_width * keys

    def _rotate(self, vectors: Tensor, by: Rotation) -> Tensor:
        """A head's two maps turn alike, also where each head turns in its own way."""
        if by.cos.shape[1] == 1:
            return rotate(vectors, by)
        return torch.cat([rotate(one, by) for one in vectors.chunk(2, dim=1)], dim=1)

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super()._split(projected)
        pairs = v.unflatten(1, (v.shape[1] // 2, 2))
        return q, k, pairs.transpose(2, 3).flatten(3)
