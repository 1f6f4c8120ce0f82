"""Rotary positions: layout, direction, base, the part that turns, scaling, and offsets."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from attnlab.doctor.case import Case, Change
from attnlab.doctor.cause import Cause
from attnlab.doctor.rotation import Rotation

NORMS = ("q_norm", "k_norm")
CLOSE = 1e-9


def rotations(case: Case) -> tuple[Rotation, Rotation] | None:
    one, other = case.a.rotation, case.b.rotation
    return None if one is None or other is None else (one, other)


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
        if heads is None or not case.carrier.has("q") or not case.carrier.has("k"):
            patch = {"rotation": (("layout", b.layout),)}
            yield self.change(a.layout, b.layout, patch_a=patch, setting="the rotary layout")
            return
        name = (
            "half_split_to_interleaved" if a.layout == "half-split" else "interleaved_to_half_split"
        )
        g, d = heads.shared, heads.width
        turned = "" if b.rotated == d else f", {b.rotated}"

        def move(moves):  # type: ignore[no-untyped-def]
            moves = moves.wrapped(("q",), f"{name}({{}}, {heads.query}{turned})")
            moves = moves.wrapped(("k",), f"{name}({{}}, {g}{turned})")
            return moves.wrapped(NORMS, f"{name}({{}}, 1{turned})")

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
        if heads is None or not case.carrier.has("q") or not case.carrier.has("k"):
            patch = {"rotation": (("reversed", True),)}
            yield self.change(*names, patch_a=patch, setting="the direction of rotation")
            return
        name = f"reverse_{b.layout.replace('-', '_')}"

        def move(moves):  # type: ignore[no-untyped-def]
            moves = moves.wrapped(("q",), f"{name}({{}}, {heads.query}, {b.rotated})")
            return moves.wrapped(("k",), f"{name}({{}}, {heads.shared}, {b.rotated})")

        yield self.change(*names, move=move)


@dataclass(frozen=True)
class RotaryFraction(Cause):
    """How many coordinates of each head turn."""

    def propose(self, case: Case) -> Iterator[Change]:
        both = rotations(case)
        if both is None or both[0].rotated == both[1].rotated:
            return
        a, b = both
        width = "" if case.heads is None else f" of {case.heads.width}"
        # of a single pair the base cannot be told
        fields = () if a.base is not None or b.base is None else (("base", b.base),)
        yield self.change(
            f"{a.rotated}{width}",
            f"{b.rotated}{width}",
            patch_a={"rotation": (("rotated", b.rotated), *fields)},
            setting="the part of each head that turns",
        )


@dataclass(frozen=True)
class RotaryBase(Cause):
    """The base of the rates, base^(-2i/d)."""

    def propose(self, case: Case) -> Iterator[Change]:
        both = rotations(case)
        if both is None:
            return
        one, other = both[0].base, both[1].base
        if one is None or other is None or abs(one - other) <= CLOSE * other:
            return
        yield self.change(
            f"{one:.10g}",
            f"{other:.10g}",
            patch_a={"rotation": (("base", other),)},
            setting="the base of rotary positions",
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
        sizes = [tuple(abs(rate) for rate in one.rates) for one in both]
        close = len(sizes[0]) == len(sizes[1]) and all(
            abs(x - y) <= 1e-8 * y + 1e-13 for x, y in zip(*sizes, strict=True)
        )
        longer = _stretch(case)
        if close and abs(longer - 1) <= CLOSE:
            return
        if not close and _is_plain(a) and _is_plain(b):
            return  # another base, or another part of the head
        rates = () if close else (("rates", tuple(a.direction * one for one in sizes[1])),)
        for stretch in dict.fromkeys((1.0, longer)):
            yield self.change(
                _rates(a),
                _rates(b) + (f", scores × {stretch:.6g}" if stretch != 1 else ""),
                patch_a={"rotation": rates, "stretch": stretch},
                setting="the scaling of rotary positions",
            )


def _is_plain(one: Rotation) -> bool:
    """Whether rates may be those of a base; of a single pair that is a rate of 1."""
    return one.base is not None or (len(one.rates) == 1 and abs(abs(one.rates[0]) - 1) <= CLOSE)


def _rates(one: Rotation) -> str:
    if one.base is not None:
        return f"rates of base {one.base:.10g}"
    shown = [f"{abs(rate):.4g}" for rate in one.rates[:4]]
    return f"rates {', '.join(shown)}{' …' if len(one.rates) > 4 else ''}"


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
        for shift in (1, -1, 2, -2):
            yield self.change(
                "queries and keys at the same positions",
                f"queries {abs(shift)} {'after' if shift > 0 else 'before'} their keys",
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
