"""Backends: however attention is computed, whole or step by step, the outputs are the same.

Axes: b batch, t time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.audit.bench import Bench, apart
from attnlab.audit.contract import Finding
from attnlab.audit.properties.property import Property, unsteady
from attnlab.audit.subject import Subject

REAL = 8  # positions of a padded text that are not padding
PIECES = (5, 1, 1, 4, 1, 11)  # a beginning, single steps and chunks on a warm cache


@dataclass(frozen=True)
class Backends(Property):
    """For subjects with `backends`: by name, the same code run by other means.

    The first is what the others are compared with. Outputs at padding are nobody's business.
    """

    name = "backends"

    def examine(self, bench: Bench) -> Finding:
        backends: dict[str, Subject] = getattr(bench.subject, "backends", None) or {}
        if len(backends) < 2:
            return self.finding("not applicable", "attention is computed in one way only")
        reason = unsteady(bench)
        if reason:
            return self.finding("cannot tell", reason)
        (usual, first), *others = backends.items()
        worst = 0.0
        for name, other in others:
            for what, one, two in _pairs(bench, first, other):
                off = apart(one, two)
                worst = max(worst, off if off < float("inf") else 0.0)
                if not off <= bench.tolerance:
                    detail = f"{name} differs from {usual} by {off:.2g} {what}"
                    example = {"backends": [usual, name], "what": what, "size": _plain(off)}
                    return self.finding("fail", detail, measured=_plain(off), example=example)
        detail = f"{', '.join(backends)} agree, whole and in pieces: off by {worst:.1e}"
        return self.finding("pass", detail, measured=worst)


def _plain(size: float) -> float | None:
    return size if size < float("inf") else None


def _pairs(bench: Bench, first: Subject, other: Subject) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Outputs that must be equal, and of what."""
    with torch.no_grad():
        for length in (1, 2, 7, 23):
            x = bench.draw(2, length)
            yield f"at length {length}", first.run(x), other.run(x)
        if first.pads:
            x = bench.draw(2, 13)
            for side, real in (("right", slice(0, REAL)), ("left", slice(13 - REAL, 13))):
                padding = torch.ones(2, 13, dtype=torch.bool)
                padding[0, real], padding[1] = False, False
                one, two = first.run(x, padding=padding), other.run(x, padding=padding)
                yield f"with padding on the {side}", one[:1, real], two[:1, real]
                yield f"beside padding on the {side}", one[1:], two[1:]
        if first.caches:
            x = bench.draw(2, sum(PIECES))
            yield "when stepped with a cache", _stepped(first, x), _stepped(other, x)


def _stepped(subject: Subject, x: Tensor) -> Tensor:
    cache = subject.new_cache()
    return torch.cat([subject.step(piece, cache) for piece in x.split(PIECES, dim=1)], dim=1)
