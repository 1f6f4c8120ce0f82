"""Which variant is better: paired by seed, by Student's t, corrected for the number of pairs.

Two variants of one seed read the same batches, so what counts is the difference in each seed.
Holm's correction keeps the chance of any wrong "better" or "worse" among all pairs below 1 − level.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from attnlab.statistics import Interval, beyond, mean_interval

Verdict = Literal["better", "worse", "cannot tell"]
Losses = Mapping[str, Mapping[int, float]]  # by variant and seed


@dataclass(frozen=True, kw_only=True)
class Pair:
    first: str
    second: str
    interval: Interval | None  # of the first's loss less the second's; None: no seed in common
    p: float  # corrected by Holm; 1 where nothing can be said
    verdict: Verdict  # on the first


def pairs(losses: Losses, level: float) -> list[Pair]:
    """Every two variants once."""
    both = list(itertools.combinations(losses, 2))
    differences = {
        (first, second): [
            losses[first][seed] - losses[second][seed]
            for seed in losses[first]
            if seed in losses[second]
        ]
        for first, second in both
    }
    corrected = holm([p_value(differences[pair]) for pair in both])
    found = []
    for (first, second), p in zip(both, corrected, strict=True):
        values = differences[first, second]
        verdict: Verdict = "cannot tell"
        if p <= 1 - level:
            verdict = "better" if fmean(values) < 0 else "worse"
        interval = mean_interval(values, level) if values else None
        found.append(Pair(first=first, second=second, interval=interval, p=p, verdict=verdict))
    return found


def turned(verdict: Verdict) -> Verdict:
    """The same pair, asked of its second."""
    return {"better": "worse", "worse": "better"}.get(verdict, "cannot tell")  # type: ignore[return-value]


def holm(chances: Sequence[float]) -> list[float]:
    """p-values corrected for their number: the smallest times n, the next times n − 1, …"""
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    corrected, largest = [1.0] * len(chances), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min((len(chances) - rank) * chances[place], 1.0))
        corrected[place] = largest
    return corrected


def p_value(differences: Sequence[float]) -> float:
    """How often chance alone would give a mean so far from 0; 1 for fewer than two values."""
    if len(differences) < 2 or not any(differences):
        return 1.0
    error = stdev(differences) / math.sqrt(len(differences))
    if error == 0:
        return 0.0
    return beyond(abs(fmean(differences)) / error, len(differences) - 1)
