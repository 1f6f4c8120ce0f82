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

from attnlab.statistics import Interval

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
        interval = interval_at(values, level) if values else None
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


def interval_at(values: Sequence[float], level: float) -> Interval:
    """Of the mean, by Student's t; one value alone has no ends."""
    mean, count = fmean(values), len(values)
    if count == 1:
        return Interval(mean, None, None, 1)
    half = quantile(level, count - 1) * stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def beyond(t: float, degrees: int) -> float:
    """The chance that Student's t is further from 0 than this, with so many degrees of freedom.

    With θ = atan(t/√ν) the distribution of a whole ν is a finite sum of powers of cos θ.
    """
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0 if degrees == 1 else term
    for n in range(2 + odd, degrees - 1, 2):
        term *= cosine * cosine * (n - 1) / n
        total += term
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(max(1 - within, 0.0), 1.0)


def quantile(level: float, degrees: int) -> float:
    """How many standard errors to either side hold the level."""
    low, high = 0.0, 1.0
    while beyond(high, degrees) > 1 - level:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle, degrees) > 1 - level else (low, middle)
    return high
