"""Scores: how well a key answers a query. Each one turns q, k, v into the attention's output.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width,
s score width.

Three of the four are dot products in disguise and run on the kernels. The additive score is not: it
works in chunks of queries so that nothing of size q · k · s is ever kept.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnlab.config import setting, settings
from attnlab.kernels import Request, dispatch
from attnlab.kernels.reference import weights_of

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
    """Compares queries with keys. Rotation comes before it, whatever the score."""

    def attend(self, request: Request) -> Float[Tensor, "b h q e"]:
        """The values, added up by the softmax of the scores."""
        raise NotImplementedError

    def weights(self, request: Request) -> Float[Tensor, "b h q k"]:
        """That softmax, to look at: computed anew, for all pairs."""
        raise NotImplementedError

    def operations(self, head_width: int, keys: float) -> Operations:
        """Of one query head, for one token that attends to `keys` keys: q·k and weights · v."""
        return Operations(forward=4.0 * head_width * keys)


class DotProduct(Score):
    """A score that is a dot product, perhaps of other queries and keys."""

    def attend(self, request: Request) -> Float[Tensor, "b h q e"]:
        return dispatch.attend(self.as_dot_product(request))

    def weights(self, request: Request) -> Float[Tensor, "b h q k"]:
        return dispatch.attend_with_weights(self.as_dot_product(request))[1]

    def as_dot_product(self, request: Request) -> Request:
        """The request whose scale · q·k is this score."""
        return request


@runtime_checkable
class ScoreSettings(Protocol):
    """The settings of a score: what `score` in the registry names."""

    def build(self, heads: int, head_width: int) -> Score: ...


@settings
class ScaledDot:
    scale: float | None = setting(
        None, above=0, because="scores are multiplied by it", none="1 / √d", about="factor of k·q"
    )

    def build(self, heads: int, head_width: int) -> Score:
        return ScaledDotScore(self.scale)


class ScaledDotScore(DotProduct):
    """score = k·q / √d, or scale · k·q"""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def as_dot_product(self, request: Request) -> Request:
        return request if self.scale is None else replace(request, scale=self.scale)


@settings
class Multiplicative:
    def build(self, heads: int, head_width: int) -> Score:
        return MultiplicativeScore(heads, head_width)


class MultiplicativeScore(DotProduct):
    """score = kᵀ W q / √d: the dot product with a query W q. W starts as the identity."""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(head_width).repeat(heads, 1, 1))

    def as_dot_product(self, request: Request) -> Request:
        return replace(request, q=request.q @ self.matrix.transpose(-1, -2))

    def operations(self, head_width: int, keys: float) -> Operations:
        return Operations(forward=2.0 * head_width**2 + 4.0 * head_width * keys)


@settings
class Concatenated:
    def build(self, heads: int, head_width: int) -> Score:
        return ConcatenatedScore(heads, head_width)


class ConcatenatedScore(DotProduct):
    """score = wᵀ[k; q] = a·k + b·q: the dot product of a key (k, 1) with a query (a, b·q)."""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        limit = 1 / math.sqrt(2 * head_width)
        self.for_key = nn.Parameter(torch.empty(heads, head_width).uniform_(-limit, limit))
        self.for_query = nn.Parameter(torch.empty(heads, head_width).uniform_(-limit, limit))

    def as_dot_product(self, request: Request) -> Request:
        q, k = request.q, request.k
        from_query = (q * self.for_query[:, None]).sum(-1, keepdim=True)
        queries = torch.cat((self.for_key[:, None].expand_as(q), from_query), dim=-1)
        keys = torch.cat((k, torch.ones_like(k[..., :1])), dim=-1)
        return replace(request, q=queries, k=keys, scale=1.0)

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

    def attend(self, request: Request) -> Float[Tensor, "b h q e"]:
        request = request.clear_padding()
        inner = self._inner(request)
        outs = []
        for queries, keys in self._chunks(request):
            if torch.is_grad_enabled():
                out = checkpoint(
                    self._chunk,
                    request,
                    inner,
                    queries,
                    keys,
                    use_reentrant=False,
                    preserve_rng_state=request.dropout > 0,  # the same weights are left out again
                )
            else:
                out = self._chunk(request, inner, queries, keys)
            outs.append(out)
        return torch.cat(outs, dim=2)

    def weights(self, request: Request) -> Float[Tensor, "b h q k"]:
        request = request.clear_padding()
        inner = self._inner(request)
        found = []
        for queries, keys in self._chunks(request):
            part = self._weights(request, inner, queries, keys)
            found.append(F.pad(part, (keys.start, request.keys - keys.stop)))
        return torch.cat(found, dim=2)

    def operations(self, head_width: int, keys: float) -> Operations:
        """Its tanh, one for every pair and unit of the inner layer, is elementwise: not counted."""
        score_width = self.outer.shape[1]
        inner = 2.0 * head_width * score_width  # of a query, and as much of a key
        scores, values = 2.0 * score_width * keys, 2.0 * head_width * keys
        # the backward pass computes a chunk again up to its last product, which it has no use for
        return Operations(forward=2 * inner + scores + values, repeated=scores)

    def _inner(self, request: Request) -> tuple[Tensor, Tensor]:
        """What the inner layer adds up: of queries [b, h, q, s] and of keys [b, h, k, s]."""
        for_key = self.for_key.unflatten(0, (request.k.shape[1], -1))
        of_keys = torch.einsum("bgkd,ghds->bghks", request.k, for_key).flatten(1, 2)
        return request.q @ self.for_query, of_keys

    def _chunk(
        self, request: Request, inner: tuple[Tensor, Tensor], queries: slice, keys: slice
    ) -> Tensor:
        weights = self._weights(request, inner, queries, keys)
        values = request.v[:, :, keys]
        grouped = weights.unflatten(1, (values.shape[1], -1)).flatten(2, 3)
        return (grouped @ values).reshape(*weights.shape[:3], values.shape[3])

    def _weights(
        self, request: Request, inner: tuple[Tensor, Tensor], queries: slice, keys: slice
    ) -> Tensor:
        of_queries, of_keys = inner
        units = torch.tanh(of_queries[:, :, queries, None] + of_keys[:, :, None, keys])
        scores = torch.einsum("bhqks,hs->bhqk", units, self.outer)
        return weights_of(scores, request, queries, keys)

    def _chunks(self, request: Request) -> Iterator[tuple[slice, slice]]:
        """Runs of queries, and the keys that they attend to.

        So few queries that the inner layer stays small.
        """
        mask = request.mask
        widest = min(sum(mask.sides) + 1, request.keys)
        numbers = request.q.shape[0] * self.outer.numel() * max(widest, 1)
        count = max(NUMBERS_AT_ONCE // max(numbers, 1), 1)
        for start in range(0, max(request.queries, 1), count):
            queries = slice(start, min(start + count, request.queries))
            yield queries, mask.keys_of(queries)
