"""Left padding: a text behind padding gives what it gives alone, as a whole and when decoded.

Axes: b batch, t time.

For models whose `step` takes padding, as those of `transformers`: batches are generated so.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from attnlab.audit.contract import Finding
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties import padding
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, amount, movement

LENGTH, REAL, STEPS = 13, 8, 4


def fails(
    run: Tool,
    draw: Tool,
    step: Tool,
    new_cache: Callable[[], Any],
    *,
    placed: bool,
    batch: int,
    length: int,
    real: int,
    steps: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Row 0 stands behind padding, and is decoded: a beginning, then so many single steps."""
    if steps >= real:
        raise ValueError("a beginning of padding alone has nothing to be decoded from")
    x, cache = draw(batch, length, seed), new_cache()
    mask = torch.zeros(batch, length, dtype=torch.bool)
    mask[0, : length - real] = True
    sizes = [length - steps, *[1] * steps]
    pieces = zip(x.split(sizes, 1), mask.split(sizes, 1), strict=True)
    found = torch.cat([step(piece, cache, hidden) for piece, hidden in pieces], dim=1)
    alone = run(x[:1, length - real :], None, torch.arange(real)[None] if placed else None)
    change = movement(found[:1, length - real :], alone).amax(0)
    size, at = float(change.max()), int(change.argmax())
    seen = f"output {at} of {real} differs by {amount(size)} from that of the text alone"
    return size > tolerance, f"decoded behind {length - real} of padding, {seen}", size


class LeftPadding(Property):
    """Transformers only: a text behind padding, given positions, whole and decoded.

    Needs: a mask.
    Fails: a text that moves.
    """

    name = "left padding"

    def excuse(self, probe: Probe) -> Finding | None:
        if not probe.subject.pads:
            return self.finding("not applicable", "it takes no mask for padding")
        return super().excuse(probe)

    def cases(self, probe: Probe) -> Iterator[Case]:
        sizes = {"placed": probe.subject.placed, "length": LENGTH, "real": REAL}
        for change in ("content", "row", "added"):
            how = {**sizes, "change": change, "side": "left"}
            yield self.case(probe, padding.fails, batch=2, **how)
        if probe.subject.caches:
            yield self.case(probe, fails, batch=2, steps=STEPS, **sizes)

    def on_failure(self, probe: Probe, case: Case, result: Result) -> Finding | None:
        _, detail, measured = result
        compares = case.sizes.get("change") not in ("content", "row")  # with the text alone
        if compares and not probe.subject.placed:
            detail += "; it takes no positions, so the text stands elsewhere"
            return self.finding("not applicable", detail, measured=measured)
        if "left" not in probe.subject.sides:
            detail += "; the library says that padding may stand on the right only"
            return self.finding("not applicable", detail, measured=measured)
        return super().on_failure(probe, case, result)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        return self.finding("pass", "a text behind padding gives what it gives alone")
