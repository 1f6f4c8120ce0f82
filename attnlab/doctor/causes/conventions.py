"""Conventions that no weights can make up for: windows, norms, activations, caps, masks, modes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from attnlab.doctor.case import Case, Change
from attnlab.doctor.cause import Cause
from attnlab.doctor.rounding import alike, all_alike, told_apart


@dataclass(frozen=True)
class Window(Cause):
    """How many keys a query attends to, including its own: W, W ± 1, none.

    Read off the masks of every attention. The wider one is narrowed, layer by layer.
    """

    def propose(self, case: Case) -> Iterator[Change]:
        windows = [[one.window for one in some] for some in case.attentions]
        if len(windows[0]) != len(windows[1]) or windows[0] == windows[1]:
            return
        if any(one is None for some in windows for one in some):
            return
        a, b = ([float(one or 0) for one in some] for some in windows)
        least = tuple(min(pair) for pair in zip(a, b, strict=True))
        wider = [tuple(some) != least for some in (a, b)]
        yield self.change(
            _windows(a),
            _windows(b),
            patch_a={"windows": least} if wider[0] else {},
            patch_b={"windows": least} if wider[1] else {},
            setting="the window",
        )


def _windows(sizes: list[float]) -> str:
    every = ["no window" if one == math.inf else f"{one:.0f} keys" for one in sizes]
    return every[0] if len(set(every)) == 1 else ", ".join(every)


@dataclass(frozen=True)
class NormEpsilon(Cause):
    """What norms add before they divide."""

    def propose(self, case: Case) -> Iterator[Change]:
        a, b = case.trace_a.epsilons, case.trace_b.epsilons
        if not a or not b or a == b:
            return
        if len(a) == len(b):
            wanted = tuple(b)
        elif len(set(b)) == 1:
            wanted = (b[0],)
        else:
            return
        yield self.change(
            *told_apart(a, b),
            patch_a={"epsilons": wanted},
            setting="the epsilon of norms",
            rounding=all_alike(a, [wanted[at % len(wanted)] for at in range(len(a))]),
        )


@dataclass(frozen=True)
class Gelu(Cause):
    """Exact (by erf), or by tanh. The exact one is made the other, whichever side it is on."""

    def propose(self, case: Case) -> Iterator[Change]:
        a, b = ("exact" in trace.gelus for trace in (case.trace_a, case.trace_b))
        if a == b:
            return
        names = {True: "exact", False: "by tanh"}
        patch = {"gelu": "tanh"}
        yield self.change(
            names[a],
            names[b],
            patch_a=patch if a else {},
            patch_b=patch if b else {},
            setting="the approximation of gelu",
        )


@dataclass(frozen=True)
class SoftCap(Cause):
    """A cap c: c · tanh(x / c) in place of x, of scores or of logits."""

    def propose(self, case: Case) -> Iterator[Change]:
        a, b = (
            {kind: cap for kind, cap, _ in trace.caps} for trace in (case.trace_a, case.trace_b)
        )
        if a == b:
            return
        differ = [one for one in ("scores", "logits") if a.get(one) != b.get(one)]
        mine = tuple((one, b.get(one, 0.0)) for one in differ if one in a)
        theirs = tuple((one, 0.0) for one in differ if one not in a)
        near = all(one in a and one in b and alike(a[one], b[one]) for one in differ)
        yield self.change(
            _caps(a),
            _caps(b),
            rounding=near,
            patch_a={"caps": mine} if mine else {},
            patch_b={"caps": theirs} if theirs else {},
            setting="the soft cap",
        )


def _caps(caps: dict[str, float]) -> str:
    return ", ".join(f"{name} capped at {cap:.10g}" for name, cap in caps.items()) or "no cap"


@dataclass(frozen=True)
class PaddingMask(Cause):
    """A padding mask that is read upside down: what is padding counts as text."""

    def propose(self, case: Case) -> Iterator[Change]:
        if not any(one.padding is not None for one in case.inputs):
            return
        yield self.change(
            "as its name says",
            "upside down",
            patch_b={"upside_down": True},
            setting="the sign of B's padding mask",
        )
        yield self.change(
            "upside down",
            "as its name says",
            patch_a={"upside_down": True},
            setting="the sign of A's padding mask",
        )


@dataclass(frozen=True)
class TrainingMode(Cause):
    """Dropout that still drops in evaluation mode."""

    def propose(self, case: Case) -> Iterator[Change]:
        a, b = (trace.drops > 0 for trace in (case.trace_a, case.trace_b))
        if not a and not b:
            return
        names = {True: "drops", False: "does not drop"}
        patch = {"silent": True}
        yield self.change(
            names[a],
            names[b],
            patch_a=patch if a else {},
            patch_b=patch if b else {},
            setting="dropout in evaluation mode",
        )
