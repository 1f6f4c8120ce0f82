"""The marks of one series on matplotlib's axes: a line with its band, points, bars, intervals."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from attnlab.reports import colours
from attnlab.reports.colours import PALETTE
from attnlab.reports.thin import Points
from attnlab.reports.vector import INK

Dash = Literal["-"] | tuple[float, tuple[float, float]]
DASHES: list[Dash] = ["-", (0, (5, 2)), (0, (1.5, 1.5))]  # once the colours are used up
MARKERS = ["o", "s", "^", "D", "v", "P"]
FEW = 20  # points of a line, which then have a marker each
MANY = 500  # points, which are then drawn finer


@dataclass(frozen=True, kw_only=True)
class Brush:
    """How a series is drawn: in the look of its `number`, at `place` among `of`, over names or
    numbers.

    Series that share names stand side by side over each. Names that are too long to stand beside
    each other run `down` the page instead, and values from left to right.
    """

    axes: Any
    number: int
    place: int
    of: int
    named: bool
    down: bool

    @property
    def colour(self) -> str:
        return colours.colour(self.number)

    @property
    def marker(self) -> str:
        return MARKERS[(self.number + self.number // len(PALETTE)) % len(MARKERS)]

    @property
    def dash(self) -> Dash:
        return DASHES[self.number // len(PALETTE) % len(DASHES)]

    def aside(self, room: float) -> float:
        """How far from its name, when all series share so much room there."""
        return room / self.of * (self.place - (self.of - 1) / 2) if self.named else 0.0

    def lines(self, points: Points) -> None:
        seen = np.isfinite(points.y)
        # without neighbours a point makes no line, and its interval no band
        alone = seen & ~np.append(False, seen[:-1]) & ~np.append(seen[1:], False)
        marked = seen if len(points.x) <= FEW else alone
        if np.isfinite(points.low).any():
            band = self.axes.fill_between(
                points.x, points.low, points.high, color=self.colour, alpha=0.2, linewidth=0
            )
            band.set_gid("class-interval")
            self._intervals(points.at(alone), 0.0, self.colour)
        width = 1.8 if len(points.x) <= MANY else 1.2
        self._plot(points.x, points.y, linestyle=self.dash, linewidth=width, gid="class-line")
        self._plot(points.x[marked], points.y[marked], linestyle="", marker=self.marker)

    def points(self, points: Points) -> None:
        aside = self.aside(0.5)
        self._intervals(points, aside, self.colour)
        look = {"linestyle": "", "marker": self.marker, "markeredgewidth": 0}
        size = 6 if len(points.x) <= MANY else 3
        self._plot(points.x + aside, points.y, markersize=size, gid="class-points", **look)

    def bars(self, points: Points, each: list[str] | None = None) -> None:
        """In the colour of the series, or `each` in its own."""
        aside = self.aside(0.76)
        bar = self.axes.barh if self.down else self.axes.bar
        bar(points.x + aside, points.y, 0.72 / self.of, color=each or self.colour)
        self._intervals(points, aside, INK)

    def _intervals(self, points: Points, aside: float, colour: str) -> None:
        """A stroke from low to high at each point; all of them one path."""
        if np.isfinite(points.low).any():
            at = np.repeat(points.x + aside, 3)
            ends = np.stack([points.low, points.high, np.full_like(points.low, np.nan)], axis=1)
            look = {"linewidth": 1.4, "solid_capstyle": "butt", "gid": "class-interval"}
            self._plot(at, ends.ravel(), color=colour, **look)

    def _plot(self, at: Any, values: Any, **look: Any) -> None:
        look = {"color": self.colour, **look}
        self.axes.plot(*((values, at) if self.down else (at, values)), **look)
