"""Means and shares with intervals, sources of variance, how well a score tells two groups apart.

Intervals are at 95 % unless another level is asked for. Nothing here is random.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean, stdev

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Interval:
    """An estimate and a confidence interval; `low` and `high` are None for a single value."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def negated(self) -> "Interval":
        """Of the opposite number."""
        low, high = self.low, self.high
        ends = None if high is None else -high, None if low is None else -low
        return Interval(-self.mean, *ends, self.count)


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Of the mean, by Student's t: what repeating with other seeds would give."""
    if not values:
        raise ValueError("a mean needs at least one value")
    mean, count = fmean(values), len(values)
    if count == 1:
        return Interval(mean, None, None, 1)
    half = student(count - 1, level) * stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


@dataclass(frozen=True)
class Variance:
    """Of an estimate, and how many degrees of freedom it was itself estimated with."""

    value: float
    degrees: int

    def __add__(self, other: "Variance") -> "Variances":
        """Of a sum of two independent errors."""
        return Variances((self, other))

    def times(self, factor: float) -> "Variance":
        return Variance(factor * self.value, self.degrees)

    def interval(self, mean: float, level: float, count: int) -> Interval:
        half = student(self.degrees, level) * math.sqrt(self.value)
        return Interval(mean, mean - half, mean + half, count)

    def p_value(self, mean: float) -> float:
        """How often chance alone would give a mean so far from 0."""
        return beyond(abs(mean) / math.sqrt(self.value), self.degrees)


@dataclass(frozen=True)
class Variances:
    """Of a sum of independent errors, each estimated with degrees of freedom of its own.

    The p-value is the mean of the p-values that the parts' degrees would give, weighted by their
    shares of the variance. It lies between those of the fewest and of the most degrees. Welch and
    Satterthwaite's degrees take the shares for the truth: with 2 degrees against 29 Student's t is
    then wrong more often than the level allows; this is not (`attnlab check statistics`). With one
    degree the shares are not known at all, so that one is taken for the whole.
    """

    parts: tuple[Variance, ...]

    @property
    def value(self) -> float:
        return sum(part.value for part in self.parts)

    def interval(self, mean: float, level: float, count: int) -> Interval:
        half = _multiple(self._beyond, level) * math.sqrt(self.value)
        return Interval(mean, mean - half, mean + half, count)

    def p_value(self, mean: float) -> float:
        """How often chance alone would give a mean so far from 0."""
        return self._beyond(abs(mean) / math.sqrt(self.value))

    def _beyond(self, t: float) -> float:
        whole, fewest = self.value, min(part.degrees for part in self.parts)
        if whole == 0 or fewest == 1:
            return beyond(t, fewest)
        return sum(part.value / whole * beyond(t, part.degrees) for part in self.parts)


def weighted_mean_variance(values: ArrayLike, weights: ArrayLike) -> Variance | None:
    """Of the weighted mean of independent values; None for fewer than two."""
    these, shares = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    count = len(these)
    if count < 2:
        return None
    shares = shares / shares.sum()
    around = these - (shares * these).sum()
    return Variance(float(count / (count - 1) * ((shares * around) ** 2).sum()), count - 1)


def neighbour_correlation(values: ArrayLike) -> float | None:
    """Of each value with the next, around their mean; None for fewer than three or all equal."""
    around = np.asarray(values, np.float64)
    around = around - around.mean()
    squares = float((around**2).sum())
    if len(around) < 3 or squares == 0:
        return None
    return float((around[1:] * around[:-1]).sum()) / squares


def residual_variance(table: ArrayLike) -> Variance | None:
    """What rows and columns of a table do not explain: value = row + column + residual.

    NaN: a cell without a value. None where no degree of freedom is left. A whole table of r rows
    and c columns has (r − 1)(c − 1) degrees.
    """
    values = np.asarray(table, np.float64)
    if values.size and not np.isnan(values).any():
        degrees = (values.shape[0] - 1) * (values.shape[1] - 1)
        left = values - values.mean(0)
        left = left - left.mean(1, keepdims=True)
        return Variance(float((left**2).sum() / degrees), degrees) if degrees else None
    rows, columns = np.nonzero(~np.isnan(values))
    known = values[rows, columns]
    if len(known) == 0:
        return None
    design = np.hstack([np.eye(values.shape[0])[rows], np.eye(values.shape[1])[columns]])
    # without the mean: it is in the rows, and a small number loses less to rounding
    fit, _, rank, _ = np.linalg.lstsq(design, known - known.mean(), rcond=None)
    degrees = len(known) - int(rank)
    if degrees < 1:
        return None
    left = known - known.mean() - design @ fit
    return Variance(float((left**2).sum() / degrees), degrees)


def share_interval(right: int, count: int) -> Interval:
    """Of a share, by Wilson's score: what asking other people would give."""
    if not 0 <= right <= count or count < 1:
        raise ValueError(f"{right} of {count} is no share; count things, of 1 or more")
    z, share = NormalDist().inv_cdf(0.975), right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    half = z * spread / (1 + z * z / count)
    # rounding aside, an end at 0 or 1 is that number exactly
    return Interval(
        share, min(max(middle - half, 0), share), max(min(middle + half, 1), share), count
    )


@cache
def student(degrees: int, level: float = 0.95) -> float:
    """How many standard errors to either side hold the level, with so many degrees of freedom."""
    return _multiple(lambda t: beyond(t, degrees), level)


def _multiple(chance: Callable[[float], float], level: float) -> float:
    """The t beyond which the chance is 1 − level, by bisection."""
    low, high = 0.0, 1.0
    while chance(high) > 1 - level:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) > 1 - level else (low, middle)
    return high


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


def auroc(higher: Sequence[float], lower: Sequence[float]) -> float | None:
    """The chance that one of the first group scores above one of the second, ties counting half.

    None when a group is empty. Cost: O(n log n).
    """
    if not higher or not lower:
        return None
    ranked = sorted([(score, True) for score in higher] + [(score, False) for score in lower])
    wins, seen, place = 0.0, 0, 0
    while place < len(ranked):
        end = place
        while end < len(ranked) and ranked[end][0] == ranked[place][0]:
            end += 1
        firsts = sum(first for _, first in ranked[place:end])
        seconds = end - place - firsts
        wins += firsts * (seen + seconds / 2)
        seen += seconds
        place = end
    return wins / (len(higher) * len(lower))


def power(mean: float, deviation: float, count: int, bound: float, level: float = 0.95) -> float:
    """The chance that the interval of a mean of `count` new values lies above the bound.

    Of normal values with this mean and deviation. Given the deviation s of a sample, its mean is
    high enough with probability Φ(δ − t s/σ), δ = √n (mean − bound)/σ; s is averaged over, since
    √(n − 1) s/σ is chi-distributed.
    """
    if count < 2:
        return 0.0
    if deviation == 0:
        return float(mean > bound)
    degrees, normal = count - 1, NormalDist()
    lead = math.sqrt(count) * (mean - bound) / deviation
    scale = math.lgamma(degrees / 2) + (degrees / 2 - 1) * math.log(2)
    edge, steps = math.sqrt(degrees) + 10, 2000  # beyond the edge is less than 1e-20
    found = 0.0
    for step in range(steps):  # in the middle of each step
        chi = edge * (step + 0.5) / steps
        density = math.exp((degrees - 1) * math.log(chi) - chi * chi / 2 - scale)
        found += density * normal.cdf(lead - student(degrees, level) * chi / math.sqrt(degrees))
    return min(found * edge / steps, 1.0)
