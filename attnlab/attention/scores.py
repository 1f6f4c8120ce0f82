"""Scores: how well a key answers a query. Each one turns q, k, v into the attention's output.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, s score width.

Three of the four are dot products in disguise and run on the kernels. The additive score is not: it
works in chunks of queries so that nothing of size q · k · s is ever kept.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnlab.config import setting, settings
from attnlab.kernels import Request, Rotation, attention, rotate
from attnlab.kernels.reference import masked_softmax

NUMBERS_AT_ONCE = 1 << 24  # of the additive score's inner layer: 64 MB in float32


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Multiplications and additions in products of matrices; nothing elementwise is counted."""

    forward: float
    repeated: float = 0.0  # the part of forward that the backward pass computes again

    @property
    def training(self) -> float:
        """Forward once, and a product for each of its two factors on the way back."""
        return 3 * self.forward + self.repeated


class Score(nn.Module):
    """`forward(q, k, v, rotary=…, **seeing)`: arguments and result as in kernels.attention.

    Queries and keys are rotated before they are compared, whatever the score.
    """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, rotary: Rotation | None = None, **seeing: Any
    ) -> Any:
        if rotary is not None:
            q, k = rotate(q, rotary.last(q.shape[2])), rotate(k, rotary)
        return self.compare(q, k, v, **seeing)

    def compare(self, q: Tensor, k: Tensor, v: Tensor, **seeing: Any) -> Any:
        raise NotImplementedError

    def operations(self, head_width: int, keys: float) -> Operations:
        """Of one query head, for one token that attends to `keys` keys: q·k and weights · v."""
        return Operations(forward=4.0 * head_width * keys)


@settings
class ScaledDot:
    def build(self, heads: int, head_width: int) -> Score:
        return ScaledDotScore()


class ScaledDotScore(Score):
    """score = k·q / √d"""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, rotary: Rotation | None = None, **seeing: Any
    ) -> Any:
        return attention(q, k, v, rotary=rotary, **seeing)  # the kernel may rotate on its way


@settings
class Multiplicative:
    def build(self, heads: int, head_width: int) -> Score:
        return MultiplicativeScore(heads, head_width)


class MultiplicativeScore(Score):
    """score = kᵀ W q / √d: the dot product with a query W q. W starts as the identity."""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(head_width).repeat(heads, 1, 1))

    def compare(self, q: Tensor, k: Tensor, v: Tensor, **seeing: Any) -> Any:
        return attention(q @ self.matrix.transpose(-1, -2), k, v, **seeing)

    def operations(self, head_width: int, keys: float) -> Operations:
        return Operations(forward=2.0 * head_width**2 + 4.0 * head_width * keys)


@settings
class Concatenated:
    def build(self, heads: int, head_width: int) -> Score:
        return ConcatenatedScore(heads, head_width)


class ConcatenatedScore(Score):
    """score = wᵀ[k; q] = a·k + b·q: the dot product of a key (k, 1) with a query (a, b·q)."""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        limit = 1 / math.sqrt(2 * head_width)
        self.for_key = nn.Parameter(torch.empty(heads, head_width).uniform_(-limit, limit))
        self.for_query = nn.Parameter(torch.empty(heads, head_width).uniform_(-limit, limit))

    def compare(self, q: Tensor, k: Tensor, v: Tensor, **seeing: Any) -> Any:
        from_query = (q * self.for_query[:, None]).sum(-1, keepdim=True)
        queries = torch.cat((self.for_key[:, None].expand_as(q), from_query), dim=-1)
        keys = torch.cat((k, torch.ones_like(k[..., :1])), dim=-1)
        return attention(queries, keys, v, scale=1.0, **seeing)

    def operations(self, head_width: int, keys: float) -> Operations:
        return Operations(forward=2.0 * (head_width + 1 + head_width) * keys)


@settings
class Additive:
    width: int | None = setting(
        None, low=1, none="the head width", about="width of the layer under tanh"
    )

    def build(self, heads: int, head_width: int) -> Score:
        return AdditiveScore(heads, head_width, self.width or head_width)


class AdditiveScore(Score):
    """score = wᵀ tanh(W [k; q]), in chunks of queries that the backward pass computes again."""

    def __init__(self, heads: int, head_width: int, score_width: int) -> None:
        super().__init__()
        limit = 1 / math.sqrt(2 * head_width)
        shape = (heads, head_width, score_width)
        self.for_key = nn.Parameter(torch.empty(shape).uniform_(-limit, limit))
        self.for_query = nn.Parameter(torch.empty(shape).uniform_(-limit, limit))
        self.outer = nn.Parameter(torch.randn(heads, score_width) / math.sqrt(score_width))

    def compare(
        self,
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b g k d"],
        v: Float[Tensor, "b g k e"],
        return_weights: bool = False,
        **seeing: Any,
    ) -> Any:
        request = Request(q=q, k=k, v=v, **seeing)
        if request.key_padding is not None:
            hidden = request.key_padding[:, None, :, None]
            request = replace(request, k=k.masked_fill(hidden, 0), v=v.masked_fill(hidden, 0))
        for_key = self.for_key.unflatten(0, (k.shape[1], -1))
        inner_k = torch.einsum("bgkd,ghds->bghks", request.k, for_key).flatten(1, 2)
        inner_q = q @ self.for_query
        outs, weights = [], []
        for queries, keys in self._chunks(request, all_keys=return_weights):
            if return_weights or not torch.is_grad_enabled():
                out, weight = self._chunk(request, inner_q, inner_k, queries, keys)
                weights.append(weight)
            else:
                out, _ = checkpoint(
                    self._chunk,
                    request,
                    inner_q,
                    inner_k,
                    queries,
                    keys,
                    use_reentrant=False,
                    preserve_rng_state=request.dropout > 0,  # the same weights are left out again
                )
            outs.append(out)
        out = torch.cat(outs, dim=2)
        return (out, torch.cat(weights, dim=2)) if return_weights else out

    def operations(self, head_width: int, keys: float) -> Operations:
        """Its tanh, one for every pair and unit of the inner layer, is elementwise: not counted."""
        score_width = self.outer.shape[1]
        inner = 2.0 * head_width * score_width  # of a query, and as much of a key
        scores, values = 2.0 * score_width * keys, 2.0 * head_width * keys
        # the backward pass computes a chunk again up to its last product, which it has no use for
        return Operations(forward=2 * inner + scores + values, repeated=scores)

    def _chunk(
        self, request: Request, inner_q: Tensor, inner_k: Tensor, queries: slice, keys: slice
    ) -> tuple[Tensor, Tensor]:
        inner = torch.tanh(inner_q[:, :, queries, None] + inner_k[:, :, None, keys])
        scores = torch.einsum("bhqks,hs->bhqk", inner, self.outer)
        seen, bias = request.visible(queries, keys), request.dense_bias(queries, keys)
        weights = F.dropout(masked_softmax(scores, seen, bias), request.dropout)
        values = request.v[:, :, keys]
        grouped = weights.unflatten(1, (values.shape[1], -1)).flatten(2, 3)
        return (grouped @ values).reshape(*weights.shape[:3], values.shape[3]), weights

    def _chunks(self, request: Request, all_keys: bool) -> Iterator[tuple[slice, slice]]:
        """Runs of queries and the keys they see, so few that the inner layer stays small."""
        left, right = (request.keys, request.keys) if all_keys else request.band
        band = min(left + right + 1, request.keys)
        numbers = request.q.shape[0] * self.outer.numel() * max(band, 1)
        count = max(NUMBERS_AT_ONCE // max(numbers, 1), 1)
        offset = request.keys - request.queries
        for start in range(0, max(request.queries, 1), count):
            stop = min(start + count, request.queries)
            first = min(max(start + offset - left, 0), request.keys)
            end = max(min(stop + offset + right, request.keys), first)
            yield slice(start, stop), slice(first, end)
