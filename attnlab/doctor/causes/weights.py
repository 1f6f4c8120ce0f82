"""How weights are laid out: fused in what order, shared by whom, transposed, tied, scaled."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnlab.doctor.case import Case, Change
from attnlab.doctor.cause import Cause
from attnlab.doctor.rounding import alike, told_apart

Q = ("q",)
CLOSE = 1e-9


def has_fused(case: Case, name: str) -> tuple[bool, bool]:
    """Whether A and whether B has weights fused under a name."""
    a, b = (
        any(one.name == name for one in parts.values())
        for parts in (case.carrier.parts_a, case.carrier.parts_b)
    )
    return a, b


@dataclass(frozen=True)
class FusedOrder(Cause):
    """The order of fused queries, keys and values: by kind, or by group of heads."""

    def propose(self, case: Case) -> Iterator[Change]:
        a, b = has_fused(case, "qkv")
        if case.heads is None or not (a or b):
            return
        separate = "separate"
        if a:
            yield self.change(
                "by group",
                "by kind" if b else separate,
                move=lambda moves: replace(moves, fused_a="group"),
            )
        if b:
            yield self.change(
                "by kind" if a else separate,
                "by group",
                move=lambda moves: replace(moves, fused_b="group"),
            )


@dataclass(frozen=True)
class HeadSharing(Cause):
    """Which key/value head a query head reads: its neighbours share one, or heads are tiled."""

    def propose(self, case: Case) -> Iterator[Change]:
        heads = case.heads
        if heads is None or not 1 < heads.shared < heads.query or not case.carrier.has("o"):
            return
        h, g = heads.query, heads.shared
        ways = {
            "neighbours_to_tiled": ("neighbours", "tiled"),
            "tiled_to_neighbours": ("tiled", "neighbours"),
        }
        for name, (a, b) in ways.items():

            def move(moves, name=name):  # type: ignore[no-untyped-def]
                moves = moves.wrapped(Q, f"{name}({{}}, {h}, {g})")
                return moves.wrapped(("o",), f"{name}({{}}.T, {h}, {g}).T", biases=False)

            yield self.change(a, b, move=move)


@dataclass(frozen=True)
class Transposed(Cause):
    """Square matrices that are [in, out] in one model and [out, in] in the other.

    Of others the shape tells, and they are carried over the right way round.
    """

    def propose(self, case: Case) -> Iterator[Change]:
        inward, outward = "[in, out]", "[out, in]"
        for side in ("a", "b"):
            a, b = (inward, outward) if side == "a" else (outward, inward)
            yield self.change(a, b, move=lambda moves, side=side: replace(moves, transposed=side))


@dataclass(frozen=True)
class GateOrder(Cause):
    """Which half of a gated feed-forward layer is the gate."""

    def propose(self, case: Case) -> Iterator[Change]:
        a, b = has_fused(case, "gate_up")
        taken = (("gate", "up"), ("up", "gate"))
        if a and b:
            yield self.change(
                "one half first",
                "the other half first",
                move=lambda moves: (
                    moves.wrapped(("gate_up",), "swap_halves({})")
                    if not case.carrier.has("gate")
                    else replace(moves, taken=(*moves.taken, *taken))
                ),
            )
        elif case.carrier.has("gate") and case.carrier.has("up"):
            yield self.change(
                "gate and up",
                "up and gate",
                move=lambda moves: replace(moves, taken=(*moves.taken, *taken)),
            )


@dataclass(frozen=True)
class NormOnePlus(Cause):
    """Whether a norm multiplies by its weight, or by 1 + its weight."""

    def propose(self, case: Case) -> Iterator[Change]:
        every = {one.name for one in case.carrier.parts_b.values()}
        norms = tuple(sorted(one for one in every if one.startswith("norm ")))
        heads = tuple(sorted(every & {"q_norm", "k_norm"}))
        ways = {"- 1": ("weight", "1 + weight"), "+ 1": ("1 + weight", "weight")}
        for parts in dict.fromkeys((norms + heads, norms, heads)):
            for text, (a, b) in ways.items():
                if parts:
                    yield self.change(
                        a,
                        b,
                        move=lambda moves, parts=parts, text=text: moves.wrapped(
                            parts, f"({{}} {text})", biases=False
                        ),
                    )


@dataclass(frozen=True)
class TiedHead(Cause):
    """Whether the head is the table of embeddings."""

    def propose(self, case: Case) -> Iterator[Change]:
        heads = [
            [name for name, one in parts.items() if one.name == "head" and one.kind == "weight"]
            for parts in (case.carrier.parts_a, case.carrier.parts_b)
        ]
        own = [
            bool(names) and weights.first[names[0]] == names[0]
            for names, weights in zip(heads, (case.weights_a, case.weights_b), strict=True)
        ]
        tables = [n for n, one in case.carrier.parts_a.items() if one.name == "embed"]
        if not tables or own[0] == own[1]:
            return
        if own[1]:
            yield self.change(
                "tied",
                "a head of its own",
                move=lambda moves: replace(moves, taken=(*moves.taken, ("head", "embed"))),
            )
        else:
            yield self.change(
                "a head of its own",
                "tied",
                patch_a={"tied": ((heads[0][0], tables[0]),)},
                setting="whether the head is tied to the embeddings",
            )


@dataclass(frozen=True)
class ScoreScale(Cause):
    """The factor on query · key; the conversion multiplies the rows of queries."""

    def propose(self, case: Case) -> Iterator[Change]:
        mine, theirs = case.attentions
        if not mine or len(mine) != len(theirs):
            return
        a, b = ({one.factor for one in some} for some in (mine, theirs))
        if None in a | b or len(a) != 1 or len(b) != 1:
            return
        one, other = float(next(iter(a)) or 0), float(next(iter(b)) or 0)
        sizes = [float(some[0].q.norm() * some[0].k.norm()) for some in (mine, theirs)]
        known = dict.fromkeys((one / other, one / other * sizes[0] / sizes[1]))
        norms = any(part.name == "q_norm" for part in case.carrier.parts_b.values())
        for ratio in known:
            if abs(ratio - 1) <= CLOSE:
                continue
            shown = tuple(f"{text} q · k" for text in told_apart([one], [one / ratio]))
            if alike(ratio, 1) or not case.carrier.has(*Q):
                yield self.change(
                    *shown,
                    patch_a={"stretch": 1 / ratio},
                    setting="the factor on query · key",
                    rounding=alike(ratio, 1),
                )
                continue
            yield self.change(
                *shown,
                move=lambda moves, ratio=ratio: moves.wrapped(
                    ("q_norm",) if norms else Q, f"({{}} * {ratio!r})"
                ),
            )


@dataclass(frozen=True)
class EmbeddingScale(Cause):
    """By what embeddings are multiplied before the first layer, such as √width."""

    def propose(self, case: Case) -> Iterator[Change]:
        if case.a.table is None or case.b.table is None:
            return
        a, b = (
            trace.scales.get(side.table.shape[0], 1.0)
            for trace, side in ((case.trace_a, case.a), (case.trace_b, case.b))
            if side.table is not None
        )
        root = float(case.a.table.shape[-1]) ** 0.5
        for ratio in dict.fromkeys((b / a, root, 1 / root)):
            if abs(ratio - 1) <= CLOSE:
                continue
            shown = tuple(f"× {text}" for text in told_apart([a], [a * ratio]))
            if not alike(ratio, 1) and not _is_tied(case):
                text = f"({{}} * {1 / ratio!r})"
                yield self.change(
                    *shown, move=lambda moves, text=text: moves.wrapped(("embed",), text)
                )
            yield self.change(
                *shown,
                patch_a={"embedding": ratio},
                setting="the factor on embeddings",
                rounding=alike(ratio, 1),
            )


def _is_tied(case: Case) -> bool:
    """Whether B's head is its table, so that weights cannot make up for a factor."""
    heads = [name for name, one in case.carrier.parts_b.items() if one.name == "head"]
    return not heads or case.weights_b.first[heads[0]] != heads[0]
