"""Precision: what a float32 copy loses against the float64 one, beyond what rounding explains.

A choice (top-k, sorting, a hash, a comparison) that falls otherwise in float32 is no loss of
precision: what it chooses is seen as it happens, and compared.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

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
    uncompiled,
)
from attnlab.kernels import hardware

# A step in half precision has 13 bits (float16) or 16 (bfloat16) fewer than float32; sums over a
# few hundred numbers lose four or five. The bound lies between.
MOST_BITS = 10
MOST_BITS_DECLARED = 3  # in a declared half precision: all correct code here loses less than one
# operations whose results jump, however little their inputs change
CHOICES = (
    *("topk", "sort", "argsort", "argmax", "argmin", "kthvalue", "multinomial", "bucketize"),
    *("searchsorted", "round", "floor", "ceil", "trunc", "sign", "gt", "ge", "lt", "le"),
)
HALVES = (torch.float16, torch.bfloat16)


class Choices(TorchDispatchMode):
    """What is chosen by numbers while it watches, in order; and whether any become half ones.

    With `widens` these stay as they are, so that it shows what the half precision costs.
    """

    supports_higher_order_operators = True  # such as flex_attention, which then is one operation

    def __init__(self, widens: bool = False) -> None:
        super().__init__()
        self.made: list[tuple[str, Tensor]] = []
        self.narrows, self._widens = False, widens

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        given = [one for one in args if isinstance(one, Tensor) and one.is_floating_point()]
        kwargs, name = dict(kwargs or {}), func.__name__.partition(".")[0]
        if self._widens and given and kwargs.get("dtype") in HALVES:
            kwargs["dtype"] = given[0].dtype
        found = func(*args, **kwargs)
        wide = any(one.dtype not in HALVES for one in given)
        results = found if isinstance(found, tuple | list) else (found,)
        tensors = [one for one in results if isinstance(one, Tensor)]
        self.narrows |= wide and any(one.dtype in HALVES for one in tensors)
        if given and name in CHOICES:
            whole = [one for one in tensors if not one.is_floating_point()]
            # a sort gives its numbers too, which say nothing that its order does not
            self.made += [(name, one.double().clone()) for one in whole or tensors]
        return found

    def other(self, one: "Choices") -> str:
        """The first operation that chose otherwise than in another run; empty if none did."""
        for (name, mine), (_, theirs) in zip(self.made, one.made, strict=False):
            if mine.shape != theirs.shape or not bool((mine == theirs).all()):
                return name
        return "" if len(self.made) == len(one.made) else "how much it computes"


def cost_of_halves(run: Tool, x: Tensor, fine: Tensor, chosen: Choices) -> float:
    """How far the middle position moves when nothing inside is brought to a half precision."""
    if not chosen.narrows:
        return 0.0
    try:
        with uncompiled(), Choices(widens=True):
            wide = run(x)
    except MemoryError:  # how much there is, is our limit: nothing may pass for it
        raise
    except (
        Exception
    ):  # of their code, whose precisions do not go together: then roughness has to show it
        return 0.0
    return float(movement(wide, fine).amax(0).median())


def doubt_choices(fine: Choices, coarse: Choices, bits: float, dtype: str) -> None:
    """Raises CannotTell where a choice that falls otherwise explains a difference."""
    name = coarse.other(fine)
    if name:
        raise CannotTell(
            f"in {dtype} outputs are {bits:.1f} bits off, but a discrete choice (`{name}`) falls "
            "otherwise there: that is no loss of precision, and hides one"
        )


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
    with uncompiled(), Choices() as chosen:
        fine = run(x)
    with in_precision(model, torch.float32), uncompiled(), Choices() as chosen_there:
        coarse = run(x.float() if x.is_floating_point() else x)
    explained = rounding(run, x, model, fine, torch.float32, bool(chosen.made))
    halves = cost_of_halves(run, x, fine, chosen)
    # of the middle position: a token that goes to another expert has not lost precision
    lost = max(halves, float(movement(coarse, fine).amax(0).median()))
    # a step in half precision may be the same in both copies; then it shows as roughness, which
    # in code that is known to be exact, or that chooses, is choices that jump
    if not exact and not chosen.made:
        lost = max(lost, roughness(run, x, model, torch.float64))
    bits = math.log2(max(lost / explained, 1.0))
    text = f"in float32 it loses {bits:.1f} bits beyond what rounding its inputs costs"
    if bits > most:
        if halves < explained * 2**most:
            doubt_choices(chosen, chosen_there, bits, "float32")
        text += ": something inside is done in half precision, or cancels"
    return bits > most, text, round(bits, 1)


def rounding(
    run: Tool,
    x: Tensor,
    model: nn.Module | None,
    fine: Tensor,
    dtype: torch.dtype,
    chooses: bool,
) -> float:
    """How far outputs move when inputs and weights are rounded to the dtype."""
    eps = torch.finfo(dtype).eps
    # by a change that half precision would notice, brought to that of the dtype; where choices
    # jump by one that is too small for them, and of the middle position
    part = 2.0**-40 if chooses else 2.0**-8
    moved = movement(run_nudged(run, x, model, part, 0), fine).amax(0)
    change = float(moved.median() if chooses else moved.max())
    explained = max(change * eps / part, eps * float(fine.abs().max()))
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
    x, kind = draw(batch, length, seed), getattr(torch, dtype)
    with uncompiled(), Choices() as chosen:
        fine = run(x)
    given = x.to(kind) if x.is_floating_point() else x
    with in_precision(model, kind):
        why = " ".join(refusal(given).split())[:100]
        if why:
            return True, f"it does not run in {dtype}, which is declared: {why}", None
        with uncompiled(), Choices() as chosen_there:
            coarse = run(given)
    if not bool(torch.isfinite(coarse).all()):
        return True, f"in {dtype}, which is declared, outputs are not finite", None
    lost = float(movement(coarse, fine).amax(0).median())
    explained = rounding(run, x, model, fine, kind, bool(chosen.made))
    bits = math.log2(max(lost / explained, 1.0))
    text = f"in {dtype} it loses {bits:.1f} bits beyond what rounding its inputs costs"
    if bits > most:
        doubt_choices(chosen, chosen_there, bits, dtype)
    return bits > most, text, round(bits, 1)


class Precision(Property):
    """A float32 copy, and one in a declared dtype, against float64.

    Needs: float64.
    Fails: more than 10 bits lost beyond what rounding the inputs costs; in a declared dtype more
      than 3, an error, or a number that is not finite. Where a discrete choice falls otherwise it
      cannot be told.
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
            except SubjectError as error:
                detail = f"it does not run in float32: {error.sentence(during=self.name)}"
                return self.finding("cannot tell", detail)
        return None

    def cases(self, probe: Probe) -> Iterator[Case]:
        how = {"most": MOST_BITS, "exact": probe.subject.exact}
        yield self.case(probe, fails, "float32", batch=2, length=23, **how)
        if probe.contract.dtype is not None:
            dtype, most = probe.contract.dtype, MOST_BITS_DECLARED
            half = {"dtype": dtype, "most": most}
            self._need(probe, dtype)
            yield self.case(probe, declared_fails, dtype, batch=2, length=23, **half)

    def _need(self, probe: Probe, dtype: str) -> None:
        """A refusal is not the code's fault where this machine has no such products."""
        kind, where = getattr(torch, dtype), torch.device(probe.subject.device or "cpu")
        if not probe.refuses(kind):
            return
        try:
            hardware.require(kind, where)
        except ValueError:
            reason = f"{dtype} products do not run on this CPU: audit it on another machine"
            raise CannotTell(reason) from None
