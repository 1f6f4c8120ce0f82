"""Which variant is better: seeds are blocks, variants share one residual variance, texts vary too.

    loss[variant, seed] = variant + seed + residual          (randomized blocks)

Comparisons and studies judge by the functions of this file.

With a seed come the same batches for all variants, so what a seed does to all of them cancels in a
difference. The residual variance is estimated from all variants together: with 4 variants and 3
seeds it has 6 degrees of freedom, where the differences of one pair alone have 2. A pair whose own
differences vary more than that keeps its own, larger variance: one variant that is much less steady
than the others must not be judged by their calm.

The held-out text is a sample as well, the same for all seeds: its part of the variance comes from
the differences over BATCHES long parts of the text, and more seeds do not reduce it. Neighbouring
stretches are alike, so many short ones would count the same evidence several times; what is left of
that between long parts is allowed for by ALLOWANCE.

Holm's correction keeps the chance of any wrong "better" or "worse" among all differences that are
judged together at 1 − level or below, where residuals are normal, no variant varies more than twice
as much over the seeds as the others, and neighbouring thirtieths of the text correlate by 0.6 or
less. `attnlab check statistics` simulates that and shows what happens beyond it. The choice of a
learning rate is not counted.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from attnlab.statistics import (
    Interval,
    Variance,
    Variances,
    neighbour_correlation,
    residual_variance,
    weighted_mean_variance,
)

LEVEL = 0.95  # of confidence, for all differences that are judged together
Verdict = Literal["better", "worse", "cannot tell"]
Direction = Literal["lower", "higher", "cannot tell"]
Losses = Mapping[str, Mapping[int, float]]  # by variant and seed
# losses are made of float32: a spread below that of its rounding says nothing about the noise
RESOLUTION = 2.0**-23
# long parts of the held-out text, and how many times larger the variance of its mean is than they
# say: 1.57 where neighbouring thirtieths of the text correlate by 0.6, the next but one by 0.36, …
# (docs/notes.md has other numbers of batches)
BATCHES, ALLOWANCE = 6, 1.6


@dataclass(frozen=True)
class Stretches:
    """Held-out losses of one model, summed over each stretch of the text."""

    sums: Sequence[float]
    counts: Sequence[float]  # tokens

    @property
    def loss(self) -> float:
        return math.fsum(self.sums) / math.fsum(self.counts)

    def batches(self) -> "Stretches":
        """The same in BATCHES parts that follow each other, or as many as there are stretches."""
        count, whole = min(BATCHES, len(self.sums)), len(self.sums)
        borders = [number * whole // count for number in range(count + 1)]
        parts = list(itertools.pairwise(borders))
        return Stretches(
            sums=[math.fsum(self.sums[start:end]) for start, end in parts],
            counts=[math.fsum(self.counts[start:end]) for start, end in parts],
        )


Texts = Mapping[str, Mapping[int, Stretches]]  # by variant and seed


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first's loss less the second's, and how well it is known."""

    first: str
    second: str
    mean: float | None  # None: no seed in common
    seeds: int = 0
    by_seeds: Variance | None = None  # None: nothing is known about the noise
    by_sample: Variance | None = None  # of the text or the people tested; None: not counted
    neighbours: float | None = None  # correlation of the differences over neighbouring stretches

    @property
    def variance(self) -> Variance | Variances | None:
        if self.by_seeds is None or self.by_sample is None:
            return self.by_seeds
        return self.by_seeds + self.by_sample

    @property
    def p(self) -> float:
        """By itself; 1 where nothing can be said."""
        if self.mean is None or self.variance is None:
            return 1.0
        return self.variance.p_value(self.mean)

    def interval(self, level: float) -> Interval | None:
        if self.mean is None:
            return None
        if self.variance is None:
            return Interval(self.mean, None, None, self.seeds)
        return self.variance.interval(self.mean, level, self.seeds)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A difference that was judged together with others."""

    first: str
    second: str
    interval: Interval | None  # of this difference by itself; None: no seed in common
    p: float  # corrected by Holm; 1 where nothing can be said
    verdict: Verdict  # on the first, where a lower value is better
    family: int = 1  # differences that were judged together
    seeds_error: float | None = None  # standard error of the difference by the choice of seeds
    text_error: float | None = None  # and by the choice of the held-out text
    neighbours: float | None = None  # correlation of the differences over neighbouring stretches

    @property
    def direction(self) -> Direction:
        """Of the first's value, seen from the second's."""
        names: dict[Verdict, Direction] = {"better": "lower", "worse": "higher"}
        return names.get(self.verdict, "cannot tell")

    @property
    def mirrored(self) -> "Pair":
        """The same pair, asked of its second."""
        opposite: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
        return replace(
            self,
            first=self.second,
            second=self.first,
            interval=None if self.interval is None else self.interval.negated,
            verdict=opposite.get(self.verdict, "cannot tell"),
        )


@dataclass(frozen=True)
class Verdicts:
    """All pairs that were judged together."""

    pairs: Sequence[Pair]

    def between(self, first: str, second: str) -> Pair:
        for pair in self.pairs:
            if (pair.first, pair.second) == (first, second):
                return pair
            if (pair.second, pair.first) == (first, second):
                return pair.mirrored
        raise KeyError((first, second))


def judge(differences: Sequence[Difference], level: float = LEVEL) -> Verdicts:
    """A verdict on each: the chance of any wrong one among them is at most 1 − level."""
    found = []
    for one, p in zip(differences, holm([one.p for one in differences]), strict=True):
        verdict: Verdict = "cannot tell"
        if one.mean is not None and p <= 1 - level:
            verdict = "better" if one.mean < 0 else "worse"
        found.append(
            Pair(
                first=one.first,
                second=one.second,
                interval=one.interval(level),
                p=p,
                verdict=verdict,
                family=len(differences),
                seeds_error=_error(one.by_seeds),
                text_error=_error(one.by_sample),
                neighbours=one.neighbours,
            )
        )
    return Verdicts(found)


def pairs(losses: Losses, level: float, texts: Texts | None = None) -> list[Pair]:
    """Every two variants once, judged together."""
    return list(judge(differences(losses, texts), level).pairs)


def p_values(losses: Losses, texts: Texts | None = None) -> dict[tuple[str, str], float]:
    """Those of `pairs`, without its intervals, which take three times as long."""
    found = differences(losses, texts)
    corrected = holm([one.p for one in found])
    return {(one.first, one.second): p for one, p in zip(found, corrected, strict=True)}


def differences(
    losses: Losses,
    texts: Texts | None = None,
    among: Sequence[tuple[str, str]] | None = None,
) -> list[Difference]:
    """Of every two variants, or of the pairs `among` them; all variants share one noise.

    Without `texts` only seeds are counted as a source of chance.
    """
    noise = residual(losses)
    batches = {
        name: {seed: text.batches() for seed, text in row.items()}
        for name, row in (texts or {}).items()
    }
    return [
        _difference(losses, noise, texts or {}, batches, first, second)
        for first, second in among or itertools.combinations(losses, 2)
    ]


def residual(losses: Losses) -> Variance | None:
    """Of one training, around its variant and its seed; None where none can be seen."""
    seeds = sorted({seed for one in losses.values() for seed in one})
    table = np.array([[one.get(seed, np.nan) for seed in seeds] for one in losses.values()])
    found = residual_variance(table) if table.size else None
    if found is None or math.sqrt(found.value) <= RESOLUTION * float(np.nanmax(np.abs(table))):
        return None
    return found


def text_variance(values: np.ndarray, counts: np.ndarray) -> Variance | None:
    """Of a mean by which text was held out, from its values in batches of so many tokens."""
    found = weighted_mean_variance(values, counts)
    return None if found is None else found.times(ALLOWANCE)


def over_text(models: Sequence[Stretches]) -> tuple[np.ndarray, np.ndarray]:
    """The mean loss of some models in each part of the text, and its tokens."""
    counts = np.array([one.counts for one in models], np.float64)
    return (np.array([one.sums for one in models]) / counts).mean(0), counts.mean(0)


def _difference(
    losses: Losses, noise: Variance | None, texts: Texts, batches: Texts, first: str, second: str
) -> Difference:
    seeds = [seed for seed in losses[first] if seed in losses[second]]
    if not seeds:
        return Difference(first=first, second=second, mean=None)
    values = np.array([losses[first][seed] - losses[second][seed] for seed in seeds])
    by_text, neighbours = None, None
    if all(seed in texts.get(name, {}) for seed in seeds for name in (first, second)):

        def apart(of: Texts) -> tuple[np.ndarray, np.ndarray]:
            mine, counts = over_text([of[first][seed] for seed in seeds])
            return mine - over_text([of[second][seed] for seed in seeds])[0], counts

        by_text = text_variance(*apart(batches))
        neighbours = neighbour_correlation(apart(texts)[0])
    by_seeds = None
    if noise is not None and len(seeds) > 1:  # one seed never tells
        larger = max(2 * noise.value, float(values.var(ddof=1)))
        by_seeds = Variance(larger / len(seeds), noise.degrees)
    return Difference(
        first=first,
        second=second,
        mean=float(values.mean()),
        seeds=len(seeds),
        by_seeds=by_seeds,
        by_sample=by_text,
        neighbours=neighbours,
    )


def _error(variance: Variance | None) -> float | None:
    return None if variance is None else math.sqrt(variance.value)


def holm(chances: Sequence[float]) -> list[float]:
    """p-values corrected for their number: the smallest times n, the next times n − 1, …"""
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    corrected, largest = [1.0] * len(chances), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min((len(chances) - rank) * chances[place], 1.0))
        corrected[place] = largest
    return corrected
