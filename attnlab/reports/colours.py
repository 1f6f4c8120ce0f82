"""Colours of series, given out once per report: a name has the same colour in all of its plots."""

from collections.abc import Iterable, Mapping
from itertools import count

from attnlab.reports.report import Block, Plot

# four of Okabe and Ito and two more: at least 3:1 against a white page and a dark one,
# and told apart with each kind of colour blindness
PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#925071", "#a366ff"]
NEUTRAL = "#808890"  # a bar that stands for no series of the report

Colours = Mapping[str, int]  # the number of a name: its colour, its marker, its dashes


def assign(blocks: Iterable[Block]) -> dict[str, int]:
    """A number for each name, in the order in which names come up.

    Once the palette is used up, numbers share colours and differ in dashes and markers. A name
    then takes a colour that no other series in its plots has, as far as there is one.
    """
    plots = [named for block in blocks if (named := _names(block))]
    known: dict[str, int] = {}
    for name in dict.fromkeys(name for plot in plots for name in plot):
        beside = {other for plot in plots if name in plot for other in plot}
        taken = {known[other] % len(PALETTE) for other in beside if other in known}
        used = set(known.values())
        free = [number for number in range(len(used) + len(PALETTE)) if number not in used]
        known[name] = next((one for one in free if one % len(PALETTE) not in taken), free[0])
    return known


def _names(block: Block) -> list[str]:
    """Of the series of a plot; bars of a single one have the colours of what stands below them."""
    if not isinstance(block, Plot) or by_place(block):
        return []
    return [series.name for series in block.series if series.name.strip()]


def by_place(plot: Plot) -> bool:
    """Whether it is the bars of one series, whose names are those on its axis."""
    return plot.kind == "bars" and len(plot.series) == 1


def numbers(plot: Plot, colours: Colours) -> list[int]:
    """Of the series of a plot: as given out, else by their order."""
    known = [colours.get(series.name) for series in plot.series]
    taken = {number for number in known if number is not None}
    left = (number for number in count() if number not in taken)
    return [next(left) if number is None else number for number in known]


def colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]
