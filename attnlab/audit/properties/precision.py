"""Precision: what a float32 copy loses against the float64 one, beyond what rounding explains."""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe, apart, typical
from attnlab.audit.properties.property import Property, unsteady

# A step in half precision has 13 bits (float16) or 16 (bfloat16) fewer than float32; sums over a
# few hundred numbers lose four or five. The bound lies between.
MOST_BITS = 10
LARGE = 2.0**-8


@dataclass(frozen=True)
class Precision(Property):
    name = "precision"

    def tolerance(self, probe: Probe) -> float:
        return 0.0  # it measures what is lost, and calls nothing equal

    def examine(self, probe: Probe) -> Finding:
        subject = probe.subject
        if subject.dtype is not torch.float64:
            return self.finding("not applicable", f"it runs in {subject.dtype} only")
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason)
        x = probe.draw()
        exact = probe.run(x)
        rough = _in_float32(probe, x)
        if rough is None:
            return self.finding("cannot tell", "it does not run in float32")
        eps = torch.finfo(torch.float32).eps
        # by a change that half precision would notice, brought down to that of float32
        moved = apart(probe.nudged_run(LARGE, 0), exact) * eps / LARGE
        explained = max(moved, eps * float(exact.abs().max()))
        if not explained > 0:
            return self.finding("cannot tell", "outputs are 0, or no numbers: nothing can be lost")
        # of the middle position: a token that goes to another expert has not lost precision. A
        # step in half precision may be the same in both copies; then it shows as roughness
        lost = max(typical(rough.double(), exact), probe.rounding)
        bits = math.log2(max(lost / explained, 1.0))
        detail = f"in float32 it loses {bits:.1f} bits beyond what rounding its inputs costs"
        if bits <= MOST_BITS:
            return self.finding("pass", detail, measured=round(bits, 1))
        detail += ": something inside is done in half precision, or cancels"
        return self.finding("fail", detail, measured=round(bits, 1))


def _in_float32(probe: Probe, x: Tensor) -> Tensor | None:
    """The outputs of a float32 copy; the weights are put back as they were."""
    module = probe.subject.module
    kept = copy.deepcopy(module.state_dict()) if module is not None else None
    try:
        if module is not None:
            module.float()
        return probe.run(x.float() if x.is_floating_point() else x)
    except SubjectError:
        return None
    finally:
        if module is not None and kept is not None:
            module.double()
            module.load_state_dict(kept)
