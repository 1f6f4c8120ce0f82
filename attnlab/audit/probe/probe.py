"""The probe of a subject: runs it, knows its noise, and measures who influences whom.

Axes: b batch, t time; output i, input j.
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.contract import Contract
from attnlab.audit.errors import SubjectError
from attnlab.audit.repro import prelude
from attnlab.audit.subject.adapters import arrange
from attnlab.audit.subject.base import Subject
from attnlab.audit.subject.guard import guard

LENGTHS = (1, 2, 7, 23, 70)  # odd, prime, and beyond a block of 64
# one below, at and one past the sizes that blocks usually have
BLOCK_EDGES = tuple(block + more for block in (16, 32, 64, 128) for more in (-1, 0, 1))
# factors on inputs that are changed: a mask of −10⁵ holds until scores are larger
SIZES = (1.0, 1e3)
BLIND = 0.1  # a tolerance that is this part of the outputs shows nothing
SAFETY = 16  # roundings inside the code, against those of its inputs: a few per operation


class Probe:
    """Of a subject, called as a contract has it.

    What the code raises under it is a SubjectError, and nothing else is one.
    """

    def __init__(self, subject: Subject, contract: Contract) -> None:
        self.subject = guard(arrange(subject, contract))
        self.contract = contract

    def run(self, x: Tensor, **how: Any) -> Tensor:
        with torch.no_grad():
            return self.subject.run(x, **how)

    def step(self, x: Tensor, cache: Any, **how: Any) -> Tensor:
        with torch.no_grad():
            return self.subject.step(x, cache, **how)

    def draw(self, batch: int = 2, length: int = 23, seed: int = 0) -> Tensor:
        return self.subject.draw(batch, length, seed)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Of the texts that are tried; none beyond the others that is too long for the code."""
        found = sorted({*LENGTHS, *BLOCK_EDGES})
        while found[-1] > max(LENGTHS):
            try:
                self.run(self.draw(1, found[-1]))
                break
            except SubjectError:  # a table of positions has an end
                found.pop()
        return tuple(found)

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

    @cached_property
    def chance(self) -> float:
        """How far calls with other random numbers are apart; 0 for code that draws none."""
        worst = 0.0
        for length in (7, 23):
            x = self.draw(length=length)
            first = self.run(x)
            others = (prelude.run_seeded(self.run, x, seed) for seed in (1, 2, 3))
            worst = max([worst, *(apart(one, first) for one in others)])
        return worst

    @property
    def random(self) -> bool:
        """Whether the code draws random numbers that count."""
        return self.chance > self.allowed_noise

    @property
    def steady(self) -> bool:
        """Whether identical calls agree."""
        return self.noise <= self.allowed_noise

    @property
    def allowed_noise(self) -> float:
        """What the order of sums in float32 explains."""
        return SAFETY * torch.finfo(torch.float32).eps * self.largest

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
        """In code that is known to be exact, roughness is tokens that go to other experts, and no
        reason for a wide tolerance."""
        if self.subject.exact:
            return 0.0
        return prelude.roughness(self.run, self.draw(), self.subject.module, self.subject.dtype)

    def nudged_run(self, part: float, seed: int) -> Tensor:
        return prelude.run_nudged(self.run, self.draw(), self.subject.module, part, seed)

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
        if not tolerance < float("inf"):
            return "there are outputs that are no finite numbers: nothing can be called equal"
        if not self.largest or tolerance <= BLIND * self.largest:
            return ""
        return (
            f"outputs up to {self.largest:.2g} can be told apart by {tolerance:.2g} only: too "
            "coarse to call anything equal"
        )

    def influence(self, length: int, seed: int = 0) -> Tensor:
        """How far output i moves when input j is replaced, [t, t]."""
        return prelude.influence(self.run, self.draw, length, seed)


def apart(one: Tensor, other: Tensor) -> float:
    """The largest change; infinite where only one of them is a number."""
    return float(prelude.movement(one, other).max()) if one.numel() else 0.0
