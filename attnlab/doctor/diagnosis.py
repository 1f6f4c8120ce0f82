"""Why two models differ: every cause by itself, then pairs, then threes, each tried.

A cause is named only if undoing it makes the outputs equal. Of several sets of the same size that
do, none is preferred: all are told, and that they cannot be told apart. What is the same but for
float32 is undone besides: it is no cause.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.doctor.case import EQUAL, Case, Change, OwnWeights
from attnlab.doctor.cause import Cause, all_causes
from attnlab.doctor.places import Parting, find_parting, finite

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
    rounding: tuple[Change, ...]  # what had to be undone besides, the same but for float32
    parting: Parting
    conversion: str  # Python source
    alone_a: tuple[str, ...]
    alone_b: tuple[str, ...]
    notes: tuple[str, ...]
    tried: int
    complete: bool  # whether all hypotheses were tried
    proposed: tuple[str, ...] = ()
    broken: str = ""  # sides that give no numbers beside padding
    nan: str = ""  # the side that gives NaN where the other gives numbers
    own: OwnWeights | None = None  # of a B that was trained

    @property
    def equal(self) -> bool:
        same = self.error_before <= EQUAL or self.rounded
        return same and len(self.broken) != 1

    @property
    def rounded(self) -> bool:
        """Equal but for what float32 rounds off on one side."""
        return bool(self.rounding) and not self.sets

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
            "rounding": [_plain(one) for one in self.rounding],
            "error_before": finite(self.error_before),
            "error_after": None if self.error_after is None else finite(self.error_after),
            "cannot_tell_from": [[_plain(one) for one in some] for some in self.sets[1:]],
            "settings": [one.setting for one in self.causes if one.setting],
            "growth": [
                {"layer": name, "error": finite(error)} for name, error in self.parting.growth
            ],
            "conversion": self.conversion,
            "without_partner": {"a": list(self.alone_a), "b": list(self.alone_b)},
            "own_weights": None if self.own is None else _own(self.own),
            "notes": list(self.notes),
            "compared": {"lengths": list(self.lengths), "padding": self.padded},
            "tried": {"hypotheses": self.tried, "all": self.complete},
        }


def _plain(one: Change) -> dict[str, str]:
    return {"name": one.cause, "a": one.a, "b": one.b}


def _own(one: OwnWeights) -> dict[str, Any]:
    return {"replaced": one.replaced, "differ": one.differ, "error": finite(one.error)}


def diagnose(
    case: Case, tick: Tick = lambda text: None, causes: Sequence[Cause] | None = None
) -> Diagnosis:
    """The answer; `causes` are all that are registered unless some are given."""
    tick("compare")
    before = case.error(whole=True)
    traces = case.carried_traces()
    parting = Parting(None, ())
    sets: list[tuple[Change, ...]] = []
    complete, proposed, rounding = True, list[list[Change]](), tuple[Change, ...]()
    if before > EQUAL:
        parting = find_parting(case, *traces)
        changes = [
            list(cause.propose(case)) for cause in (all_causes() if causes is None else causes)
        ]
        proposed = [one for some in changes if (one := [x for x in some if not x.rounding])]
        level = tuple(one[0] for some in changes if (one := [x for x in some if x.rounding]))
        rounded = bool(level) and _fits(case, level)
        if not rounded:
            sets, complete = _smallest_sets(case, proposed, level, tick)
        if sets or rounded:
            rounding = _needed(case, level, sets[0] if sets else ())
        case.error()  # B as it was compared
    chosen = sets[0] if sets else ()
    after = case.error((*rounding, *chosen), whole=True) if sets or rounding else None
    conversion = case.conversion(case.sides(chosen)[2])
    return Diagnosis(
        a=case.a.name,
        b=case.b.name,
        lengths=tuple(one.x.shape[1] for one in case.inputs if one.padding is None),
        padded=any(one.padding is not None for one in case.inputs),
        error_before=before,
        error_after=before if before <= EQUAL else after,
        sets=tuple(sets),
        rounding=rounding,
        parting=parting if sets or not rounding else Parting(None, ()),
        conversion=conversion.source if conversion.carried else "",
        alone_a=conversion.alone_a,
        alone_b=conversion.alone_b,
        notes=conversion.notes,
        tried=case.tried,
        complete=complete,
        proposed=tuple(some[0].cause for some in proposed),
        broken=case.broken,
        nan=case.nan,
        own=case.own_weights(chosen),
    )


def _smallest_sets(
    case: Case, proposed: Sequence[Sequence[Change]], level: tuple[Change, ...], tick: Tick
) -> tuple[list[tuple[Change, ...]], bool]:
    """All sets of the smallest size that make the outputs equal; whether all were tried."""
    for size in range(1, MOST_CAUSES + 1):
        found: list[tuple[Change, ...]] = []
        for number, some in enumerate(itertools.combinations(proposed, size)):
            if case.tried > MOST_TRIED:
                return found, False
            tick(f"causes, {size} at a time: {number} tried")
            fitting = next((one for one in _products(some) if _explains(case, one, level)), None)
            if fitting is not None:
                found.append(fitting)
        if found:
            return found, True
    return [], True


def _products(some: Sequence[Sequence[Change]]) -> Iterator[tuple[Change, ...]]:
    yield from itertools.product(*some)


def _explains(case: Case, changes: tuple[Change, ...], level: tuple[Change, ...]) -> bool:
    """With what only rounds undone besides, or by itself."""
    return _fits(case, changes) or (bool(level) and _fits(case, (*level, *changes)))


def _needed(
    case: Case, level: tuple[Change, ...], changes: tuple[Change, ...]
) -> tuple[Change, ...]:
    """Of what only rounds, what must be undone for the outputs to be equal."""
    for one in level:
        fewer = tuple(other for other in level if other is not one)
        if _fits(case, (*fewer, *changes)):
            level = fewer
    return level


def _fits(case: Case, changes: tuple[Change, ...]) -> bool:
    return case.error(changes) <= EQUAL
