"""Backends: however attention is computed, whole or step by step, the outputs are the same.

Axes: b batch, t time.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe, apart
from attnlab.audit.properties.property import Property, unsteady
from attnlab.audit.subject.base import Subject

FLEX = "flex_attention"
REAL = 8  # positions of a padded text that are not padding
PIECES = (5, 1, 1, 4, 1, 11)  # a beginning, single steps and chunks on a warm cache


@dataclass(frozen=True)
class Backends(Property):
    """For subjects with `backends`: by name, the same code run by other means.

    The first is what the others are compared with. Outputs at padding are nobody's business.
    """

    name = "backends"

    def examine(self, probe: Probe) -> Finding:
        backends: Mapping[str, Subject] = probe.subject.backends or {"usual": probe.subject}
        flex, untried = flexible(next(iter(backends.values())))
        if len(backends) + len(flex) < 2:
            only = f"attention is computed in one way only{untried}"
            return self.finding("not applicable", only)
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason)
        (usual, first), *others = backends.items()
        worst = 0.0
        for name, other in [*others, *flex.items()]:
            with uncompiled() if name in flex else nullcontext():
                for what, one, two in _pairs(probe, first, other, few=name in flex):
                    off = apart(one, two)
                    worst = max(worst, off if off < float("inf") else 0.0)
                    if not off <= probe.tolerance:
                        detail = f"{name} differs from {usual} by {off:.2g} {what}"
                        example = {"backends": [usual, name], "what": what, "size": _plain(off)}
                        return self.finding("fail", detail, measured=_plain(off), example=example)
        names = ", ".join([*backends, *flex])
        detail = f"{names} agree, whole and in pieces: off by {worst:.1e}{untried}"
        return self.finding("pass", detail, measured=worst)


def flexible(subject: Any) -> tuple[dict[str, Subject], str]:
    """The same model by flex_attention where it says that it has that, or why that is not tried."""
    if not getattr(subject, "flexible", False):
        return {}, ""
    other = subject.by(FLEX)
    try:
        with torch.no_grad(), uncompiled():
            other.run(subject.draw(2, 5, 0))
    except SubjectError as error:
        return {}, f"; {FLEX} was not tried ({error.reason[:120]})"
    return {FLEX: other}, ""


@contextmanager
def uncompiled() -> Iterator[None]:
    """What asks to be compiled runs as it stands: for inputs this small that is faster."""
    with torch.compiler.set_stance("force_eager"):
        yield


def _plain(size: float) -> float | None:
    return size if size < float("inf") else None


def _pairs(
    probe: Probe, first: Subject, other: Subject, few: bool = False
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Outputs that must be equal, and of what; a few where each of them takes long."""
    with torch.no_grad():
        for length in (23,) if few else (1, 2, 7, 23):
            x = probe.draw(2, length)
            yield f"at length {length}", first.run(x), other.run(x)
        if first.pads and other.pads:
            x = probe.draw(2, 13)
            places = {"right": slice(0, REAL), "left": slice(13 - REAL, 13)}
            for side, real in ((side, places[side]) for side in first.sides):
                padding = torch.ones(2, 13, dtype=torch.bool)
                padding[0, real], padding[1] = False, False
                one, two = first.run(x, padding=padding), other.run(x, padding=padding)
                yield f"with padding on the {side}", one[:1, real], two[:1, real]
                yield f"beside padding on the {side}", one[1:], two[1:]
        if first.caches and other.caches:
            pieces = PIECES[-3:] if few else PIECES
            x = probe.draw(2, sum(pieces))
            one, two = (_stepped(subject, x, pieces) for subject in (first, other))
            yield "when stepped with a cache", one, two


def _stepped(subject: Subject, x: Tensor, pieces: tuple[int, ...]) -> Tensor:
    cache = subject.new_cache()
    return torch.cat([subject.step(piece, cache) for piece in x.split(pieces, dim=1)], dim=1)
