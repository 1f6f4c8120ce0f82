"""A pair of models under comparison: the same weights and inputs, and how far apart they are.

Axes: b batch, t time, e width of the outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.errors import InputError, SubjectError
from attnlab.audit.repro.prelude import sample
from attnlab.doctor.carry import Carrier, Conversion, Heads, Moves, Weights, load, state_of
from attnlab.doctor.patient import LONGEST, WINDOWS, Patient
from attnlab.doctor.watch import Attention, Patch, Trace

EQUAL = 1e-9  # of the largest output, in float64
SAME_WEIGHT = 1e-12  # of the largest weight: what a conversion by a factor may round
REPEATED = 12  # tokens by which rotations are measured
MOST = 1024  # tokens in a text
BATCH = 2


@dataclass(frozen=True, kw_only=True)
class Change:
    """A difference between A and B undone: what each of them has, and how A comes to do as B."""

    cause: str
    a: str
    b: str
    move: Callable[[Moves], Moves] | None = None  # of the weights on their way to B
    patch_a: Mapping[str, Any] = field(default_factory=dict)
    patch_b: Mapping[str, Any] = field(default_factory=dict)
    setting: str = ""  # what to set, where no weights move
    rounding: bool = False  # A and B have the same but for float32: no cause; it moves no weights


@dataclass(frozen=True)
class Input:
    x: Tensor
    padding: Tensor | None = None


@dataclass(frozen=True)
class OwnWeights:
    """Those of B that were replaced: how many tensors, how many of them were others, and how far
    apart the outputs are with them."""

    replaced: int
    differ: int
    error: float


class Case:
    """A and B, made ready to be compared."""

    def __init__(
        self,
        a: Patient,
        b: Patient,
        rules: Mapping[str, str] | None = None,
        length: int | None = None,
    ) -> None:
        self.a, self.b = a, b
        self._check()
        b.mask_as(a)
        self.length = self._longest(length)
        self.inputs = self._inputs()
        self.broken = self._broken()  # sides that give NaN for padding
        text, repeated = self._text(self.length, 3), self._text(1, 4)
        repeated = repeated.expand(BATCH, REPEATED, *repeated.shape[2:]).contiguous()
        for one in (a, b):
            one.learn_names()
        self.trace_b = b.examine(text, repeated)
        self.trace_a = a.examine(text, repeated)
        self.weights_a, self.weights_b = Weights.of(a.module), Weights.of(b.module)
        self.state_a, self.state_b = state_of(a.module), self._own_state()
        heads_a = self._heads(a, self.trace_a, self.weights_a)
        self.heads = self._heads(b, self.trace_b, self.weights_b) or heads_a
        both = (heads_a or self.heads, self.heads)
        self.carrier = Carrier(self.weights_a, self.weights_b, both, rules)
        self._conversions: dict[Moves, Conversion] = {}
        self._known: dict[tuple[str, Patch, int], Tensor] = {}
        self._loaded = ""
        self.tried = 0
        self.nan = ""  # the side that gives NaN where the other gives numbers

    def _check(self) -> None:
        a, b = self.a, self.b
        if a.tokens != b.tokens:
            kinds = ["tokens" if one.tokens else "vectors" for one in (a, b)]
            raise InputError(f"{a.name} takes {kinds[0]} and {b.name} {kinds[1]}")
        if not a.tokens and a.subject.width != b.subject.width:
            widths = f"{a.subject.width} and {b.subject.width}"
            raise InputError(f"{a.name} and {b.name} take vectors of other widths, {widths}")

    def _text(self, length: int, seed: int) -> Tensor:
        if not self.a.tokens:
            return self.a.subject.draw(BATCH, length, seed)
        return sample(
            (BATCH, length), min(self.a.subject.width, self.b.subject.width), seed, torch.float64
        )

    def _longest(self, length: int | None) -> int:
        """Longer than any window, if both can read so much."""
        sides = (self.a, self.b)
        windows = [one.number(WINDOWS) or 0 for one in sides]
        limits = [limit for one in sides if (limit := one.number(LONGEST))]
        wanted = length or max(67, 2 * max(windows) + 5)
        wanted = min(wanted, MOST, *limits) if limits else min(wanted, MOST)
        while True:
            try:
                shapes = [tuple(one.run(self._text(wanted, 0)).shape) for one in sides]
            except SubjectError:
                if wanted <= 8 or length:
                    raise
                wanted = max(8, wanted // 2)
                continue
            if shapes[0] != shapes[1]:
                shown = " and ".join(str(list(one)) for one in shapes)
                raise InputError(f"{self.a.name} and {self.b.name} give outputs of {shown}")
            return wanted

    def _inputs(self) -> list[Input]:
        """The shortest first: most hypotheses fail there."""
        lengths = sorted({*(one for one in (3, 7, 20) if one < self.length), self.length})
        found = [Input(self._text(one, 10 + one)) for one in lengths]
        if self.a.subject.pads and self.b.subject.pads and self.length > 3:
            length = min(9, self.length)
            padding = torch.zeros(BATCH, length, dtype=torch.bool)
            padding[0, :2] = True  # on the left
            found.insert(len(lengths) - 1, Input(self._text(length, 30), padding))
        return found

    def _broken(self) -> str:
        """Which side gives what is no number beside padding; that input is then left out."""
        padded = [one for one in self.inputs if one.padding is not None]
        found = ""
        for one in padded:
            for name, side in (("A", self.a), ("B", self.b)):
                assert one.padding is not None
                try:
                    out = side.run(one.x, one.padding)[~one.padding]
                except SubjectError:
                    found += name
                    continue
                found += "" if bool(out.isfinite().all()) else name
        if found:
            self.inputs = [one for one in self.inputs if one.padding is None]
        return found

    def _own_state(self) -> dict[str, Tensor]:
        """B's weights: of a new model others than A's, so that what is not carried shows."""
        state = state_of(self.b.module)
        if self.b.trained:
            return state
        first, generator = self.weights_b.first, torch.Generator().manual_seed(7)
        moved = {
            name: one + 0.3 * torch.randn(one.shape, generator=generator, dtype=torch.float64)
            for name, one in state.items()
        }
        return {name: moved[first[name]] for name in state}

    @staticmethod
    def _heads(side: Patient, trace: Trace, weights: Weights) -> Heads | None:
        """As attention has them; key/value heads by the rows of their weights."""
        if not trace.attentions:
            h, g = side.subject.heads, side.subject.kv_heads
            width = weights.width
            return Heads(h, g or h, width // h) if h and width and width % h == 0 else None
        q = trace.attentions[0].q
        query, d = _count(q), q.shape[-1]
        shared = weights.shared_heads(query, d) or side.subject.kv_heads or query
        return Heads(query, shared, d)

    # what is compared

    def conversion(self, moves: Moves) -> Conversion:
        if moves not in self._conversions:
            self._conversions[moves] = self.carrier.write(moves)
        return self._conversions[moves]

    def sides(self, changes: Sequence[Change]) -> tuple[Patch, Patch, Moves]:
        """A and B with the changes, and the moves between them."""
        a, b, moves = Patch(), Patch(), Moves()
        for one in changes:
            a, b = _patched(a, one.patch_a), _patched(b, one.patch_b)
            moves = moves if one.move is None else one.move(moves)
        return a, b, moves

    def error(self, changes: Sequence[Change] = (), whole: bool = False) -> float:
        """How far apart the outputs are, as a part of the largest; of the first input where they
        are not equal, or of all inputs."""
        self.tried += 1
        patch_a, patch_b, moves = self.sides(changes)
        source = self._load(moves)
        worst = 0.0
        for number, one in enumerate(self.inputs):
            try:
                left = self._run(self.a, "", patch_a, number)
                right = self._run(self.b, source, patch_b, number)
            except SubjectError:
                return float("inf")
            worst = max(worst, apart(left, right, one.padding))
            if worst > EQUAL and not whole:
                break
        return worst

    def _load(self, moves: Moves) -> str:
        conversion = self.conversion(moves)
        if self._loaded != conversion.source:
            load(self.b.module, self.state_b)
            load(self.b.module, conversion.run(self.state_a))
            self._loaded = conversion.source
        return conversion.source

    def _run(self, side: Patient, source: str, patch: Patch, number: int) -> Tensor:
        key, one = (source, patch, number), self.inputs[number]
        if key in self._known:
            return self._known[key]
        found = side.run(one.x, one.padding, patch)
        if number == 0 or (side is self.a and patch == Patch()):  # what most hypotheses need
            self._known[key] = found
        return found

    def carried_traces(self) -> tuple[Trace, Trace]:
        """A and B on the last input where they differ, B with the weights that it was given."""
        source = self._load(Moves())
        self.trace_b = self.b.trace(self._text(self.length, 3))
        chosen = self.inputs[-1]
        for number, one in enumerate(self.inputs):
            left = self._run(self.a, "", Patch(), number)
            right = self._run(self.b, source, Patch(), number)
            self._find_nan(left, right, one)
            if apart(left, right, one.padding) > EQUAL:
                chosen = one
        return self.a.trace(chosen.x, chosen.padding), self.b.trace(chosen.x, chosen.padding)

    def _find_nan(self, left: Tensor, right: Tensor, given: Input) -> None:
        """Two numbers that are none say nothing: they are neither equal nor different."""
        text = slice(None) if given.padding is None else ~given.padding
        nan = [bool(one[text].isnan().any()) for one in (left, right)]
        if all(nan):
            raise InputError(
                f"{self.a.name} gives NaN for a text of {given.x.shape[1]} tokens, and so does "
                f"{self.b.name} with its weights; NaN equals nothing"
            )
        self.nan = "A" if nan[0] else "B" if nan[1] else self.nan

    def own_weights(self, changes: Sequence[Change]) -> "OwnWeights | None":
        """What B, if it was trained, had in place of the weights that it was given."""
        if not self.b.trained:
            return None
        _, _, moves = self.sides(changes)
        given, first = self.conversion(moves).run(self.state_a), self.weights_b.first
        names = [name for name in given if first[name] == name]
        other = [name for name in names if apart(given[name], self.state_b[name]) > SAME_WEIGHT]
        load(self.b.module, self.state_b)
        self._loaded = ""
        try:
            error = max(
                apart(self._run(self.a, "", Patch(), number), self.b.run(one.x, one.padding))
                for number, one in enumerate(self.inputs)
                if one.padding is None
            )
        except SubjectError:
            error = float("inf")
        return OwnWeights(len(names), len(other), error)

    @cached_property
    def attentions(self) -> tuple[list[Attention], list[Attention]]:
        return self.trace_a.attentions, self.trace_b.attentions


def _count(q: Tensor) -> int:
    return q.shape[0] // BATCH if q.dim() == 3 else int(torch.tensor(q.shape[1:-2]).prod())


def _patched(patch: Patch, given: Mapping[str, Any]) -> Patch:
    """Fields that hold several things are added to, others replaced."""
    known = {one.name for one in fields(patch)}
    assert set(given) <= known
    merged: dict[str, Any] = {
        name: (*getattr(patch, name), *value) if name in ("rotation", "tied", "caps") else value
        for name, value in given.items()
    }
    return replace(patch, **merged)


def apart(left: Tensor, right: Tensor, padding: Tensor | None = None) -> float:
    """The largest difference as a part of the largest output; what padding gives is left out.

    NaN is infinitely far from everything, NaN too.
    """
    if left.shape != right.shape:
        return float("inf")
    if padding is not None:
        left, right = left[~padding], right[~padding]
    change = (left - right).abs().masked_fill(left == right, 0)
    endless = float("inf")
    return float(change.nan_to_num(nan=endless, posinf=endless).max()) / largest(left)


def largest(x: Tensor) -> float:
    """Of the numbers that are some."""
    return float(x.nan_to_num(0, 0, 0).abs().max()) or 1.0
