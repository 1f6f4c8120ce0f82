"""Devices: code on a GPU gives what it gives on the CPU in float64, as far as its dtype can.

Code that runs on the CPU too is compared with itself there. What a dtype costs is measured: the
same code in plain PyTorch, on the CPU in that dtype, against float64. Half precisions that the
code takes are compared with the finest that it takes, on the device.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import Tools
from attnlab.audit.properties.precision import Choices, doubt_choices, rounding
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, in_precision, movement

MOST = 8  # times what plain PyTorch is off by: kernels sum in another order, correct ones lose 2
TF32 = 2.0**-7  # of the largest output: what products in TF32 (10 bits) explain
MOST_BITS = 3  # that a half precision loses beyond what rounding inputs and weights costs
HALVES = ("float16", "bfloat16")


def fails(
    run: Tool,
    draw: Tool,
    run_plain: Tool,
    *,
    device: str,
    dtype: str,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """The same code and weights on the device, and on the CPU in float64 and in the same dtype."""
    x = draw(batch, length, seed)
    fine = run_plain(x, torch.float64)
    change, plain = movement(run(x), fine), movement(run_plain(x, getattr(torch, dtype)), fine)
    size, at = float(change.max()), int(change.amax(0).argmax())
    largest, eps = float(fine.abs().max()), torch.finfo(getattr(torch, dtype)).eps
    explained = max(float(plain.max()), eps * largest, tolerance)
    text = f"on {device} in {dtype} output {at} of {length} is off by {size:.2g} from the CPU in "
    text += f"float64; plain PyTorch in {dtype} by {float(plain.max()):.2g}"
    reduced = dtype == "float32" and size <= TF32 * largest
    wrong = not (size <= MOST * explained or reduced)
    text += "" if wrong or size <= MOST * explained else ", as products in TF32 are"
    return wrong, text, size / explained


def half_fails(
    run: Tool,
    draw: Tool,
    refusal: Callable[[Tensor], str],
    model: nn.Module | None,
    *,
    device: str,
    finest: str,
    dtype: str,
    most: float,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """In a half precision against the finest that the code takes: no more is lost than rounding
    the inputs costs."""
    kind = getattr(torch, dtype)
    x = draw(batch, length, seed)
    x = x.to(kind).to(x.dtype) if x.is_floating_point() else x
    with Choices() as chosen:
        fine = run(x)
    with in_precision(model, kind), Choices() as chosen_there:
        coarse = run(x.to(kind) if x.is_floating_point() else x)
    if not bool(torch.isfinite(coarse).all()):
        return True, f"on {device} in {dtype} outputs are not finite", None
    lost, at = movement(coarse, fine).amax(0).max(0)
    explained = rounding(run, x, model, fine, kind, bool(chosen.made))
    bits = math.log2(max(float(lost) / explained, 1.0))
    if bits > most and chosen.made:  # else only the half precision chooses: its own way to round
        doubt_choices(chosen, chosen_there, bits, dtype)
    text = f"on {device} in {dtype} output {int(at)} of {length} loses {bits:.1f} bits against "
    return bits > most, f"{text}{finest}, beyond what rounding its inputs costs", round(bits, 1)


class Device(Property):
    """On a device against the CPU in float64, and in half precisions against the finest.

    Needs: code that runs on the CPU too, or in more than one dtype.
    Fails: 8 times what plain PyTorch is off by in that dtype; 3 bits lost in a half precision.
    """

    name = "device"

    def tolerance(self, probe: Probe) -> float:
        return 4 * probe.noise

    def cases(self, probe: Probe) -> Iterator[Case]:
        dtype = str(probe.subject.dtype)[6:]
        lengths = [one for one in probe.lengths if one in (1, 2, 7, 23, 64, 65, 129)]
        how = {"device": probe.subject.device, "batch": 2}
        if not unplain(probe):
            for length in lengths:
                yield self.case(probe, fails, **how, dtype=dtype, length=length)
        for half in HALVES:
            if dtype in HALVES or probe.refuses(getattr(torch, half)):
                continue
            for length in lengths[-2:]:
                sizes = {"finest": dtype, "dtype": half, "most": MOST_BITS, "length": length}
                yield self.case(probe, half_fails, **how, **sizes)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        dtype, reason = str(probe.subject.dtype)[6:], unplain(probe)
        where = f"it runs on {probe.subject.device} in {dtype}"
        if not tried:
            return self.finding("cannot tell", f"{where}, and in no other way ({reason})")
        whole = [result for case, result in tried if case.fails is fails]
        halves = [(case, result) for case, result in tried if case.fails is half_fails]
        parts = [max(whole, key=lambda one: one[2])[1]] if whole else []
        if not whole:
            parts += [f"{where}; not on the CPU, to be compared ({reason})"]
        for name in dict.fromkeys(case.sizes["dtype"] for case, _ in halves):
            worst = max(one[2] for case, one in halves if case.sizes["dtype"] == name)
            parts += [f"{name} loses {worst} bits beyond rounding"]
        return self.finding("pass", "; ".join(parts))


def unplain(probe: Probe) -> str:
    """Why the code cannot be compared with itself on the CPU; empty if it can."""
    for dtype in (torch.float64, probe.subject.dtype):
        try:
            Tools(probe).run_plain(probe.draw(2, 5), dtype)
        except SubjectError as error:
            return error.reason[:120]
    return ""
