"""Backends: however attention is computed, whole or step by step, the outputs are the same.

Axes: b batch, t time.

For subjects with `backends`: by name, the same code run by other means. The first is what the
others are compared with. Outputs at padding are nobody's business.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import Tools
from attnlab.audit.properties.blame import blame
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, amount, movement, positions_in
from attnlab.audit.subject.base import Subject

FLEX = "flex_attention"
REAL = 8  # positions of a padded text that are not padding
PIECES = [5, 1, 1, 4, 1, 11]  # a beginning, single steps and chunks on a warm cache


def fails(
    run: Tool,
    draw: Tool,
    run_by: Tool,
    *,
    backend: str,
    usual: str,
    side: str,
    real: int,
    placed: bool,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Compute the same in two ways; with padding on a side, row 0 has so many real inputs."""
    x = draw(batch, length, seed)
    kept = torch.ones(batch, length, dtype=torch.bool)
    padding = positions = None
    if side:
        kept[0] = torch.arange(length) < real
        kept[0] = kept[0].flip(0) if side == "left" else kept[0]
        padding, positions = ~kept, positions_in(~kept) if placed else None
    off = movement(run(x, padding, positions), run_by(backend, x, padding, positions))
    off = off.masked_fill(~kept, 0)
    size, at = float(off.max()), int(off.amax(0).argmax())
    how = f", padding on the {side}" if side else ""
    text = f"{backend} differs from {usual} by {amount(size)} at output {at} of {length}{how}"
    return not size <= tolerance, text, size


def stepped_fails(
    draw: Tool,
    step: Tool,
    new_cache: Callable[[], Any],
    step_by: Tool,
    *,
    backend: str,
    usual: str,
    batch: int,
    pieces: list[int],
    seed: int,
    tolerance: float,
) -> Result:
    """Decode the same text in the same pieces in two ways."""
    x, first, second = draw(batch, sum(pieces), seed), new_cache(), new_cache()
    one = torch.cat([step(piece, first) for piece in x.split(pieces, dim=1)], dim=1)
    other = torch.cat([step_by(backend, piece, second) for piece in x.split(pieces, 1)], dim=1)
    off = movement(one, other).amax(0)
    size, at = float(off.max()), int(off.argmax())
    text = f"{backend} differs from {usual} by {amount(size)} at output {at}"
    return not size <= tolerance, f"{text} when stepped with a cache, in pieces of {pieces}", size


class Backends(Property):
    """Eager, sdpa, flex_attention; weights asked for or not.

    Needs: two ways.
    Fails: one that differs, whole, padded or stepped; each is a finding of its own. Which one is
      wrong is said where one alone leaks, mixes rows, reads padding, gives no numbers, steps unlike
      its own whole text, or stands against a majority.
    """

    name = "backends"

    def excuse(self, probe: Probe) -> Finding | None:
        if len(probe.subject.backends) < 2 and not flexible(probe):
            return self.on_pass(probe, [])
        return super().excuse(probe)

    def cases(self, probe: Probe) -> Iterator[Case]:
        usual = next(iter(probe.subject.backends), "usual")
        flex = [FLEX] if flexible(probe) and not flex_refusal(probe) else []
        for backend in [*list(probe.subject.backends)[1:], *flex]:
            few = backend == FLEX  # each takes long
            sizes = {"backend": backend, "usual": usual, "batch": 2}
            whole = {**sizes, "placed": probe.subject.placed, "real": REAL}
            for length in (23,) if few else (1, 2, 7, 23):
                yield self.case(probe, fails, backend, **whole, length=length, side="")
            if probe.subject.pads and self._other(probe, backend).pads:
                for side in probe.subject.sides:
                    yield self.case(probe, fails, backend, **whole, length=13, side=side)
            if probe.subject.caches and self._other(probe, backend).caches:
                pieces = PIECES[-3:] if few else PIECES
                yield self.case(probe, stepped_fails, backend, **sizes, pieces=pieces)

    def on_failure(self, probe: Probe, case: Case, result: Result) -> Finding | None:
        """Says which of the two is wrong, as far as that can be measured."""
        found = super().on_failure(probe, case, result)
        if found is None:
            return None
        others = list(dict.fromkeys([*list(probe.subject.backends)[1:], case.sizes["backend"]]))
        return replace(found, detail=f"{found.detail}; {blame(probe, case, others)}")

    def _other(self, probe: Probe, backend: str) -> Subject:
        return probe.subject.backends.get(backend, probe.subject)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        others = list(dict.fromkeys(case.sizes["backend"] for case, _ in tried))
        untried = flexible(probe) and FLEX not in others  # asked again only where it is refused
        left = f"; {FLEX} was not tried ({flex_refusal(probe)})" if untried else ""
        if not others:
            return self.finding("not applicable", f"attention is computed in one way only{left}")
        names = ", ".join([tried[0][0].sizes["usual"], *others])
        worst = max(size for _, (_, _, size) in tried)
        detail = f"{names} agree, whole and in pieces: off by {worst:.1e}{left}"
        return self.finding("pass", detail, measured=worst)


def flexible(probe: Probe) -> bool:
    """Whether a model claims that attention can be computed by flex_attention too."""
    return bool(getattr(probe.subject, "flexible", False))


def flex_refusal(probe: Probe) -> str:
    """Why it cannot, if it cannot."""
    try:
        Tools(probe).run_by(FLEX, probe.draw(2, 5))
    except SubjectError as error:
        return error.reason[:120]
    return ""
