"""What is asked of an attention path, checked once: tensors, who sees whom, scale and bias.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.

A query at position i sees the key at position j when |i - j| < window (if there is one), j <= i (if
causal) and j is not padding. When there are fewer queries than keys, the queries are the last
ones: query number n stands at position n + keys - queries.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

ALL = slice(None)


def keys_of_course_width(width: int) -> int:
    """The window (in keys) of a course that gives a width w, half of it before the query."""
    return width // 2 + 1


def keys_of_left_reach(left: int) -> int:
    """The window (in keys) of libraries that count keys before the query: FlashAttention, JAX."""
    return left + 1


@dataclass(frozen=True)
class LinearBias:
    """Adds -slope · |i - j| to the scores of each head (ALiBi)."""

    slopes: Float[Tensor, " h"]

    def dense(self, queries: Int[Tensor, " q"], keys: Int[Tensor, " k"]) -> Float[Tensor, "h q k"]:
        distance = (queries[:, None] - keys[None, :]).abs()
        return -self.slopes[:, None, None] * distance


def visible(
    queries: Int[Tensor, " q"], keys: Int[Tensor, " k"], causal: bool, window: int | None
) -> Bool[Tensor, "q k"]:
    """Which positions see which."""
    ahead = queries[:, None] - keys[None, :]
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if causal:
        seen &= ahead >= 0
    if window is not None:
        seen &= ahead.abs() < window
    return seen


@dataclass(frozen=True, kw_only=True)
class Request:
    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]
    causal: bool = True
    window: int | None = None
    scale: float | None = None
    bias: LinearBias | Tensor | None = None  # a tensor broadcasts to [b, h, q, k]
    key_padding: Bool[Tensor, "b k"] | None = None  # True where a key is padding, never to be seen
    dropout: float = 0.0  # the chance of a weight to be left out, the others scaled up

    def __post_init__(self) -> None:
        _check_tensors(self.q, self.k, self.v)
        if self.window is not None and self.window < 1:
            raise ValueError(
                f"window is {self.window}; it counts the query's own key, so use 1 or more"
            )
        if self.scale is not None and not math.isfinite(self.scale):
            raise ValueError(f"scale is {self.scale}; use a finite number")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it is a probability: 0 to less than 1")
        _check_bias(self.bias, self.q, self.keys)
        _check_padding(self.key_padding, self.k)

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    @property
    def group(self) -> int:
        """Query heads to a key/value head: head i reads key/value head i // group."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def factor(self) -> float:
        """What q·k is multiplied by."""
        return 1 / math.sqrt(self.q.shape[3]) if self.scale is None else self.scale

    @property
    def band(self) -> tuple[int, int]:
        """How many positions before and after its own a query sees; never more than there are."""
        reach = self.queries + self.keys
        side = reach if self.window is None else min(self.window - 1, reach)
        return side, 0 if self.causal else side

    @property
    def sees_everything(self) -> bool:
        """Whether the window hides nothing that causality does not hide."""
        return self.window is None or self.window >= max(self.keys, self.queries)

    @property
    def needs_grad(self) -> bool:
        tensors = [self.q, self.k, self.v]
        if isinstance(self.bias, Tensor):
            tensors.append(self.bias)
        elif self.bias is not None:
            tensors.append(self.bias.slopes)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)

    def query_positions(self) -> Int[Tensor, " q"]:
        return torch.arange(self.keys - self.queries, self.keys, device=self.q.device)

    def key_positions(self) -> Int[Tensor, " k"]:
        return torch.arange(self.keys, device=self.q.device)

    def visible(self, queries: slice = ALL, keys: slice = ALL) -> Bool[Tensor, "#b 1 _q _k"]:
        """Who sees whom, among all or some of the queries and keys."""
        at, to = self.query_positions()[queries], self.key_positions()[keys]
        seen = visible(at, to, self.causal, self.window)
        if self.key_padding is None:
            return seen[None, None]
        return seen & ~self.key_padding[:, None, None, keys]

    def dense_bias(self, queries: slice = ALL, keys: slice = ALL) -> Float[Tensor, "..."] | None:
        """The bias as a tensor that broadcasts to [b, h, q, k], for all or some of them."""
        if isinstance(self.bias, LinearBias):
            at, to = self.query_positions()[queries], self.key_positions()[keys]
            return self.bias.dense(at, to).to(self.q.dtype)
        if self.bias is None or self.bias.dim() == 0:
            return self.bias
        bias = self.bias if self.bias.shape[-1] == 1 else self.bias[..., keys]
        if bias.dim() > 1 and bias.shape[-2] > 1:
            bias = bias[..., queries, :]
        return bias

    def trimmed(self) -> "Request":
        """The same request without the keys that come before every query's window."""
        if self.window is None:
            return self
        unseen = self.keys - self.queries - (self.window - 1)
        if unseen <= 0:
            return self
        kept = slice(unseen, None)
        bias = self.dense_bias(keys=kept) if isinstance(self.bias, Tensor) else self.bias
        padding = None if self.key_padding is None else self.key_padding[:, kept]
        k, v = self.k[:, :, kept], self.v[:, :, kept]
        return replace(self, k=k, v=v, bias=bias, key_padding=padding)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"{shapes}: each must be [batch, heads, time, width]")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"{shapes}: the batch sizes (first axis) differ")
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(f"{shapes}: k and v must have the same heads and time")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"{shapes}: q and k must have the same head width (last axis)")
    if 0 in (q.shape[1], k.shape[1], q.shape[3]):
        raise ValueError(f"{shapes}: heads and head width must be 1 or more")
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} query heads do not divide into {k.shape[1]} key/value heads; "
            "the first number must be a multiple of the second"
        )
    if not q.device == k.device == v.device:
        raise ValueError(
            f"q is on {q.device}, k on {k.device}, v on {v.device}; move them together"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}; give them one dtype")
    if not q.dtype.is_floating_point:
        raise ValueError(f"q, k and v are {q.dtype}; attention needs floating-point numbers")


def _check_bias(bias: LinearBias | Tensor | None, q: Tensor, keys: int) -> None:
    if bias is None:
        return
    values = bias.slopes if isinstance(bias, LinearBias) else bias
    full = (q.shape[0], q.shape[1], q.shape[2], keys)
    if isinstance(bias, LinearBias):
        fits = bias.slopes.shape == (q.shape[1],)
        rule = f"one slope for each of the {q.shape[1]} heads"
    else:
        fits = bias.dim() <= 4 and all(
            size in (1, wanted)
            for size, wanted in zip(reversed(bias.shape), reversed(full), strict=False)
        )
        rule = f"something that broadcasts to {list(full)}"
    if not fits:
        raise ValueError(f"bias has shape {list(values.shape)}; it must be {rule}")
    if values.device != q.device:
        raise ValueError(f"bias is on {values.device}, q on {q.device}; move them together")
    if not values.dtype.is_floating_point:
        raise ValueError(f"bias is {values.dtype}; it is added to scores, so use floating point")


def _check_padding(padding: Tensor | None, k: Tensor) -> None:
    if padding is None:
        return
    wanted = (k.shape[0], k.shape[2])
    if padding.shape != wanted:
        raise ValueError(f"key_padding has shape {list(padding.shape)}; it must be {list(wanted)}")
    if padding.dtype != torch.bool:
        raise ValueError(f"key_padding is {padding.dtype}; it must be bool, True for padding")
    if padding.device != k.device:
        raise ValueError(f"key_padding is on {padding.device}, k on {k.device}; move them together")
