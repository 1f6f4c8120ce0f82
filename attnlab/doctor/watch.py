"""A model as it runs: its attention, norms and activations are watched, and conventions changed.

Axes: t time of queries, s of keys, d head width.

Functions of torch are met by their names while the model calls them, so that this needs to know
nothing of its code. What another convention needs is changed on the way: queries and keys before
their product, scores before their softmax, a number that a norm adds. What is not met is not
changed, and a patch says whether it met anything.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnlab.doctor.rotation import Rotation, changed, turn

HIDDEN = -1e20  # a score below is a masked one
RECENT = 8  # products that a softmax may belong to
SMALL = 1e-2  # numbers that norms add are below


@dataclass(frozen=True)
class Attention:
    """One softmax over keys."""

    place: str
    q: Tensor  # [..., t, d]
    k: Tensor  # [..., s, d]
    factor: float | None  # on q · k; None if scores are something else
    visible: Tensor | None  # [..., t, s]
    product: int | None  # its number among the products

    @property
    def window(self) -> float | None:
        """How many keys a query attends to, including its own; infinite without a window, and None
        where the mask is another."""
        if self.visible is None:
            return None
        t, s = self.visible.shape[-2:]
        distance = torch.arange(t)[:, None] + (s - t) - torch.arange(s)
        seen = self.visible.reshape(-1, t, s).any(0)
        ahead = bool((seen & (distance < 0)).any())
        reach = int(distance[seen].max()) + 1 if bool(seen.any()) else 0
        band = (distance < reach) if ahead else (distance < reach) & (distance >= 0)
        if ahead or not bool((seen == band).all()):
            return None
        return reach if reach < s else math.inf


@dataclass(frozen=True)
class Output:
    """What a module gave, or what was met inside of it."""

    place: str
    value: Tensor
    heads: bool = False  # [..., h, t, d]


@dataclass
class Trace:
    attentions: list[Attention] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    epsilons: list[float] = field(default_factory=list)
    gelus: list[str] = field(default_factory=list)  # "exact" or "tanh"
    drops: int = 0  # dropouts that drop
    caps: list[tuple[str, float, int]] = field(default_factory=list)  # of what, and which tanh
    scales: dict[int, float] = field(default_factory=dict)  # of an embedding's outputs, by rows


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Conventions of a model that are changed while it runs."""

    rotation: tuple[tuple[str, Any], ...] = ()  # fields of `changed`
    stretch: float = 1.0  # of queries · keys, by what a scaling makes them longer
    shift: int = 0  # positions that queries are turned further than keys
    windows: tuple[float, ...] = ()  # of each attention
    epsilons: tuple[float, ...] = ()  # of each norm
    gelu: str = ""
    embedding: float = 1.0
    silent: bool = False  # no dropout
    caps: tuple[tuple[str, float], ...] = ()  # of scores, of logits; 0: none
    norm_place: str = ""  # of `placing.PLACES`
    head_norm: bool = False  # of queries and keys, after the rotation
    upside_down: bool = False  # the padding mask that it is given
    tied: tuple[tuple[str, str], ...] = ()  # a parameter that is another's values meanwhile


class Watch(TorchFunctionMode):
    """Around a call of the model."""

    def __init__(
        self,
        patch: Patch | None = None,
        own: Rotation | None = None,
        products: tuple[int, ...] = (),
        capping: tuple[int, ...] = (),
        table: Tensor | None = None,
        head_norms: tuple[tuple[Tensor, Tensor], ...] = (),
        record: bool = False,
    ) -> None:
        super().__init__()
        self.patch, self.own = patch or Patch(), own
        self.products, self.capping = products, capping
        self.table, self.head_norms, self.record = table, head_norms, record
        self.trace, self.path = Trace(), [""]
        self.counts = {"product": 0, "attention": 0, "norm": 0, "tanh": 0}
        self.met: set[str] = set()
        self._recent: deque[tuple[int, Tensor, Tensor, Tensor]] = deque(maxlen=RECENT)
        self._before: dict[int, tuple[Tensor, float]] = {}  # what was divided, before a tanh
        self._tanhs: dict[int, tuple[Tensor, str, float, int]] = {}
        self._embedded: dict[int, tuple[Tensor, int]] = {}
        self.target = changed(own, **dict(self.patch.rotation)) if own is not None else None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        handle = _HANDLERS.get(getattr(func, "__name__", ""))
        return func(*args, **kwargs) if handle is None else handle(self, func, args, kwargs)

    # products and softmaxes

    def _turned(self, q: Tensor, k: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Queries [..., t, d] and keys [..., s, d] by another convention of rotary positions."""
        patch = self.patch
        if self.own is None or self.target is None:
            return q * patch.stretch, k
        s = k.shape[-2]
        keys = torch.arange(s)
        queries = keys[s - q.shape[-2] :]
        gains: tuple[Tensor | float, Tensor | float] = (1.0, 1.0)
        if patch.head_norm and number < len(self.head_norms):
            gains = self.head_norms[number]
        if patch.rotation or patch.head_norm:
            q, k = (
                turn(turn(x, self.own, -at) / gain, self.target, at) * gain
                for x, at, gain in ((q, queries, gains[0]), (k, keys, gains[1]))
            )
            self.met.add("rotation")
        if patch.shift:
            q = turn(q, self.target, torch.full_like(queries, patch.shift))
            self.met.add("shift")
        return q * patch.stretch, k

    @property
    def _turns(self) -> bool:
        patch = self.patch
        return bool(patch.rotation or patch.shift or patch.stretch != 1 or patch.head_norm)

    def _matmul(self, func: Any, args: Any, kwargs: Any) -> object:
        number, self.counts["product"] = self.counts["product"], self.counts["product"] + 1
        if len(args) < 2 or args[0].dim() < 3 or args[1].dim() < 3 or kwargs:
            return func(*args, **kwargs)
        q, k = args[0], args[1].transpose(-1, -2)
        if self._turns and number in self.products:
            q, k = self._turned(q, k, self.products.index(number))
            args = (q, k.transpose(-1, -2))
        out = func(*args)
        self._recent.append((number, q, k, out))
        return out

    def _einsum(self, func: Any, args: Any, kwargs: Any) -> object:
        number, self.counts["product"] = self.counts["product"], self.counts["product"] + 1
        parsed = _letters(args)
        if parsed is None:
            return func(*args, **kwargs)
        (first, second, result), at, d = parsed
        t, s = result[-2], result[-1]
        operands = list(args[1:])
        q = operands[at].movedim((first.index(t), first.index(d)), (-2, -1))
        k = operands[1 - at].movedim((second.index(s), second.index(d)), (-2, -1))
        if self._turns and number in self.products:
            q, k = self._turned(q, k, self.products.index(number))
            operands[at] = q.movedim((-2, -1), (first.index(t), first.index(d)))
            operands[1 - at] = k.movedim((-2, -1), (second.index(s), second.index(d)))
        out = func(args[0], *operands, **kwargs)
        self._recent.append((number, q, k, out))
        return out

    def _softmax(self, func: Any, args: Any, kwargs: Any) -> object:
        scores = args[0]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        found = self._product_of(scores) if dim in (-1, scores.dim() - 1) else None
        if found is None:
            return func(*args, **kwargs)
        number, self.counts["attention"] = self.counts["attention"], self.counts["attention"] + 1
        product, q, k, raw = found
        if self.record:
            visible = scores > HIDDEN
            factor = _factor(raw.reshape(scores.shape), scores, visible)
            self._note(Attention(self.path[-1], q, k, factor, visible, product))
        hidden = self._beyond(number, *scores.shape[-2:])
        if hidden is not None:
            args = (scores.masked_fill(hidden, -torch.inf), *args[1:])
        return func(*args, **kwargs)

    def _product_of(self, scores: Tensor) -> tuple[int, Tensor, Tensor, Tensor] | None:
        for one in reversed(self._recent):
            out = one[3]
            if (
                out.dim() > 1
                and out.shape[-2:] == scores.shape[-2:]
                and out.numel() == scores.numel()
            ):
                return one
        return None

    def _beyond(self, number: int, t: int, s: int) -> Tensor | None:
        """The pairs that a narrower window hides."""
        if number >= len(self.patch.windows) or self.patch.windows[number] == math.inf:
            return None
        self.met.add("windows")
        distance = torch.arange(t)[:, None] + (s - t) - torch.arange(s)
        return distance >= self.patch.windows[number]

    def _sdpa(self, func: Any, args: Any, kwargs: Any) -> object:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        number, self.counts["attention"] = self.counts["attention"], self.counts["attention"] + 1
        q, k, mask = given["query"], given["key"], given.get("attn_mask")
        t, s = q.shape[-2], k.shape[-2]
        if given.get("dropout_p", 0.0) > 0:
            self.trace.drops += 1
            if self.patch.silent:
                self.met.add("silent")
                given["dropout_p"] = 0.0
        visible = torch.ones(t, s, dtype=torch.bool)
        if given.get("is_causal"):
            visible = visible.tril()
        if mask is not None:
            visible = visible & (mask if mask.dtype is torch.bool else mask > HIDDEN)
        if self.record:
            scale = given.get("scale")
            factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
            plain = mask is None or mask.dtype is torch.bool or not bool(mask[mask > HIDDEN].any())
            self._note(Attention(self.path[-1], q, k, factor if plain else None, visible, None))
        if self._turns:
            given["query"], given["key"] = self._turned(q, k, number)
        hidden = self._beyond(number, t, s)
        if hidden is not None:
            blank = torch.zeros(t, s, dtype=q.dtype)
            added = blank if mask is None or mask.dtype is torch.bool else mask
            given["attn_mask"] = added.masked_fill(~visible | hidden, -torch.inf)
            given["is_causal"] = False
        return func(given.pop("query"), given.pop("key"), given.pop("value"), **given)

    def _note(self, one: Attention) -> None:
        self.trace.attentions.append(one)
        for name, value in (("queries", one.q), ("keys", one.k)):
            self.trace.outputs.append(Output(f"{one.place} {name}".strip(), value, heads=True))

    # norms, activations, dropout, embeddings

    def _epsilon(self, value: float) -> float:
        number, self.counts["norm"] = self.counts["norm"], self.counts["norm"] + 1
        self.trace.epsilons.append(value)
        if not self.patch.epsilons:
            return value
        self.met.add("epsilons")
        return self.patch.epsilons[number % len(self.patch.epsilons)]

    def _layer_norm(self, func: Any, args: Any, kwargs: Any) -> object:
        names = ("input", "normalized_shape", "weight", "bias", "eps")
        given = dict(zip(names, args, strict=False)) | kwargs
        given["eps"] = self._epsilon(given.get("eps", 1e-5))
        return func(**given)

    def _rms_norm(self, func: Any, args: Any, kwargs: Any) -> object:
        given = (
            dict(zip(("input", "normalized_shape", "weight", "eps"), args, strict=False)) | kwargs
        )
        usual = given.get("eps")
        given["eps"] = self._epsilon(
            torch.finfo(given["input"].dtype).eps if usual is None else usual
        )
        return func(**given)

    def _add(self, func: Any, args: Any, kwargs: Any) -> object:
        """A small number that is added to what has one value a row is a norm's."""
        if len(args) == 2 and isinstance(args[0], Tensor) and isinstance(args[1], float):
            x, value = args
            if x.dim() > 1 and x.shape[-1] == 1 and 0 < value <= SMALL:
                return func(x, self._epsilon(value), **kwargs)
        return func(*args, **kwargs)

    def _gelu(self, func: Any, args: Any, kwargs: Any) -> object:
        how = kwargs.get("approximate", "none")
        self.trace.gelus.append("exact" if how == "none" else "tanh")
        if how == "none" and self.patch.gelu == "tanh":
            self.met.add("gelu")
            kwargs = {**kwargs, "approximate": "tanh"}
        return func(*args, **kwargs)

    def _erf(self, func: Any, args: Any, kwargs: Any) -> object:
        """Of an exact gelu: erf(x/√2)."""
        self.trace.gelus.append("exact")
        if self.patch.gelu != "tanh":
            return func(*args, **kwargs)
        self.met.add("gelu")
        x = args[0] * math.sqrt(2)
        return torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))

    def _dropout(self, func: Any, args: Any, kwargs: Any) -> object:
        given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
        if given.get("training", True) and given.get("p", 0.5) > 0:
            self.trace.drops += 1
            if self.patch.silent:
                self.met.add("silent")
                return given["input"]
        return func(*args, **kwargs)

    def _embedding(self, func: Any, args: Any, kwargs: Any) -> object:
        out = func(*args, **kwargs)
        table = args[1] if len(args) > 1 else kwargs["weight"]
        self._embedded[id(out)] = (out, table.shape[0])
        if self.patch.embedding != 1 and self.table is not None and table is self.table:
            self.met.add("embedding")
            return out * self.patch.embedding
        return out

    def _scaled(self, func: Any, args: Any, kwargs: Any) -> object:
        """Products with a number: of embeddings, and around the tanh of a soft cap."""
        out = func(*args, **kwargs)
        tensors = [one for one in args[:2] if isinstance(one, Tensor)]
        numbers = [float(one) for one in args[:2] if _is_number(one)]
        wide = [one for one in tensors if one.dim()]
        if len(numbers) != 1 or len(wide) != 1 or not numbers[0]:
            return out
        factor = 1 / numbers[0] if "div" in func.__name__ else numbers[0]
        x = wide[0]
        if id(x) in self._embedded:
            self.trace.scales[self._embedded[id(x)][1]] = factor
        if id(x) in self._tanhs:
            _, kind, before, number = self._tanhs[id(x)]
            if abs(before * factor - 1) < 1e-9:
                self.trace.caps.append((kind, factor, number))
        self._before = {id(out): (out, factor)}
        return out

    def _tanh(self, func: Any, args: Any, kwargs: Any) -> object:
        x, number = args[0], self.counts["tanh"]
        self.counts["tanh"] += 1
        known = self._before.get(id(x))
        if known is None:
            return func(*args, **kwargs)
        kind = "scores" if any(x.shape == one[3].shape for one in self._recent) else "logits"
        wanted, cap = dict(self.patch.caps).get(kind), 1 / known[1]
        if wanted is not None and number in self.capping:
            self.met.add("caps")
            out = x if wanted == 0 else func(x * (cap / wanted)) * (wanted / cap)
        else:
            out = func(*args, **kwargs)
        self._tanhs[id(out)] = (out, kind, known[1], number)
        return out


_HANDLERS: Mapping[str, Callable[[Watch, Any, Any, Any], Any]] = {
    **dict.fromkeys(("matmul", "bmm", "__matmul__"), Watch._matmul),
    "einsum": Watch._einsum,
    "softmax": Watch._softmax,
    "scaled_dot_product_attention": Watch._sdpa,
    "layer_norm": Watch._layer_norm,
    "rms_norm": Watch._rms_norm,
    **dict.fromkeys(("add", "__add__", "__radd__", "add_"), Watch._add),
    "gelu": Watch._gelu,
    "erf": Watch._erf,
    "dropout": Watch._dropout,
    "embedding": Watch._embedding,
    **dict.fromkeys(("mul", "div", "__mul__", "__rmul__", "__truediv__"), Watch._scaled),
    "tanh": Watch._tanh,
}


def _is_number(one: object) -> bool:
    if isinstance(one, bool):
        return False
    return isinstance(one, int | float) or (
        isinstance(one, Tensor) and one.numel() == 1 and not one.dim()
    )


def _letters(args: Any) -> tuple[tuple[str, str, str], int, str] | None:
    """Of queries, keys and result, with the operand that queries are, and the letter of d."""
    if len(args) != 3 or not isinstance(args[0], str) or "..." in args[0]:
        return None
    match = re.fullmatch(r"(\w+),(\w+)->(\w+)", args[0].replace(" ", ""))
    if match is None or len(match[3]) < 2:
        return None
    *both, result = match.groups()
    t, s = result[-2], result[-1]
    inner = [one for one in both[0] if one in both[1] and one not in result]
    if len(inner) != 1:
        return None
    for at in (0, 1):
        first, second = both[at], both[1 - at]
        if t in first and t not in second and s in second and s not in first:
            return (first, second, result), at, inner[0]
    return None


def _factor(raw: Tensor, scores: Tensor, visible: Tensor) -> float | None:
    """By what q · k was multiplied, if by one number."""
    large = visible & (raw.abs() > 1e-3 * raw.abs().max())
    ratios = (scores / raw)[large]
    if not len(ratios):
        return None
    middle = float(ratios.median())
    return middle if float((ratios - middle).abs().max()) <= 1e-9 * abs(middle) else None


@contextmanager
def hooked(module: nn.Module | None, watch: Watch) -> Iterator[None]:
    """What each module gives is kept, and where the run is at is known."""
    handles = []

    def enter(name: str) -> Callable[..., None]:
        return lambda *given: watch.path.append(name)

    def leave(name: str) -> Callable[..., None]:
        def keep(one: nn.Module, given: Any, out: Any) -> None:
            watch.path.pop()
            value = out[0] if isinstance(out, tuple) and out else out
            if isinstance(value, Tensor) and value.is_floating_point() and name:
                watch.trace.outputs.append(Output(name, value.detach()))

        return keep

    try:
        for name, one in [] if module is None else module.named_modules():
            handles.append(one.register_forward_pre_hook(enter(name)))
            handles.append(one.register_forward_hook(leave(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()
