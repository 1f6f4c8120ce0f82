"""Precision: what a float32 copy loses against the float64 one, beyond what rounding explains."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import (
    CannotTell,
    Result,
    Tool,
    in_precision,
    movement,
    roughness,
    run_nudged,
)

# A step in half precision has 13 bits (float16) or 16 (bfloat16) fewer than float32; sums over a
# few hundred numbers lose four or five. The bound lies between.
MOST_BITS = 10
MOST_BITS_DECLARED = 3  # in a declared half precision: all correct code here loses less than one


def fails(
    run: Tool,
    draw: Tool,
    model: nn.Module | None,
    *,
    most: float,
    exact: bool,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """In float32 against float64: no more bits are lost than rounding the inputs costs."""
    x = draw(batch, length, seed)
    fine = run(x)
    with in_precision(model, torch.float32):
        coarse = run(x.float() if x.is_floating_point() else x)
    explained = rounding(run, x, model, fine, torch.float32)
    # of the middle position: a token that goes to another expert has not lost precision
    lost = float(movement(coarse, fine).amax(0).median())
    # a step in half precision may be the same in both copies; then it shows as roughness, which
    # in code that is known to be exact is choices that jump
    if not exact:
        lost = max(lost, roughness(run, x, model, torch.float64))
    bits = math.log2(max(lost / explained, 1.0))
    text = f"in float32 it loses {bits:.1f} bits beyond what rounding its inputs costs"
    if bits > most:
        text += ": something inside is done in half precision, or cancels"
    return bits > most, text, round(bits, 1)


def rounding(
    run: Tool, x: Tensor, model: nn.Module | None, fine: Tensor, dtype: torch.dtype
) -> float:
    """How far outputs move when inputs and weights are rounded to the dtype."""
    eps = torch.finfo(dtype).eps
    # by a change that half precision would notice, brought to that of the dtype
    change = float(movement(run_nudged(run, x, model, 2.0**-8, 0), fine).max())
    explained = max(change * eps * 2**8, eps * float(fine.abs().max()))
    if not explained > 0:
        raise CannotTell("outputs are 0, or no numbers: nothing can be lost")
    return explained


def declared_fails(
    run: Tool,
    draw: Tool,
    refusal: Callable[[Tensor], str],
    model: nn.Module | None,
    *,
    dtype: str,
    most: float,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """In a declared precision: it runs, and loses no more bits than rounding the inputs costs."""
    x = draw(batch, length, seed)
    fine, kind = run(x), getattr(torch, dtype)
    given = x.to(kind) if x.is_floating_point() else x
    with in_precision(model, kind):
        why = " ".join(refusal(given).split())[:100]
        if why:
            return True, f"it does not run in {dtype}, which is declared: {why}", None
        coarse = run(given)
    if not bool(torch.isfinite(coarse).all()):
        return True, f"in {dtype}, which is declared, outputs are not finite", None
    lost = float(movement(coarse, fine).amax(0).median())
    bits = math.log2(max(lost / rounding(run, x, model, fine, kind), 1.0))
    text = f"in {dtype} it loses {bits:.1f} bits beyond what rounding its inputs costs"
    return bits > most, text, round(bits, 1)


class Precision(Property):
    """A float32 copy, and one in a declared dtype, against float64.

    Needs: float64.
    Fails: more than 10 bits lost beyond what rounding the inputs costs; in a declared dtype more
      than 3, an error, or a number that is not finite.
    """

    name = "precision"

    def tolerance(self, probe: Probe) -> float:
        return 0.0  # it measures what is lost, and calls nothing equal

    def excuse(self, probe: Probe) -> Finding | None:
        dtype = probe.subject.dtype
        if dtype is not torch.float64:
            return self.finding("not applicable", f"it runs in {dtype} only")
        return super().excuse(probe) or self._unfit(probe)

    def _unfit(self, probe: Probe) -> Finding | None:
        """Code that does not run in float32 has nothing to compare."""
        x = probe.draw()
        with in_precision(probe.subject.module, torch.float32):
            try:
                probe.run(x.float() if x.is_floating_point() else x)
            except SubjectError:
                return self.finding("cannot tell", "it does not run in float32")
        return None

    def cases(self, probe: Probe) -> Iterator[Case]:
        how = {"most": MOST_BITS, "exact": probe.subject.exact}
        yield self.case(probe, fails, batch=2, length=23, **how)
        if probe.contract.dtype is not None:
            dtype, most = probe.contract.dtype, MOST_BITS_DECLARED
            yield self.case(probe, declared_fails, dtype=dtype, most=most, batch=2, length=23)
