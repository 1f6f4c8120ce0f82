"""The probe of a subject: runs it, knows its noise, and measures who influences whom.

Axes: b batch, t time; output i, input j.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.contract import Contract
from attnlab.audit.errors import SubjectError, calling
from attnlab.audit.subject.adapters import arrange
from attnlab.audit.subject.base import Subject
from attnlab.audit.subject.guard import guard
from attnlab.audit.subject.tensors import normal

LENGTHS = (1, 2, 7, 23, 70)  # odd, prime, and beyond a block of 64
# factors on inputs that are changed: a mask of −10⁵ holds until scores are larger
SIZES = (1.0, 1e3)
JUMP = 2.0**-5  # of the outputs: no grid is as coarse (bfloat16's is 2⁻⁸), only another choice is
BLIND = 0.1  # a tolerance that is this part of the outputs shows nothing
SAFETY = 16  # roundings inside the code, against those of its inputs: a few per operation


class Probe:
    """Of a subject, called as a contract has it.

    What the code raises under it is a SubjectError, and nothing else is one.
    """

    def __init__(self, subject: Subject, contract: Contract, seed: int = 0) -> None:
        self.subject = guard(arrange(subject, contract))
        self.contract, self.seed = contract, seed

    def run(self, x: Tensor, **how: Any) -> Tensor:
        with torch.no_grad():
            return self.subject.run(x, **how)

    def step(self, x: Tensor, cache: Any) -> Tensor:
        with torch.no_grad():
            return self.subject.step(x, cache)

    def draw(self, batch: int = 2, length: int = 23, seed: int = 0) -> Tensor:
        return self.subject.draw(batch, length, self.seed + 101 * seed)

    @cached_property
    def noise(self) -> float:
        """How far two identical calls are apart; 0 for deterministic code."""
        worst = 0.0
        for length in (7, 23):
            x = self.draw(length=length)
            first = self.run(x)
            for _ in range(2):
                worst = max(worst, apart(self.run(x), first))
        return worst

    @property
    def steady(self) -> bool:
        """Whether identical calls agree, up to the order of sums in float32."""
        return self.noise <= SAFETY * torch.finfo(torch.float32).eps * self.largest

    @cached_property
    def largest(self) -> float:
        """Of the outputs, where they are numbers."""
        return float(self.run(self.draw()).abs().nan_to_num(posinf=0).max())

    @cached_property
    def rounding(self) -> float:
        """How finely outputs can be told apart: how far they move when inputs (of tokens: weights)
        change in their last bits, and how rough they are, whichever is more."""
        return max(*self._nudges, self._rough)

    @cached_property
    def _nudges(self) -> list[float]:
        before, eps = self.run(self.draw()), torch.finfo(self.subject.dtype).eps
        return [apart(self.nudged_run(eps, seed), before) for seed in range(3)]

    @cached_property
    def _rough(self) -> float:
        return self._roughness(self.run(self.draw()))

    def _roughness(self, before: Tensor) -> float:
        """What a step inside that is done in a lower precision leaves of smoothness.

        y(x + δ) + y(x − δ) − 2y(x) falls with δ² where y is smooth: by 64 from 8δ to δ. Where
        something is rounded to a grid, it does not. The steps δ are about the grids of float16,
        of float32, and what float64 can resolve. In code that is known to be exact, roughness is
        tokens that go to other experts, and no reason for a wide tolerance.
        """
        if self.subject.exact:
            return 0.0
        worst = 0.0
        for part in (math.sqrt(torch.finfo(self.subject.dtype).eps), 2.0**-20, 2.0**-10):
            near, far = (
                apart(self.nudged_run(size, 0) + self.nudged_run(-size, 0), 2 * before)
                for size in (part, 8 * part)
            )
            # a token that goes to another expert, a key no longer among the top: no rounding
            jumps = near > JUMP * self.largest
            # a kink, as of ReLU, falls by 8; a grid does not fall at all
            worst = max(worst, near if near > far / 4 and not jumps else 0.0)
        return worst

    def nudged_run(self, part: float, seed: int) -> Tensor:
        """The outputs when every input (of tokens: weight) is changed by this part of it."""
        if self.subject.continuous:
            return self.run(_nudged(self.draw(), part, seed))
        with self._nudged_weights(part, seed):
            return self.run(self.draw())

    @cached_property
    def tolerance(self) -> float:
        """What counts as equal: the noise of identical calls, and what rounding explains."""
        smallest = torch.finfo(self.subject.dtype).eps * float(self.run(self.draw()).abs().max())
        return 4 * self.noise + SAFETY * max(self.rounding, smallest)

    @cached_property
    def fine(self) -> float:
        """The same for what comes before a change, in calls of one shape.

        Their arithmetic is the same, so rounding has no occasion to break a tie, and the least of
        the nudges counts.
        """
        smallest = torch.finfo(self.subject.dtype).eps * float(self.run(self.draw()).abs().max())
        return 4 * self.noise + SAFETY * max(min(self._nudges), self._rough, smallest)

    def blind(self, tolerance: float) -> str:
        """Why nothing that is within a tolerance can be called equal; empty if it can."""
        if not self.largest or tolerance <= BLIND * self.largest:
            return ""
        return (
            f"outputs up to {self.largest:.2g} can be told apart by {tolerance:.2g} only: too "
            "coarse to call anything equal"
        )

    def influence(self, length: int, seed: int = 0) -> Tensor:
        """How much output i moves when input j is replaced, [t, t]; the most of two times."""
        x = self.draw(1, length, seed)
        before = self.run(x)
        matrix = torch.zeros(length, length, dtype=torch.float64)
        for j in range(length):
            for other in (1, 2):
                moved = self.run(
                    replaced(x, self.draw(1, length, seed + 10 + other), slice(j, j + 1))
                )
                matrix[:, j] = torch.maximum(matrix[:, j], movement(moved, before))
        return matrix

    def gradient(self, length: int, seed: int = 0) -> Tensor | None:
        """The same by gradients: the size of ∂output i/∂input j along random directions."""
        if not self.subject.continuous:
            return None
        matrix = torch.zeros(length, length, dtype=torch.float64)
        x = self.draw(1, length, seed).requires_grad_()
        try:
            out = self.subject.run(x)
        except SubjectError:  # without gradients it may run
            return None
        if not out.requires_grad:
            return None
        along = normal(7, *out.shape).to(out)
        for i in range(length):
            try:
                with calling("backward", length):
                    (found,) = torch.autograd.grad(
                        (out[:, i] * along[:, i]).sum(), x, retain_graph=True, allow_unused=True
                    )
            except SubjectError:  # code that writes over its own numbers, or has no gradient
                return None
            if found is not None:
                matrix[i] = found.detach().abs().amax(-1)[0].double()
        return matrix

    @contextmanager
    def _nudged_weights(self, part: float, seed: int) -> Iterator[None]:
        module = self.subject.module
        if module is None:
            raise SubjectError(
                "a Subject of tokens needs its `module`: weights are changed in their last bits to "
                "see what rounding does"
            )
        kept = [one.detach().clone() for one in module.parameters()]
        with torch.no_grad():
            for number, one in enumerate(module.parameters()):
                if one.is_floating_point() and one.numel():
                    one.copy_(_nudged(one, part, 31 * seed + number))
            try:
                yield
            finally:
                for one, before in zip(module.parameters(), kept, strict=True):
                    one.copy_(before)


def _nudged(x: Tensor, part: float, seed: int) -> Tensor:
    """Every number larger or smaller by this part of it, at random."""
    return x * (1 + part * normal(seed, *x.shape).sign().to(x))


def sized(x: Tensor, size: float) -> Tensor:
    """So many times as large; tokens have no size."""
    return x * size if x.is_floating_point() else x


def replaced(x: Tensor, other: Tensor, at: slice, size: float = 1.0) -> Tensor:
    """x with other inputs at some positions, so many times as large."""
    changed = x.clone()
    values = other[:, at]
    if not x.is_floating_point():
        # the next token, if the other happens to be the same
        changed[:, at] = torch.where(
            values == x[:, at], (values + 1) % (int(other.max()) + 1), values
        )
        return changed
    changed[:, at] = sized(values, size)
    return changed


def movement(one: Tensor, other: Tensor) -> Tensor:
    """By position [t]: the largest change; infinite where only one of them is a number."""
    sizes = zip(one.shape, other.shape, strict=False)
    if one.dim() != other.dim() or any(a != b and 1 not in (a, b) for a, b in sizes):
        raise SubjectError(
            f"the code gave outputs of unlike shapes, {list(one.shape)} and {list(other.shape)}"
        )
    neither = one.isnan() & other.isnan()
    change = (one.double() - other.double()).abs().masked_fill(neither, 0.0)
    return torch.nan_to_num(change.amax(dim=(0, 2)), nan=float("inf"))


def apart(one: Tensor, other: Tensor) -> float:
    return float(movement(one, other).max()) if one.numel() else 0.0


def typical(one: Tensor, other: Tensor) -> float:
    """The middle position's change: what one position does on its own is left out."""
    return float(movement(one, other).median()) if one.numel() else 0.0
