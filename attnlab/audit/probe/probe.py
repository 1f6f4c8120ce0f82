"""The probe of a subject: runs it, knows its noise, and measures who influences whom.

Axes: b batch, t time; output i, input j.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.contract import Contract
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.lengths import Lengths
from attnlab.audit.repro import prelude
from attnlab.audit.subject.adapters import arrange
from attnlab.audit.subject.base import Subject, Vectors
from attnlab.audit.subject.guard import guard
from attnlab.audit.subject.lengths import named_lengths

# factors on inputs that are changed: a mask of −10⁵ holds until scores are larger
SIZES = (1.0, 1e3)
BLIND = 0.1  # a tolerance that is this part of the outputs shows nothing
SAFETY = 16  # roundings inside the code, against those of its inputs: a few per operation
HALF_SAFETY = 4  # the same in a half precision, whose sums are made in float32
# of one call with many rows: more positions are no faster, more numbers take much memory
POSITIONS, NUMBERS = 1536, 2**23


class Probe:
    """Of a subject, called as a contract has it.

    What the code raises under it is a SubjectError, and nothing else is one.
    """

    def __init__(self, subject: Subject, contract: Contract) -> None:
        self.subject = guard(arrange(subject, contract))
        self.contract = contract
        self.results: dict[Any, prelude.Result] = {}  # of checks that are asked for again
        self._influence: dict[tuple[int, int], Tensor] = {}
        self._outputs: Tensor | None = None
        self._finite: dict[int, bool] = {}

    @cached_property
    def taken(self) -> Lengths:
        """The lengths that the code takes; some probes never ask."""
        return Lengths(
            self._refusal,
            named_lengths(self.subject.module),
            block=self.subject.block,
            unfilled=self._unfilled_refusal,
            picture=self.subject.parts,
        )

    def run(self, x: Tensor, **how: Any) -> Tensor:
        with torch.no_grad():
            return self.subject.run(x, **how)

    def refuses(self, dtype: torch.dtype) -> bool:
        """Whether the code does not run in a dtype, where it is."""
        x = self.draw(2, 5)
        with prelude.in_precision(self.subject.module, dtype):
            try:
                self.run(x.to(dtype) if x.is_floating_point() else x)
            except SubjectError:
                return True
        return False

    def _refusal(self, length: int) -> SubjectError | None:
        """What the code raises at a length."""
        try:
            self._finite[length] = bool(torch.isfinite(self.run(self.draw(2, length))).all())
        except SubjectError as error:
            return error
        return None

    def _unfilled_refusal(self, length: int) -> SubjectError | None:
        if not isinstance(self.subject, Vectors) or self.subject.parts:
            return None
        convention = replace(self.subject.convention, block=1)
        return Probe(self.subject.with_convention(convention), self.contract)._refusal(length)

    def finite(self, length: int) -> bool:
        """Whether the outputs of a text of a length that it takes are numbers."""
        return self.taken.takes(length) and self._finite[length]

    def step(self, x: Tensor, cache: Any, **how: Any) -> Tensor:
        with torch.no_grad():
            return self.subject.step(x, cache, **how)

    def draw(self, batch: int = 2, length: int | None = None, seed: int = 0) -> Tensor:
        return self.subject.draw(batch, self.usual if length is None else length, seed)

    @cached_property
    def usual(self) -> int:
        """The length of texts on which nothing depends."""
        return self.taken.fit(23)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the texts that are tried, within what the code takes."""
        return self.taken.tried

    @cached_property
    def _before(self) -> Tensor:
        return self._firsts[-1][1]

    @cached_property
    def _firsts(self) -> list[tuple[Tensor, Tensor]]:
        """A short text and a usual one, each with its outputs: other calls are held to these."""
        texts = [self.draw(length=length) for length in (self.taken.fit(7), self.usual)]
        return [(x, self.run(x)) for x in texts]

    @cached_property
    def noise(self) -> float:
        """How far two identical calls are apart; 0 for deterministic code."""
        return max(apart(self.run(x), first) for x, first in self._firsts for _ in range(3))

    @cached_property
    def chance(self) -> float:
        """How far calls with other random numbers are apart; 0 for code that draws none."""
        return max(
            apart(prelude.run_seeded(self.run, x, seed), first)
            for x, first in self._firsts
            for seed in (1, 2, 3)
        )

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
        """What the order of sums in float32, rounded to the code's own precision, explains."""
        eps = torch.finfo(torch.float32).eps
        if self._half:
            eps = torch.finfo(self.subject.dtype).eps / SAFETY
        return SAFETY * eps * self.largest

    @property
    def _half(self) -> bool:
        return self.subject.dtype in (torch.float16, torch.bfloat16)

    @property
    def safety(self) -> int:
        return HALF_SAFETY if self._half else SAFETY

    @cached_property
    def largest(self) -> float:
        """Of the outputs, where they are numbers."""
        return float(self._before.abs().nan_to_num(posinf=0).max())

    @cached_property
    def rounding(self) -> float:
        """How finely outputs can be told apart: how far they move when inputs (of tokens: weights)
        change in their last bits, and how rough they are, whichever is more."""
        return max(*self._nudges, self._rough)

    @cached_property
    def _nudges(self) -> list[float]:
        eps = torch.finfo(self.subject.dtype).eps
        return [apart(self.nudged_run(eps, seed), self._before) for seed in range(3)]

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
        return 4 * self.noise + self.safety * max(self.rounding, self._smallest)

    @cached_property
    def fine(self) -> float:
        """The same for what comes before a change, in calls of one shape.

        Their arithmetic is the same, so rounding has no occasion to break a tie, and the least of
        the nudges counts.
        """
        return 4 * self.noise + self.safety * max(min(self._nudges), self._rough, self._smallest)

    @cached_property
    def _smallest(self) -> float:
        return torch.finfo(self.subject.dtype).eps * float(self._before.abs().max())

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
        """How far output i moves when input j is replaced, [t, t]; of the nearest length taken."""
        length = self.taken.fit(length)
        if (length, seed) not in self._influence:
            rows = self.rows(length)
            found = prelude.influence(self.run, self.draw, length, seed, rows)
            self._influence[length, seed] = found
        return self._influence[length, seed]

    def outputs(self, length: int) -> Tensor:
        """Of one row; kept until another length is asked for."""
        if self._outputs is None or self._outputs.shape[1] != length:
            self._outputs = self.run(self.draw(2, length)[:1])
        return self._outputs

    def room(self, length: int) -> int:
        """How many texts of a length fit into one call."""
        whole = length + -length % self.subject.block
        width = self._before.flatten(2).shape[-1]
        return max(1, min(POSITIONS // whole, NUMBERS // (whole * width)))

    def rows(self, length: int) -> int:
        """How many of them may run in one call as if each ran alone."""
        return self.room(length) if self._apart else 1

    @cached_property
    def _apart(self) -> bool:
        """Whether rows that run in one call, as many as fit, are as if each ran alone."""
        length = self.taken.fit(7)
        x = self.draw(self.room(length), length)
        try:
            together = self.run(x)
            alone = [apart(self.run(x[n : n + 1]), together[n : n + 1]) for n in (0, len(x) - 1)]
        except (SubjectError, prelude.CannotTell):  # it takes so many rows only
            return False
        return max(alone) <= self.tolerance


def apart(one: Tensor, other: Tensor) -> float:
    """The largest change; infinite where only one of them is a number."""
    return float(prelude.movement(one, other).max()) if one.numel() else 0.0
