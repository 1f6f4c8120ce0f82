"""How reports show losses: intervals, differences in words, curves over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from attnlab.experiments.verdicts import LEVEL, Pair
from attnlab.reports.report import Plot, Section, Series
from attnlab.statistics import Interval, mean_interval

HOW_MEASURED = (
    "Times are medians: the models take turns in random order, and the device is waited for. The "
    "peak holds weights, gradients, the optimiser's state and all else that a step needs; on a CPU "
    "it is read from the process, and right to a tenth."
)
LEARNING_CURVES = "Learning curves"
BAND = 3  # seeds: the interval of two is as wide as the plot


def with_ends(interval: Interval | None, digits: int = 3, sign: str = "") -> str | None:
    """1.64 (1.60 to 1.68) for a table; the mean alone where there are no ends."""
    if interval is None:
        return None
    mean = f"{interval.mean:{sign}.{digits}f}"
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} ({interval.low:{sign}.{digits}f} to {interval.high:{sign}.{digits}f})"


def mean_with_ends(losses: Mapping[int, float]) -> str | None:
    """Of the losses by seed."""
    return with_ends(mean_interval(list(losses.values())))


def in_words(pair: Pair) -> str:
    """What follows "its loss": is 0.110 lower (0.090 to 0.130), or cannot be told apart."""
    assert pair.interval is not None, "no seed in common"
    low, high = pair.interval.low, pair.interval.high
    size, way = abs(pair.interval.mean), "lower" if pair.interval.mean < 0 else "higher"
    if low is None or high is None:
        seeds = "in one seed" if pair.interval.count == 1 else "in every seed alike"
        return f"is {size:.3f} {way} {seeds}, which cannot tell"
    if pair.verdict == "cannot tell":
        alone = "" if low <= 0 <= high else f" by itself, p = {pair.p:.2g} of {pair.family}"
        return f"cannot be told apart from it ({low:+.3f} to {high:+.3f}{alone})"
    ends = sorted((abs(low), abs(high)))
    return f"is {size:.3f} {way} ({ends[0]:.3f} to {ends[1]:.3f})"


def judged_together(family: int, seeds: int, text: bool) -> str:
    """How differences were judged, for the text of a report."""
    if seeds == 1:
        return "There is one seed, so no difference can be told from chance: use seeds=3 or more."
    sources, where = "seeds, not of the held-out text", ""
    if text:
        sources = "seeds and of the held-out text"
        where = " and neighbouring thirtieths of the text correlate by 0.6 or less"
    return f"""Models of one seed read the same batches, so they are compared seed by seed, and all
        models together say how much seeds vary. The intervals of differences are at
        {100 * LEVEL:g} %, each by itself, and count the choice of {sources}. Whether a difference
        counts is judged for all {family} differences of this study together, by Student's t with
        Holm's correction: the chance of even one wrong verdict is at most
        {100 * (1 - LEVEL):.3g} % when no model varies more than twice as much over the seeds as the
        others{where}. So an interval can leave out 0 where we still cannot tell."""


def counted_seeds(seeds: int) -> str:
    return f"{seeds} seed" + ("" if seeds == 1 else "s")


def listed(names: Sequence[str], last: str = "and") -> str:
    """a, b and c"""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def megabytes(count: int | None) -> float | None:
    return None if count is None else count / 1e6


def numbers(losses: Sequence[float]) -> dict[str, Any]:
    """Of all seeds, their mean and its interval, for results.json."""
    return {"seeds": list(losses), **asdict(mean_interval(losses))}


def judged_numbers(pair: Pair) -> dict[str, Any]:
    """A difference and its verdict, for results.json."""
    interval = {} if pair.interval is None else asdict(pair.interval)
    return {**interval, "p": pair.p, "verdict": pair.direction}


def condense(rows: Sequence[tuple[int, float]], points: int, steps: int) -> list[tuple[int, float]]:
    """A learning curve of so many parts, from rows of (step, loss) of a training of `steps`.

    Of each part its last step and the mean of the losses in it: the parts are the same for every
    seed, whichever rows a log has lost.
    """
    losses = dict(rows)
    found = []
    for part in np.array_split(np.arange(1, steps + 1), min(points, steps or 1)):
        there = [losses[step] for step in part.tolist() if step in losses]
        if there:
            found.append((int(part[-1]), float(np.mean(there))))
    return found


Point = tuple[float, Sequence[float]]  # x, and y of every seed; without seeds: a gap


def curve(name: str, points: Sequence[Point], level: float = LEVEL, band: bool = True) -> Series:
    """The mean over the seeds at each point, with its interval where seeds are many enough."""
    found = [mean_interval(values, level) if values else None for _, values in points]
    seeds = max((len(values) for _, values in points), default=0)
    ends = band and seeds >= BAND
    return Series(
        name=name,
        x=[x for x, _ in points],
        y=[None if one is None else one.mean for one in found],
        low=[None if one is None else one.low for one in found] if ends else None,
        high=[None if one is None else one.high for one in found] if ends else None,
    )


def over_seeds(curves: Sequence[Sequence[Sequence[float]]], shift: int = 0) -> list[Point]:
    """Rows of (step, loss), one curve a seed, as the points of one curve.

    A step that one of the seeds has lost is left out: a mean over the others is no point of it.
    """
    by_step: list[dict[float, float]] = [{row[0]: row[1] for row in rows} for rows in curves]
    shared = [step for step in by_step[0] if all(step in one for one in by_step)] if curves else []
    return [(shift + step, [one[step] for one in by_step]) for step in shared]


def learning_curves(unit: str, *plots: tuple[str, Sequence[Series], str]) -> Section:
    """A plot for each title, with its series and its note."""
    return Section(
        heading=LEARNING_CURVES,
        blocks=[
            Plot(title=title, x="step", y=f"nats a {unit}", series=series, note=note)
            for title, series, note in plots
        ],
    )
