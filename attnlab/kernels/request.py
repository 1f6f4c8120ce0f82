"""What an attention path computes from: tensors, which query attends to which key, scale and bias.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.

    score[i, j] = cap(scale · q[i]·k[j]) + bias[i, j],  cap(x) = soft_cap · tanh(x / soft_cap)

Which keys a query attends to is defined in mask.py. Besides those, a head with a sink has one more
score, that of a key whose value is 0: it takes weight from the others.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlab.kernels.mask import Align, Mask, Reach, Segments
from attnlab.kernels.rotary import Rotation, rotate

ALL = slice(None)


@dataclass(frozen=True)
class LinearBias:
    """Adds -slope · |i - j| to the scores of each head (ALiBi)."""

    slopes: Float[Tensor, " h"]

    @property
    def learned(self) -> Tensor:
        return self.slopes

    def of_distance(self, distance: Int[Tensor, "*any"]) -> Float[Tensor, "h *any"]:
        slopes = self.slopes.view(-1, *(1 for _ in distance.shape))
        return -slopes * distance.abs()


@dataclass(frozen=True)
class DistanceBias:
    """Adds values[h, zero + i - j] to the scores of each head (T5, KERPLE).

    Distances beyond the table take its nearest value.
    """

    values: Float[Tensor, "h n"]
    zero: int  # the column of distance 0; those after it are of keys before the query

    @property
    def learned(self) -> Tensor:
        return self.values

    def of_distance(self, distance: Int[Tensor, "*any"]) -> Float[Tensor, "h *any"]:
        return self.values[:, (distance + self.zero).clamp(0, self.values.shape[1] - 1)]


Bias = LinearBias | DistanceBias


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
    window: int | Reach | None = None
    align: Align = "end"
    chunk: int | None = None
    prefix: Int[Tensor, " b"] | None = None
    segments: Segments | None = None
    key_lengths: Int[Tensor, " b"] | None = None
    scale: float | None = None
    soft_cap: float | None = None
    sinks: Float[Tensor, " h"] | None = None
    bias: Bias | Tensor | None = None  # a tensor broadcasts to [b, h, q, k]
    key_padding: Bool[Tensor, "b k"] | None = None  # True where a key is padding
    # key_padding as numbers to add to scores: 0, or minus infinity. A KV cache has it at hand, and
    # holds zeros where keys and values are padding.
    padding_mask: Float[Tensor, "b 1 1 k"] | None = None
    # Angles of the keys, where q and k are still to be turned; most paths get them turned.
    rotary: Rotation | None = None
    dropout: float = 0.0  # the probability that a weight is left out; the others are scaled up

    def check(self) -> None:
        """A ValueError that names the rule where the parts do not fit each other."""
        _check_tensors(self.q, self.k, self.v)
        check_mask(self)
        if self.scale is not None and not math.isfinite(self.scale):
            raise ValueError(f"scale is {self.scale}; use a finite number")
        if self.soft_cap is not None and not 0 < self.soft_cap < math.inf:
            raise ValueError(
                f"soft_cap is {self.soft_cap}; it bounds scores, so use a finite number above 0"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it is a probability: 0 to less than 1")
        batch, heads, queries, _ = self.q.shape
        if self.sinks is not None:
            _check_sinks(self.sinks, heads, self.q.device)
        if self.bias is not None:
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
    def mask(self) -> Mask:
        start = None
        counts = self.chunk is not None or self.prefix is not None
        if counts and self.key_padding is not None:
            start = self.key_padding.cumprod(1).sum(1)  # keys before a row's first token
        return Mask(
            queries=self.queries,
            keys=self.keys,
            device=self.q.device,
            causal=self.causal,
            window=self.window,
            align=self.align,
            chunk=self.chunk,
            prefix=self.prefix,
            segments=self.segments,
            key_lengths=self.key_lengths,
            start=start,
        )

    @property
    def is_band(self) -> bool:
        """Whether nothing but causality, window and padding decides what a query attends to."""
        return (
            self.align == "end"
            and self.chunk is None
            and self.prefix is None
            and self.segments is None
            and self.key_lengths is None
        )

    @property
    def covers_all_keys(self) -> bool:
        """Whether there is no window, or one that masks no key."""
        if self.window is None:
            return True
        before, after = self.mask.sides
        most = max(self.keys, self.queries) - 1
        return before >= most and (self.causal or after >= most)

    @property
    def is_plain_softmax(self) -> bool:
        """Whether scores are as they are, and weights add up to 1."""
        return self.soft_cap is None and self.sinks is None

    @property
    def needs_grad(self) -> bool:
        if not torch.is_grad_enabled():
            return False
        tensors = [self.q, self.k, self.v]
        if self.bias is not None:
            tensors.append(self.bias if isinstance(self.bias, Tensor) else self.bias.learned)
        if self.sinks is not None:
            tensors.append(self.sinks)
        return any(tensor.requires_grad for tensor in tensors)

    def visible(self, queries: slice = ALL, keys: slice = ALL) -> Bool[Tensor, "#b 1 _q _k"]:
        """The whole mask, for all or some queries and keys: True where a query attends to a key."""
        mask = self.mask.visible(queries, keys)[:, None]
        return mask if self.key_padding is None else mask & ~self.key_padding[:, None, None, keys]

    def dense_bias(self, queries: slice = ALL, keys: slice = ALL) -> Float[Tensor, "..."] | None:
        """The bias as a tensor that broadcasts to [b, h, q, k], for all or some of them."""
        if isinstance(self.bias, Bias):
            at = self.mask.positions(queries)[:, :, None]
            to = torch.arange(self.keys, device=self.q.device)[keys]
            return self.bias.of_distance(at - to).transpose(0, 1).to(self.q.dtype)
        if self.bias is None or self.bias.dim() == 0:
            return self.bias
        bias = self.bias if self.bias.shape[-1] == 1 else self.bias[..., keys]
        if bias.dim() > 1 and bias.shape[-2] > 1:
            bias = bias[..., queries, :]
        return bias

    def turn(self) -> "Request":
        """Keys turned by their angles, and queries by those of the places where they stand."""
        if self.rotary is None:
            return self
        of_queries = (
            self.rotary.last(self.queries)
            if self.is_band
            else self.rotary.at(self.mask.positions())
        )
        q, k = rotate(self.q, of_queries), rotate(self.k, self.rotary)
        return replace(self, q=q, k=k, rotary=None)

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
        if self.window is None or not self.is_band:
            return self
        first = self.keys - self.queries - self.mask.sides[0]
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
            rotary=None if self.rotary is None else self.rotary.last(self.keys - first),
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


def check_mask(request: Request) -> None:
    """What decides which keys a query attends to, and what excludes each other."""
    window, chunk = request.window, request.chunk
    _check_window(window, request.causal)
    if request.align not in ("end", "start"):
        raise ValueError(
            f"align is {request.align!r}; queries are the last of the keys ('end') or the first "
            "('start')"
        )
    if chunk is not None and (chunk < 1 or chunk % 1 != 0):
        raise ValueError(f"chunk is {chunk}; it counts positions, so use 1 or more")
    batch, keys, device = request.k.shape[0], request.keys, request.k.device
    if request.prefix is not None:
        for name in ("window", "chunk", "segments"):
            if getattr(request, name) is not None:
                raise ValueError(
                    f"prefix and {name} exclude each other: a query past the {name} would attend "
                    "to keys in two places; leave one out"
                )
        check_counts("prefix", request.prefix, batch, keys, device)
    if request.key_lengths is not None:
        if request.segments is not None:
            raise ValueError(
                "key_lengths and segments exclude each other; give what is past the last document "
                "a number of its own"
            )
        check_counts("key_lengths", request.key_lengths, batch, keys, device)
    if request.segments is not None:
        check_segments("keys", request.segments.keys, batch, keys, device)
        check_segments("queries", request.segments.queries, batch, request.queries, device)


def _check_window(window: int | Reach | None, causal: bool) -> None:
    if isinstance(window, Reach):
        for name in ("before", "after"):
            side = getattr(window, name)
            if side is not None and (side < 0 or side % 1 != 0):
                raise ValueError(
                    f"window.{name} is {side}; it counts keys beside the query's own, so use 0 or "
                    "more, or None for all"
                )
        if causal and window.after:
            raise ValueError(
                f"window.after is {window.after}, and with causal=True no query attends to later "
                "keys; use after=0 or causal=False"
            )
    elif window is not None:
        if window < 1:
            raise ValueError(f"window is {window}; it counts the query's own key, so use 1 or more")
        if window % 1 != 0:
            raise ValueError(f"window is {window}; it counts keys, so use a whole number")


def check_counts(name: str, counts: Tensor, batch: int, keys: int, device: torch.device) -> None:
    """A number of keys for each row."""
    if counts.shape != (batch,) or counts.dtype != torch.long:
        raise ValueError(
            f"{name} is {counts.dtype} of shape {list(counts.shape)}; it must be one whole number "
            f"(torch.long) for each of the {batch} rows"
        )
    if counts.device != device:
        raise ValueError(f"{name} is on {counts.device}, k on {device}; move them together")
    if torch.compiler.is_compiling() or not ((counts < 0) | (counts > keys)).any():
        return
    bad = counts[(counts < 0) | (counts > keys)][0].item()
    raise ValueError(f"{name} has {bad}; there are {keys} keys, so use 0 to {keys}")


def check_segments(
    name: str, numbers: Tensor, batch: int, count: int, device: torch.device
) -> None:
    wanted = f"[1 or {batch}, {count}]"
    if numbers.dim() != 2 or numbers.shape[0] not in (1, batch) or numbers.shape[1] != count:
        raise ValueError(
            f"segments of {name} have shape {list(numbers.shape)}; they must be {wanted}"
        )
    if numbers.dtype != torch.long:
        raise ValueError(f"segments of {name} are {numbers.dtype}; use torch.long")
    if numbers.device != device:
        raise ValueError(f"segments are on {numbers.device}, k on {device}; move them together")
    if torch.compiler.is_compiling() or not (numbers.diff() < 0).any():
        return
    row, at = (numbers.diff() < 0).nonzero()[0].tolist()
    pair = numbers[row, at : at + 2].tolist()
    raise ValueError(
        f"segments of {name} go from {pair[0]} back to {pair[1]} in row {row}; documents stand one "
        "after another, so number them in order"
    )


def _check_sinks(sinks: Tensor, heads: int, device: torch.device) -> None:
    if sinks.shape != (heads,) or not sinks.dtype.is_floating_point:
        raise ValueError(
            f"sinks are {sinks.dtype} of shape {list(sinks.shape)}; they must be one score for "
            f"each of the {heads} heads"
        )
    if sinks.device != device:
        raise ValueError(f"sinks are on {sinks.device}, q on {device}; move them together")


def check_bias(bias: Bias | Tensor, full: tuple[int, int, int, int], device: torch.device) -> None:
    """`full` is [b, h, q, k]."""
    values = bias if isinstance(bias, Tensor) else bias.learned
    if isinstance(bias, LinearBias):
        fits = bias.slopes.shape == full[1:2]
        rule = f"one slope for each of the {full[1]} heads"
    elif isinstance(bias, DistanceBias):
        fits = values.dim() == 2 and values.shape[0] == full[1] and values.shape[1] > bias.zero >= 0
        rule = f"[{full[1]} heads, distances], with distance 0 among them"
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
