"""Finite outputs: no NaN and no infinity, whatever the length and however large the inputs."""

from collections.abc import Iterator

import torch

from attnlab.audit.contract import Finding
from attnlab.audit.probe.probe import SIZES, Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool


def fails(
    run: Tool, draw: Tool, *, batch: int, length: int, factor: float, seed: int, tolerance: float
) -> Result:
    """Every output is a finite number, for inputs that are so many times as large."""
    x = draw(batch, length, seed)
    out = run(x * factor if x.is_floating_point() else x)
    wrong = (~torch.isfinite(out)).flatten(2).any(-1).nonzero().tolist()
    if not wrong:
        return False, f"every output of {length} is finite, for inputs times {factor:g}", None
    row, at = wrong[0]
    return True, f"output {at} of row {row} is not finite, of {length}, inputs ×{factor:g}", None


class Finite(Property):
    """Some 26 lengths up to 129, one below, at and one past 16, 32, 48, 64, 96 and 128 among
    them; inputs × 1 and × 1,000.

    Fails: a number that is not finite.
    """

    name = "finite"
    alike = True

    def tolerance(self, probe: Probe) -> float:
        return 0.0

    def excuse(self, probe: Probe) -> None:
        return None

    def cases(self, probe: Probe) -> Iterator[Case]:
        for length in probe.lengths:
            sizes = [] if probe.finite(length) else [1.0]  # it ran when lengths were tried
            sizes += [one for one in SIZES if one > 1 and probe.subject.continuous]
            for factor in sizes:
                yield self.case(probe, fails, batch=2, length=length, factor=factor)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        largest = f" and inputs ×{SIZES[-1]:g}" if probe.subject.continuous else ""
        lengths = probe.taken.tried_text
        return self.finding("pass", f"finite for {lengths}{largest}{probe.taken.note}")
