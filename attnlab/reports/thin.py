"""Fewer points than there are, which look the same: a page stays small whatever was measured.

A line keeps, in each stretch of its points, the ends and the extremes of y and of its interval.
A cloud keeps one point in each cell of a fine grid, and its extremes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attnlab.reports.report import Plot, Series

Numbers = NDArray[np.float64]
MOST_IN_LINES = 4_000  # in all series of a plot together: about 20 bytes each
MOST_IN_CLOUDS = 2_000  # about 90 bytes each


@dataclass(frozen=True, kw_only=True)
class Points:
    """A series as arrays of equal length; NaN where there is no number."""

    x: Numbers
    y: Numbers
    low: Numbers
    high: Numbers

    def at(self, places: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "Points":
        columns = (self.x, self.y, self.low, self.high)
        x, y, low, high = (column[places] for column in columns)
        return Points(x=x, y=y, low=low, high=high)


def thin(plot: Plot, places: Sequence[Numbers]) -> list[Points]:
    """The points to draw of each series, given where each of its x is on the axis."""
    every = [_arrays(*pair) for pair in zip(plot.series, places, strict=True)]
    total = sum(len(points.x) for points in every)
    most = MOST_IN_LINES if plot.kind == "lines" else MOST_IN_CLOUDS
    if total <= most or plot.kind == "bars":
        return every
    if plot.kind == "lines":
        return [p.at(_line(p, max(8, most * len(p.x) // total))) for p in every]
    return [p.at(_cloud(p, max(8, most * len(p.x) // total), plot)) for p in every]


def _arrays(series: Series, x: Numbers) -> Points:
    empty = [None] * len(x)
    columns = (series.y, series.low or empty, series.high or empty)
    y, low, high = (np.array(column, dtype=float) for column in columns)  # None becomes NaN
    return Points(x=x, y=y, low=low, high=high)


def _line(points: Points, most: int) -> NDArray[np.intp]:
    """A stretch keeps up to 8: both ends, two extremes of three columns; a gap stays a gap."""
    if len(points.x) <= most:
        return np.arange(len(points.x))
    kept = {0, len(points.x) - 1}
    edges = np.linspace(0, len(points.x), max(1, most // 8) + 1).astype(int)
    for start, end in pairwise(edges.tolist()):
        kept |= {start, end - 1}
        kept |= {start + place for place in _extremes(points.at(slice(start, end)))}
        gaps = np.flatnonzero(np.isnan(points.y[start:end]))
        kept |= {start + int(place) for place in gaps[:1]}
    return np.array(sorted(kept))


def _cloud(points: Points, most: int, plot: Plot) -> NDArray[np.intp]:
    """A grid as fine as leaves few enough; what has no y is not seen anyway."""
    seen = np.flatnonzero(np.isfinite(points.y))
    if len(points.x) <= most:
        return np.arange(len(points.x))
    if not len(seen):
        return seen
    across, up = _scale(points.x[seen], plot.log_x), _scale(points.y[seen], plot.log_y)
    extremes = [*_extremes(points), seen[across.argmin()], seen[across.argmax()]]
    cells = 160.0  # to a side: closer points would cover each other
    while True:
        grid = np.round(across * cells) * 1_000 + np.round(up * cells)
        first = seen[np.unique(grid, return_index=True)[1]]
        if len(first) <= most:
            return np.unique(np.append(first, extremes))
        cells *= 0.85


def _scale(values: Numbers, log: bool) -> Numbers:
    """To the range from 0 to 1, as an axis has it."""
    values = np.log(values) if log else values
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else values * 0


def _extremes(points: Points) -> list[int]:
    found = []
    for column in (points.y, points.low, points.high):
        if np.isfinite(column).any():
            found += [int(np.nanargmin(column)), int(np.nanargmax(column))]
    return found
