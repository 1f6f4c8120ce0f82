"""Rotary positions: layout, direction, base, the part that turns, scaling, and offsets."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from attnlab.doctor.case import Case, Change
from attnlab.doctor.cause import Cause
from attnlab.doctor.rotation import Rotation, turn
from attnlab.doctor.rounding import alike, all_alike, listed, told_apart

NORMS = ("q_norm", "k_norm")
CLOSE = 1e-9
FURTHEST = 64  # positions that queries may be turned further than keys, where it can be measured


def rotations(case: Case) -> tuple[Rotation, Rotation] | None:
    one, other = case.a.rotation, case.b.rotation
    return None if one is None or other is None else (one, other)


@dataclass(frozen=True)
class RotaryStart(Cause):
    """Where in a head the part stands that turns: at its beginning, or at its end.

    The conversion moves rows of queries and keys.
    """

    def propose(self, case: Case) -> Iterator[Change]:
        both, heads = rotations(case), case.heads
        if both is None or both[0].rotated != both[1].rotated or both[0].start == both[1].start:
            return
        a, b = both
        shown = _part_of(a, case), _part_of(b, case)
        if heads is None or not _has_weights(case):
            patch = {"rotation": (("start", b.start),)}
            yield self.change(*shown, patch_a=patch, setting="the part of each head that turns")
            return

        def move(moves):  # type: ignore[no-untyped-def]
            for parts, count in ((("q",), heads.query), (("k",), heads.shared), (NORMS, 1)):
                text = f"move_part({{}}, {count}, {b.rotated}, {a.start}, {b.start})"
                moves = moves.wrapped(parts, text)
            return moves

        yield self.change(*shown, move=move)


def _has_weights(case: Case) -> bool:
    return case.carrier.has("q") and case.carrier.has("k")


def _part_of(one: Rotation, case: Case) -> str:
    """How many coordinates of a head turn, and which."""
    if case.heads is None:
        return f"{one.rotated} from coordinate {one.start} on"
    whole = one.rotated == case.heads.width
    where = "" if whole else f" from coordinate {one.start} on"
    return f"{one.rotated} of {case.heads.width}{where}"


def _in_place(text: str, count: int, b: Rotation) -> str:
    """What is done to the first rows of heads, done to those that turn in B."""
    if not b.start:
        return text
    first = text.replace("{}", f"move_part({{}}, {count}, {b.rotated}, {b.start}, 0)")
    return f"move_part({first}, {count}, {b.rotated}, 0, {b.start})"


@dataclass(frozen=True)
class RotaryLayout(Cause):
    """Which coordinates of a head turn together: halves, or neighbours.

    Measured on queries of one token repeated. The conversion permutes rows of queries and keys.
    """

    def propose(self, case: Case) -> Iterator[Change]:
        both, heads = rotations(case), case.heads
        if both is None or both[0].layout == both[1].layout:
            return
        a, b = both
        if heads is None or not _has_weights(case):
            patch = {"rotation": (("layout", b.layout),)}
            yield self.change(a.layout, b.layout, patch_a=patch, setting="the rotary layout")
            return
        name = (
            "half_split_to_interleaved" if a.layout == "half-split" else "interleaved_to_half_split"
        )
        turned = "" if b.rotated == heads.width else f", {b.rotated}"

        def move(moves):  # type: ignore[no-untyped-def]
            for parts, count in ((("q",), heads.query), (("k",), heads.shared), (NORMS, 1)):
                text = _in_place(f"{name}({{}}, {count}{turned})", count, b)
                moves = moves.wrapped(parts, text)
            return moves

        yield self.change(a.layout, b.layout, move=move)


@dataclass(frozen=True)
class RotaryDirection(Cause):
    """Which way pairs turn; the conversion mirrors one coordinate of each pair."""

    def propose(self, case: Case) -> Iterator[Change]:
        both, heads = rotations(case), case.heads
        if both is None or both[0].direction == both[1].direction:
            return
        b, shown = both[1], {1: "forward", -1: "backward"}
        names = shown[both[0].direction], shown[b.direction]
        if heads is None or not _has_weights(case):
            patch = {"rotation": (("reversed", True),)}
            yield self.change(*names, patch_a=patch, setting="the direction of rotation")
            return
        name = f"reverse_{b.layout.replace('-', '_')}"

        def move(moves):  # type: ignore[no-untyped-def]
            for part, count in (("q", heads.query), ("k", heads.shared)):
                text = _in_place(f"{name}({{}}, {count}, {b.rotated})", count, b)
                moves = moves.wrapped((part,), text)
            return moves

        yield self.change(*names, move=move)


@dataclass(frozen=True)
class RotaryFraction(Cause):
    """How many coordinates of each head turn."""

    def propose(self, case: Case) -> Iterator[Change]:
        both = rotations(case)
        if both is None or both[0].rotated == both[1].rotated:
            return
        a, b = both
        fields: tuple[tuple[str, object], ...] = ()
        # of a single pair the base cannot be told
        if b.base is not None and (a.base is None or alike(a.base, b.base)):
            fields = (("rates", _rates_for(a, b)),)
        yield self.change(
            _part_of(a, case),
            _part_of(b, case),
            patch_a={"rotation": (("rotated", b.rotated), ("start", b.start), *fields)},
            setting="the part of each head that turns",
        )


@dataclass(frozen=True)
class RotaryBase(Cause):
    """The base of the rates, base^(-2i/d)."""

    def propose(self, case: Case) -> Iterator[Change]:
        both = rotations(case)
        if both is None:
            return
        a, b = both
        if a.base is None or b.base is None or _same(a, b):
            return
        if len(a.rates) != len(b.rates) and alike(a.base, b.base):
            return  # another part of the head
        field = ("rates", _rates_for(a, b)) if len(a.rates) == len(b.rates) else ("base", b.base)
        rounding = all_alike(_sizes(a), _sizes(b))
        texts = told_apart([a.base], [b.base], lambda one, digits: listed(one, max(digits, 10)))
        yield self.change(
            *(_rates(a, b) if rounding else texts),
            patch_a={"rotation": (field,)},
            setting="the base of rotary positions",
            rounding=rounding,
        )


@dataclass(frozen=True)
class RotaryScaling(Cause):
    """Rates that are not those of a base: linear, NTK by parts, YaRN, Llama 3.

    B's rates are taken as measured; where its cosines and sines are longer too, as YaRN's, so are
    they.
    """

    def propose(self, case: Case) -> Iterator[Change]:
        both = rotations(case)
        if both is None:
            return
        a, b = both
        close, setting = all_alike(_sizes(a), _sizes(b)), "the scaling of rotary positions"
        rates = () if _same(a, b) else (("rates", _rates_for(a, b)),)
        texts = _rates(a, b)
        if close and rates and (a.base is None or b.base is None):
            patch = {"rotation": rates}
            yield self.change(*texts, patch_a=patch, setting=setting, rounding=True)
        longer = _stretch(case)
        if close and alike(longer, 1):
            return
        if not close and _is_plain(a) and _is_plain(b):
            return  # another base, or another part of the head
        for stretch in dict.fromkeys((longer,) if close else (1.0, longer)):
            yield self.change(
                texts[0],
                texts[1] + (f", scores × {stretch:.6g}" if stretch != 1 else ""),
                patch_a={"rotation": rates, "stretch": stretch},
                setting=setting,
            )


def _sizes(one: Rotation) -> tuple[float, ...]:
    return tuple(abs(rate) for rate in one.rates)


def _same(a: Rotation, b: Rotation) -> bool:
    """Rates as exact as they can be measured."""
    return len(a.rates) == len(b.rates) and all(
        abs(x - y) <= CLOSE * y + 1e-13 for x, y in zip(_sizes(a), _sizes(b), strict=True)
    )


def _rates_for(a: Rotation, b: Rotation) -> tuple[float, ...]:
    """B's rates in A's direction."""
    return tuple(a.direction * one for one in _sizes(b))


def _is_plain(one: Rotation) -> bool:
    """Whether rates may be those of a base; of a single pair that is a rate of 1."""
    return one.base is not None or (len(one.rates) == 1 and abs(abs(one.rates[0]) - 1) <= CLOSE)


def _rates(a: Rotation, b: Rotation) -> tuple[str, str]:
    """In words: by the base if they have one, else the first, and one in which A and B differ."""
    ones, others = _sizes(a), _sizes(b)
    far = [abs(x - y) / max(x, y, 1e-300) for x, y in zip(ones, others, strict=False)]
    last = max(3, far.index(max(far)))

    def show(rates: Iterable[float], digits: int) -> str:
        values = [f"{one:.{digits - 2}g}" for one in rates]
        first = ", ".join(values[: 4 if last == 3 else 3])
        if last > 3 and last < len(values):
            first += f", … {values[last]} (pair {last})"
        return f"rates {first}{' …' if len(values) > last + 1 else ''}"

    texts = told_apart(ones, others, show)
    bases = [None if one.base is None else f"rates of base {one.base:.10g}" for one in (a, b)]
    if bases[0] == bases[1] and texts[0] != texts[1]:
        return texts
    return bases[0] or texts[0], bases[1] or texts[1]


def _stretch(case: Case) -> float:
    """By what the products of queries and keys are longer in B, of the same weights."""
    mine, theirs = case.attentions
    if not mine or not theirs or mine[0].q.shape != theirs[0].q.shape:
        return 1.0
    sizes = [
        float(other.norm() / one.norm())
        for one, other in ((mine[0].q, theirs[0].q), (mine[0].k, theirs[0].k))
        if float(one.norm())
    ]
    return prod(sizes)


@dataclass(frozen=True)
class PositionOffset(Cause):
    """Positions that begin elsewhere: rows of a learned table, or queries turned further than keys.

    A constant shift of all rotary positions changes nothing and is no cause.
    """

    def propose(self, case: Case) -> Iterator[Change]:
        yield from self._learned(case)
        if case.a.rotation is None or case.b.rotation is None:
            return
        found = _shift(case)
        for shift in dict.fromkeys((*((found,) if found else ()), 1, -1, 2, -2)):
            yield self.change(
                f"queries {abs(shift)} {'earlier' if shift > 0 else 'later'} than in B",
                f"queries {abs(shift)} {'later' if shift > 0 else 'earlier'} than in A",
                patch_a={"shift": shift},
                setting="the positions of queries",
            )

    def _learned(self, case: Case) -> Iterator[Change]:
        parts = (case.carrier.parts_a, case.carrier.parts_b)
        shapes = (case.weights_a.shapes, case.weights_b.shapes)
        rows = [
            next((size[n][0] for n, one in known.items() if one.name == "positions"), 0)
            for known, size in zip(parts, shapes, strict=True)
        ]
        if not all(rows):
            return
        for shift in dict.fromkeys((rows[1] - rows[0], 2, 1, -1, -2)):
            if shift == 0 or abs(shift) >= min(rows):
                continue
            text = f"shift_rows({{}}, {shift}, {rows[1]})"
            yield self.change(
                f"position 0 is row {max(-shift, 0)}",
                f"position 0 is row {max(shift, 0)}",
                move=lambda moves, text=text: moves.wrapped(("positions",), text),
            )


def _shift(case: Case) -> int:
    """How many positions later B turns queries than keys, if the two agree but for rotation."""
    a, b = rotations(case) or (None, None)
    mine, theirs = case.attentions
    if a is None or b is None or not mine or not theirs:
        return 0
    shifts = [
        _turned_by(_first_head(one), _first_head(other), a, b)
        for one, other in ((mine[0].q, theirs[0].q), (mine[0].k, theirs[0].k))
    ]
    return 0 if shifts[0] is None or shifts[1] is None else shifts[0] - shifts[1]


def _first_head(x: Tensor) -> Tensor:
    """Of the first text [t, d]; its keys are those of the first key/value head."""
    return x.double().reshape(-1, *x.shape[-2:])[0]


def _turned_by(mine: Tensor, theirs: Tensor, a: Rotation, b: Rotation) -> int | None:
    """By how many positions B turns further than A what both turn back to the same vectors."""
    if mine.shape != theirs.shape:
        return None
    back = -torch.arange(len(mine))
    mine, theirs = turn(mine, a, back), turn(theirs, b, back)
    for shift in sorted(range(-FURTHEST, FURTHEST + 1), key=abs):
        again = turn(mine, b, torch.full((len(mine),), shift))
        if float((again - theirs).abs().max()) <= 1e-7 * float(theirs.abs().max()):
            return shift
    return None
