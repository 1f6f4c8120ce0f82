"""Why two models differ: every cause by itself, then pairs, then threes, each tried.

A cause is named only if undoing it makes the outputs equal. Of several sets of the same size that
do, none is preferred: all are told, and that they cannot be told apart.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.doctor.case import EQUAL, Case, Change
from attnlab.doctor.cause import Cause, all_causes
from attnlab.doctor.places import Parting, find_parting

Tick = Callable[[str], None]
MOST_CAUSES = 3
MOST_TRIED = 6_000  # hypotheses; who tries no more says so


@dataclass(frozen=True)
class Diagnosis:
    a: str
    b: str
    lengths: tuple[int, ...]
    padded: bool  # whether padding was compared too
    error_before: float
    error_after: float | None  # None: nothing makes them equal
    sets: tuple[tuple[Change, ...], ...]  # of causes that do, each as good as the others
    parting: Parting
    conversion: str  # Python source
    alone_a: tuple[str, ...]
    alone_b: tuple[str, ...]
    notes: tuple[str, ...]
    tried: int
    complete: bool  # whether all hypotheses were tried
    proposed: tuple[str, ...] = ()
    broken: str = ""  # sides that give no numbers beside padding

    @property
    def equal(self) -> bool:
        return self.error_before <= EQUAL and len(self.broken) != 1

    @property
    def causes(self) -> tuple[Change, ...]:
        """The smallest set; of several the first."""
        return self.sets[0] if self.sets else ()

    @property
    def exit_code(self) -> int:
        return 0 if self.equal else 1

    def plain(self) -> dict[str, Any]:
        first = self.parting.first
        return {
            "equal": self.equal,
            "first_difference": None if first is None else first.plain(),
            "causes": [_plain(one) for one in self.causes],
            "error_before": _number(self.error_before),
            "error_after": None if self.error_after is None else _number(self.error_after),
            "cannot_tell_from": [[_plain(one) for one in some] for some in self.sets[1:]],
            "settings": [one.setting for one in self.causes if one.setting],
            "growth": [
                {"layer": name, "error": _number(error)} for name, error in self.parting.growth
            ],
            "conversion": self.conversion,
            "without_partner": {"a": list(self.alone_a), "b": list(self.alone_b)},
            "notes": list(self.notes),
            "compared": {"lengths": list(self.lengths), "padding": self.padded},
            "tried": {"hypotheses": self.tried, "all": self.complete},
        }


def _plain(one: Change) -> dict[str, str]:
    return {"name": one.cause, "a": one.a, "b": one.b}


def _number(error: float) -> float | None:
    return error if math.isfinite(error) else None


def diagnose(
    case: Case, tick: Tick = lambda text: None, causes: Sequence[Cause] | None = None
) -> Diagnosis:
    """The answer; `causes` are all that are registered unless some are given."""
    tick("compare")
    before = case.error(whole=True)
    traces = case.carried_traces()
    parting = Parting(None, ())
    sets: list[tuple[Change, ...]] = []
    complete, proposed = True, list[list[Change]]()
    if before > EQUAL:
        parting = find_parting(case, *traces)
        proposed = [
            some
            for cause in (all_causes() if causes is None else causes)
            if (some := list(cause.propose(case)))
        ]
        sets, complete = _smallest_sets(case, proposed, tick)
        case.error()  # B as it was compared
    chosen = sets[0] if sets else ()
    after = case.error(chosen, whole=True) if sets else None
    conversion = case.conversion(case.sides(chosen)[2])
    return Diagnosis(
        a=case.a.name,
        b=case.b.name,
        lengths=tuple(one.x.shape[1] for one in case.inputs if one.padding is None),
        padded=any(one.padding is not None for one in case.inputs),
        error_before=before,
        error_after=before if before <= EQUAL else after,
        sets=tuple(sets),
        parting=parting,
        conversion=conversion.source if conversion.carried else "",
        alone_a=conversion.alone_a,
        alone_b=conversion.alone_b,
        notes=conversion.notes,
        tried=case.tried,
        complete=complete,
        proposed=tuple(some[0].cause for some in proposed),
        broken=case.broken,
    )


def _smallest_sets(
    case: Case, proposed: Sequence[Sequence[Change]], tick: Tick
) -> tuple[list[tuple[Change, ...]], bool]:
    """All sets of the smallest size that make the outputs equal; whether all were tried."""
    for size in range(1, MOST_CAUSES + 1):
        found: list[tuple[Change, ...]] = []
        for number, some in enumerate(itertools.combinations(proposed, size)):
            if case.tried > MOST_TRIED:
                return found, False
            tick(f"causes, {size} at a time: {number} tried")
            fitting = next((one for one in _products(some) if _fits(case, one)), None)
            if fitting is not None:
                found.append(fitting)
        if found:
            return found, True
    return [], True


def _products(some: Sequence[Sequence[Change]]) -> Iterator[tuple[Change, ...]]:
    yield from itertools.product(*some)


def _fits(case: Case, changes: tuple[Change, ...]) -> bool:
    return case.error(changes) <= EQUAL
