"""Batches: a row depends on nothing but itself, whatever rows are beside it."""

from collections.abc import Iterator

import torch

from attnlab.audit.contract import Finding
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, amount, movement

CHANGES = {
    "neighbours": "its neighbours change",
    "alone": "it runs alone",
    "order": "the rows are in another order",
}


def fails(
    run: Tool, draw: Tool, *, change: str, batch: int, length: int, seed: int, tolerance: float
) -> Result:
    """A row is the same beside other rows, alone, and in another order."""
    x = draw(batch, length, seed)
    together = run(x)
    if change == "neighbours":
        others = torch.cat([x[:1], draw(batch, length, seed + 100)[1:]])
        off = movement(run(others)[:1], together[:1])
    elif change == "alone":
        off = movement(run(x[:1]), together[:1])
    else:
        off = movement(run(x.flip(0)).flip(0), together)
    size, at = float(off.max()), int(off.amax(0).argmax())
    what = f"a row's output {at} moves by {amount(size)} when {CHANGES[change]}"
    return size > tolerance, f"{what}, of {length}", size


class Batch(Property):
    """Neighbours change, a row alone, rows in another order.

    Fails: a row that moves.
    """

    name = "batch"

    def cases(self, probe: Probe) -> Iterator[Case]:
        for length in (2, 7, 23, 33):
            for change in CHANGES:
                alike = change == "neighbours"
                yield self.case(probe, fails, "", alike, change=change, batch=5, length=length)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        return self.finding("pass", "rows are the same alone, with others and in any order")
