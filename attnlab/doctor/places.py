"""The first place where two models part, and how the difference grows from layer to layer.

Axes: b batch, t time, h heads, d head width.

Modules are matched by the parameters that were carried from one to the other, layers by holding
all parameters of theirs, attention by its order.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnlab.doctor.case import EQUAL, Case, apart, largest
from attnlab.doctor.watch import Output, Trace
from attnlab.interop.names import Part


def finite(error: float) -> float | None:
    """JSON has no infinity."""
    return error if math.isfinite(error) else None


@dataclass(frozen=True)
class Place:
    """Where outputs first differ: a module of A, its match in B, a position, maybe a head."""

    a: str
    b: str
    position: int
    head: int | None
    error: float

    def plain(self) -> dict[str, Any]:
        return {**vars(self), "error": finite(self.error)}

    def __str__(self) -> str:
        named = self.a if self.a == self.b else f"{self.a} (in B: {self.b})"
        head = "" if self.head is None else f", head {self.head}"
        return f"{named}, position {self.position}{head}"


@dataclass(frozen=True)
class Parting:
    first: Place | None
    growth: tuple[tuple[str, float], ...]  # a layer of A, and how far apart its outputs are


def find_parting(case: Case, a: Trace, b: Trace) -> Parting:
    """With the weights that B has at the moment."""
    pairs = _matched(case)
    trace_a, trace_b = _numbered(a), _numbered(b)
    first: Place | None = None
    for name, one in trace_a.items():
        other = trace_b.get(pairs.get(name, ""))
        if other is None or first is not None or one.value.numel() != other.value.numel():
            continue
        theirs = other.value.reshape(one.value.shape)
        error = _apart(one.value, theirs)
        if error > EQUAL:
            first = _place(case, name, pairs[name], one, theirs, error)
    growth = []
    layers = _containers(case.carrier.parts_a)
    for path in layers.values():
        other = trace_b.get(pairs.get(path, ""))
        if path in trace_a and other is not None and trace_a[path].value.shape == other.value.shape:
            growth.append((path, _apart(trace_a[path].value, other.value)))
    return Parting(first, tuple(growth))


def _numbered(trace: Trace) -> dict[str, Output]:
    """By place; of a module that is called several times the first call."""
    found: dict[str, Output] = {}
    for one in trace.outputs:
        found.setdefault(one.place, one)
    return found


def _matched(case: Case) -> dict[str, str]:
    """Places of A and of B that should give the same."""
    conversion = case.conversion(case.sides(())[2])
    pairs = {"output": "output"}
    for name, text in conversion.carried.items():
        exact = re.fullmatch(r'a\["([^"]+)"\](\.T)?', text)
        if exact:
            pairs.setdefault(exact[1].rpartition(".")[0], name.rpartition(".")[0])
    mine, theirs = (_containers(parts) for parts in (case.carrier.parts_a, case.carrier.parts_b))
    for layer, path in mine.items():
        if layer in theirs:
            pairs.setdefault(path, theirs[layer])
    for one, other in zip(*case.attentions, strict=False):
        for what in ("queries", "keys"):
            pairs.setdefault(f"{one.place} {what}".strip(), f"{other.place} {what}".strip())
    return pairs


def _containers(parts: Mapping[str, Part]) -> dict[int, str]:
    """The path of each layer: what the names of all its parameters begin with, to its number."""
    found: dict[int, str] = {}
    for name, part in parts.items():
        if part.layer is not None:
            match = re.match(r"(.*?\b\d+)\.", name)
            if match:
                found.setdefault(part.layer, match[1])
    return found


def _apart(left: Tensor, right: Tensor) -> float:
    """Within a model NaN on both sides, such as beside padding, is not where they part."""
    return apart(*_without_nan(left, right))


def _without_nan(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    both = left.isnan() & right.isnan()
    return left.masked_fill(both, 0), right.masked_fill(both, 0)


def _place(case: Case, a: str, b: str, one: Output, theirs: Tensor, error: float) -> Place:
    left, right = _without_nan(one.value, theirs)
    far = (left - right).abs().nan_to_num(nan=float("inf")) > EQUAL * largest(left)
    far &= left != right
    if one.heads:
        position = int(far.movedim(-2, 0).flatten(1).any(1).nonzero()[0])
        head = None
        if far.dim() > 3:
            head = int(far.movedim(-3, 0).flatten(1).any(1).nonzero()[0])
        return Place(a, b, position, head, error)
    axis = 1 if far.dim() > 2 else 0
    position = int(far.movedim(axis, 0).flatten(1).any(1).nonzero()[0])
    return Place(a, b, position, _head_of(case, a, far), error)


def _head_of(case: Case, path: str, far: Tensor) -> int | None:
    """Of queries, keys or values by themselves: the first head whose part differs."""
    parts = {n.rpartition(".")[0]: one for n, one in case.carrier.parts_a.items()}
    part, heads = parts.get(path), case.heads
    if part is None or heads is None or part.name not in ("q", "k", "v"):
        return None
    return int(far.flatten(0, -2).any(0).nonzero()[0]) // heads.width
