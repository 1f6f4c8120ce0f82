"""What an attention path computes from: tensors, which query attends to which key, scale and bias.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.

A query at position i attends to the key at position j when |i - j| < window (if there is one),
j <= i (if causal) and j is not padding. When there are fewer queries than keys, the queries are the
last ones: query number n stands at position n + keys - queries.
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
    """The mask of causality and window: True where a query attends to a key."""
    ahead = queries[:, None] - keys[None, :]
    mask = torch.ones_like(ahead, dtype=torch.bool)
    if causal:
        mask &= ahead >= 0
    if window is not None:
        mask &= ahead.abs() < window
    return mask


@dataclass(kw_only=True)
class Request:
    """One call of attention.

    Making a request checks nothing. `check` is for tensors that somebody else has made:
    `kernels.attention` calls it. HeadedAttention makes q, k and v that fit, for every layer and
    every step of decoding. It is not frozen, since that would take three times as long to make.
    """

    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]
    causal: bool = True
    window: int | None = None
    scale: float | None = None
    bias: LinearBias | Tensor | None = None  # a tensor broadcasts to [b, h, q, k]
    key_padding: Bool[Tensor, "b k"] | None = None  # True where a key is padding
    # key_padding as numbers to add to scores: 0, or minus infinity. A KV cache has it at hand, and
    # holds zeros where keys and values are padding.
    padding_mask: Float[Tensor, "b 1 1 k"] | None = None
    dropout: float = 0.0  # the probability that a weight is left out; the others are scaled up

    def check(self) -> None:
        """A ValueError that names the rule where the parts do not fit each other."""
        _check_tensors(self.q, self.k, self.v)
        if self.window is not None and self.window < 1:
            raise ValueError(
                f"window is {self.window}; it counts the query's own key, so use 1 or more"
            )
        if self.window is not None and self.window % 1 != 0:
            raise ValueError(f"window is {self.window}; it counts keys, so use a whole number")
        if self.scale is not None and not math.isfinite(self.scale):
            raise ValueError(f"scale is {self.scale}; use a finite number")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it is a probability: 0 to less than 1")
        if self.bias is not None:
            batch, heads, queries, _ = self.q.shape
            check_bias(self.bias, (batch, heads, queries, self.keys), self.q.device)
        if self.key_padding is not None:
            check_padding(self.key_padding, self.k.shape[0], self.k.shape[2], self.k.device)

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
        """How far before and after its own position a query attends; at most as far as keys go."""
        reach = self.queries + self.keys
        side = reach if self.window is None else min(self.window - 1, reach)
        return side, 0 if self.causal else side

    @property
    def covers_all_keys(self) -> bool:
        """Whether there is no window, or one that masks no key."""
        return self.window is None or self.window >= max(self.keys, self.queries)

    @property
    def needs_grad(self) -> bool:
        if not torch.is_grad_enabled():
            return False
        tensors = [self.q, self.k, self.v]
        if isinstance(self.bias, Tensor):
            tensors.append(self.bias)
        elif self.bias is not None:
            tensors.append(self.bias.slopes)
        return any(tensor.requires_grad for tensor in tensors)

    def query_positions(self) -> Int[Tensor, " q"]:
        return torch.arange(self.keys - self.queries, self.keys, device=self.q.device)

    def key_positions(self) -> Int[Tensor, " k"]:
        return torch.arange(self.keys, device=self.q.device)

    def visible(self, queries: slice = ALL, keys: slice = ALL) -> Bool[Tensor, "#b 1 _q _k"]:
        """The whole mask, for all or some queries and keys: True where a query attends to a key."""
        at, to = self.query_positions()[queries], self.key_positions()[keys]
        mask = visible(at, to, self.causal, self.window)
        if self.key_padding is None:
            return mask[None, None]
        return mask & ~self.key_padding[:, None, None, keys]

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

    def clear_padding(self) -> "Request":
        """The same request with zeros where keys and values are padding.

        A weight of 0 does not hide a NaN, since 0 · NaN is NaN. A KV cache has done this already.
        """
        if self.key_padding is None or self.padding_mask is not None:
            return self
        padding = self.key_padding[:, None, :, None]
        return replace(self, k=self.k.masked_fill(padding, 0), v=self.v.masked_fill(padding, 0))

    def trim_keys(self) -> "Request":
        """The same request without the keys that come before every query's window."""
        if self.window is None:
            return self
        first = self.keys - self.queries - (self.window - 1)
        if first <= 0:
            return self
        kept = slice(first, None)
        mask = self.padding_mask
        return replace(
            self,
            k=self.k[:, :, kept],
            v=self.v[:, :, kept],
            bias=self.dense_bias(keys=kept) if isinstance(self.bias, Tensor) else self.bias,
            key_padding=None if self.key_padding is None else self.key_padding[:, kept],
            padding_mask=None if mask is None else mask[..., kept],
        )


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    wrong = _misfit(q, k, v)
    if wrong is not None:
        shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
        raise ValueError(f"{shapes}: {wrong}")
    if not q.device == k.device == v.device:
        raise ValueError(
            f"q is on {q.device}, k on {k.device}, v on {v.device}; move them together"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}; give them one dtype")
    if not q.dtype.is_floating_point:
        raise ValueError(f"q, k and v are {q.dtype}; attention needs floating-point numbers")


def _misfit(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """The rule that the shapes break."""
    if not q.dim() == k.dim() == v.dim() == 4:
        return "each must be [batch, heads, time, width]"
    batch, heads, _, width = q.shape
    key_batch, kv_heads, keys, key_width = k.shape
    value_batch, value_heads, values, _ = v.shape
    if not batch == key_batch == value_batch:
        return "the batch sizes (first axis) differ"
    if kv_heads != value_heads or keys != values:
        return "k and v must have the same heads and time"
    if width != key_width:
        return "q and k must have the same head width (last axis)"
    if 0 in (heads, kv_heads, width):
        return "heads and head width must be 1 or more"
    if heads % kv_heads:
        return (
            f"{heads} query heads do not divide into {kv_heads} key/value heads; "
            "the first number must be a multiple of the second"
        )
    return None


def check_bias(
    bias: LinearBias | Tensor, full: tuple[int, int, int, int], device: torch.device
) -> None:
    """`full` is [b, h, q, k]."""
    values = bias.slopes if isinstance(bias, LinearBias) else bias
    if isinstance(bias, LinearBias):
        fits = bias.slopes.shape == full[1:2]
        rule = f"one slope for each of the {full[1]} heads"
    else:
        fits = bias.dim() <= 4 and all(
            size in (1, wanted)
            for size, wanted in zip(reversed(bias.shape), reversed(full), strict=False)
        )
        rule = f"something that broadcasts to {list(full)}"
    if not fits:
        raise ValueError(f"bias has shape {list(values.shape)}; it must be {rule}")
    if values.device != device:
        raise ValueError(f"bias is on {values.device}, q on {device}; move them together")
    if not values.dtype.is_floating_point:
        raise ValueError(f"bias is {values.dtype}; it is added to scores, so use floating point")


def check_padding(padding: Tensor, batch: int, keys: int, device: torch.device) -> None:
    if padding.shape != (batch, keys):
        raise ValueError(f"key_padding has shape {list(padding.shape)}; it must be {[batch, keys]}")
    if padding.dtype != torch.bool:
        raise ValueError(f"key_padding is {padding.dtype}; it must be bool, True for padding")
    if padding.device != device:
        raise ValueError(f"key_padding is on {padding.device}, k on {device}; move them together")
