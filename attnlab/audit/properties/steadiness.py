"""Steadiness: the same answer twice, finite numbers for large inputs and for every length."""

from dataclasses import dataclass

import torch

from attnlab.audit.contract import Finding
from attnlab.audit.probe.probe import LENGTHS, Probe
from attnlab.audit.properties.property import Property, unsteady


@dataclass(frozen=True)
class Evaluation(Property):
    """In evaluation mode two calls are equal: no dropout, no state that stays."""

    name = "evaluation"

    def tolerance(self, probe: Probe) -> float:
        return 0.0

    def examine(self, probe: Probe) -> Finding:
        reason = unsteady(probe)
        if reason:
            return self.finding("fail", reason, measured=probe.noise)
        return self.finding("pass", "identical calls give identical outputs", measured=probe.noise)


@dataclass(frozen=True)
class Finite(Property):
    name = "finite"

    def tolerance(self, probe: Probe) -> float:
        return 0.0

    def examine(self, probe: Probe) -> Finding:
        sizes = (1.0, 1e3) if probe.subject.continuous else (1.0,)
        for length in LENGTHS:
            for size in sizes:
                x = probe.draw(2, length)
                out = probe.run(x * size if probe.subject.continuous else x)
                wrong = (~torch.isfinite(out)).flatten(2).any(-1).nonzero().tolist()
                if wrong:
                    row, at = wrong[0]
                    detail = (
                        f"output {at} of row {row} is not finite at length {length}, "
                        f"inputs ×{size:g}"
                    )
                    example = {"length": length, "output": at, "factor": size}
                    return self.finding("fail", detail, example=example)
        cases = ", ".join(map(str, LENGTHS))
        return self.finding("pass", f"finite for lengths {cases} and inputs ×{sizes[-1]:g}")
