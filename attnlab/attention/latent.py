"""Latent attention (DeepSeek-V2): keys and values are made of one short vector for each token.

Axes: b batch, t time, c model width, h heads, k keys, n width of a head without its rotary part,
r width of the rotary part, e value width, l kv_rank.

    latent[j] = RMS-norm(W_down x[j])                      what a KV cache keeps, and
    turned[j] = rotate(W_turned x[j])                      this: one rotary key for all heads
    score[i, j] = (q[i] · W_k latent[j] + rotate(q_turned[i]) · turned[j]) / √(n + r)
    out[i] = Σ_j softmax_j(score[i, j]) W_v latent[j]      each head with its own W_k and W_v

Two forms of the same function. The plain one makes the keys and values of every head: for training.
The absorbed one moves the query instead, since q · (W_k latent) = (W_kᵀ q) · latent, and applies
W_v to what is attended to: one key/value head of width l + r, which is what the cache holds.
Cost: a pair of query and key takes 2(n + r + e) operations a head in the plain form and
2(2l + r) in the absorbed one; the cache keeps l + r numbers a token.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.attention.cache import Cached, LayerCache
from attnlab.attention.heads import (
    HEAD_WIDTH,
    AttentionOptions,
    HeadedAttention,
    HeadSettings,
    Layer,
    head_width,
)
from attnlab.attention.norms import NORM_EPSILON
from attnlab.attention.scores import ScaledDotScore
from attnlab.config import setting, settings
from attnlab.kernels import Request, rotate


@settings
class Latent:
    """Keys and values of all heads come out of kv_rank numbers a token, which the cache keeps."""

    heads: int = setting(4, low=1, about="query heads")
    head_width: int | None = setting(
        None, low=1, none="width / heads", about=f"{HEAD_WIDTH}, without the rotary part"
    )
    kv_rank: int = setting(
        64, low=1, about="width of the vector that a token's keys and values are made of"
    )
    q_rank: int | None = setting(
        None, low=1, none="straight from the model's", about="the same for queries"
    )
    rotary_width: int = setting(
        16, low=1, about="coordinates that positions turn, of each query and of one key for all"
    )
    value_width: int | None = setting(
        None, low=1, none="that of a key without its rotary part", about="coordinates of a value"
    )

    @property
    def kv_heads(self) -> int:
        return self.heads

    def build(self, layer: Layer) -> "LatentAttention":
        return LatentAttention(self, layer)


class LatentAttention(HeadedAttention):
    def __init__(self, settings: Latent, layer: Layer) -> None:
        layer.refuse(
            ("norm_heads", "qkv_bias", "value_residual", "value_embedding", "shared_kv"),
            "latent attention makes keys and values of the vectors that its cache keeps, with "
            "nothing between, so that decoding can take both products at once",
        )
        super().__init__(settings, ScaledDotScore(), layer)

    def _make_projections(self, settings: HeadSettings, layer: Layer) -> None:
        assert isinstance(settings, Latent)
        width, bias = layer.width, layer.linear_bias
        heads, self.rank = settings.heads, settings.kv_rank
        self.plain_width = head_width(settings, width)
        self.value_width = settings.value_width or self.plain_width
        together = self.plain_width + self.rotary_width
        self.compress_query: nn.Linear | None = None
        if settings.q_rank is not None:
            self.compress_query = nn.Linear(width, settings.q_rank, bias=bias)
            self.query_norm = nn.RMSNorm(settings.q_rank, eps=NORM_EPSILON)
        self.query = nn.Linear(settings.q_rank or width, heads * together, bias=bias)
        self.compress = nn.Linear(width, self.rank + self.rotary_width, bias=bias)
        self.norm = nn.RMSNorm(self.rank, eps=NORM_EPSILON)
        # never with a bias: a query could not be moved past that
        self.expand = nn.Linear(
            self.rank, heads * (self.plain_width + self.value_width), bias=False
        )
        self.merge = nn.Linear(heads * self.value_width, width, bias=bias)

    def attended(
        self, x: Float[Tensor, "b t c"], options: AttentionOptions, cache: LayerCache | None = None
    ) -> Float[Tensor, "b h t e"]:
        q, held = self.queries(x, options), self.latents(x, options, cache)
        if cache is None or not self.absorbs(q.shape[2], held.k.shape[2]):
            return self.score.attend(self.plain(q, held, options))
        return self.values_of(self.score.attend(self.absorbed(q, held, options)))

    def request(
        self,
        x: Float[Tensor, "b t c"],
        options: AttentionOptions,
        cache: LayerCache | None = None,
    ) -> Request:
        """In the plain form, whose weights are those of the other."""
        return self.plain(self.queries(x, options), self.latents(x, options, cache), options)

    def queries(
        self, x: Float[Tensor, "b t c"], options: AttentionOptions
    ) -> Float[Tensor, "b h t _d"]:
        """The plain part and the rotary part side by side."""
        if self.compress_query is not None:
            x = self.query_norm(self.compress_query(x))
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return options.tempered(self._turn(q, self.plain_width, options))

    def latents(
        self,
        x: Float[Tensor, "b t c"],
        options: AttentionOptions,
        cache: LayerCache | None = None,
    ) -> Cached:
        """What is kept of each token, of x and of those before it in the cache.

        One head of keys: the latent vectors, which are the values too, and the rotary keys.
        """
        latent, turned = self.compress(x).split([self.rank, self.rotary_width], dim=-1)
        k = torch.cat((self.norm(latent), turned), dim=-1)[:, None]
        k, padding = self._turn(k, self.rank, options), options.key_padding
        # values of width 0: the cache keeps one copy
        held = Cached(k, k, padding) if cache is None else cache.append(k, k[..., :0], padding)
        return held._replace(v=held.k[..., : self.rank])

    def plain(
        self, q: Float[Tensor, "b h t _d"], held: Cached, options: AttentionOptions
    ) -> Request:
        """Every head has its own keys and values."""
        both = self.expand(held.v[:, 0]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = both.split([self.plain_width, self.value_width], dim=-1)
        turned = held.k[..., self.rank :].expand(-1, self.heads, -1, -1)
        held = held._replace(k=torch.cat((k, turned), dim=-1), v=v)
        return self._request_of(q, held, options)

    def absorbed(
        self, q: Float[Tensor, "b h t _d"], held: Cached, options: AttentionOptions
    ) -> Request:
        """Queries where the latent vectors are; these are the keys and values of all heads."""
        plain, turned = q.split([self.plain_width, self.rotary_width], dim=-1)
        moved = torch.cat((plain @ self._of_heads()[0], turned), dim=-1)
        return replace(self._request_of(moved, held, options), scale=q.shape[3] ** -0.5)

    def values_of(self, out: Float[Tensor, "b h t l"]) -> Float[Tensor, "b h t e"]:
        """The values of weighted sums of latent vectors."""
        return out @ self._of_heads()[1].mT

    def absorbs(self, queries: int, keys: int) -> bool:
        """Whether the absorbed form takes fewer operations: for few queries after many keys."""
        plain, absorbed = self.costs(queries, keys)
        return absorbed < plain

    def costs(self, queries: int, keys: int) -> tuple[float, float]:
        """Multiplications of a head in the plain form and in the absorbed one."""
        made = self.plain_width + self.value_width
        plain = keys * made * self.rank + queries * keys * (made + self.rotary_width)
        pairs = queries * keys * (2 * self.rank + self.rotary_width)
        return plain, queries * made * self.rank + pairs

    def operations_of(self, keys: float) -> float:
        """Of the plain form, in which it is trained."""
        together = self.plain_width + self.rotary_width + self.value_width
        return 3 * 2.0 * self.heads * together * keys

    def _of_heads(self) -> tuple[Float[Tensor, "h n l"], Float[Tensor, "h e l"]]:
        """W_k and W_v of each head."""
        weight = self.expand.weight.unflatten(0, (self.heads, -1))
        w_k, w_v = weight.split([self.plain_width, self.value_width], dim=1)
        return w_k, w_v

    def _turn(
        self, vectors: Float[Tensor, "b _h t _d"], start: int, options: AttentionOptions
    ) -> Float[Tensor, "b _h t _d"]:
        """The coordinates from `start` on rotated."""
        if options.rotary is None:
            return vectors
        turned = rotate(vectors[..., start:], options.rotary)
        return torch.cat((vectors[..., :start], turned), dim=-1)
