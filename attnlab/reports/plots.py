"""Plots and heat maps as SVG that goes with its page, light or dark; as PNG; drawn by matplotlib.

The same plot gives the same bytes: nothing of the machine, the day or a person's matplotlibrc
enters an SVG. A PNG is black on white, and takes letters that matplotlib's font does not have
(Chinese ones) from a font of the machine. Many points are thinned (`attnlab/reports/thin.py`); a
description in the SVG says so.
"""

import importlib.util
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnlab.extras import missing
from attnlab.reports import thin, vector
from attnlab.reports.colours import NEUTRAL, Colours, by_place, colour, numbers
from attnlab.reports.marks import FEW, Brush
from attnlab.reports.report import Picture, Plot, format_cell, plain_line
from attnlab.reports.vector import INK, Words

WIDTH, HEIGHT = 440, 235  # pixels, without the legend; narrow, so that a phone can show the text
SMALL, SIZE = 11, 12  # of letters, in pixels
LETTER, LINE = 0.62 * SMALL, 17  # about the width of a small one, and the height of its line
SHARPNESS = 3  # pixels of a PNG for one of the SVG: 1320 across, 400 an inch in a narrow column
MISSING = missing("matplotlib", "a figure")
WIDE_LETTERS = (  # fonts with Chinese letters, by name
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "Arial Unicode MS",
)
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "attnlab",
    "font.family": ["DejaVu Sans"],  # comes with matplotlib; only for measuring
    "font.size": SMALL,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.labelsize": SIZE,
    "axes.titlesize": SIZE,
    "axes.titlepad": 10,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.constrained_layout.h_pad": 4 / 72,
    "figure.constrained_layout.w_pad": 4 / 72,
}


def available() -> bool:
    """Whether figures can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def require() -> None:
    """Say early that plots cannot be drawn here."""
    if not available():
        raise ValueError(MISSING)


def svg(plot: Plot | Picture, prefix: str = "plot", colours: Colours | None = None) -> str:
    """An SVG to stand in a page; identifiers begin with the prefix, so give each its own.

    Series have the colours of their report (`colours.assign`), else colours by their order.
    """
    require()
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with _drawn(plot, colours or {}) as sheet:
        file = io.StringIO()
        FigureCanvasSVG(sheet.figure).print_svg(file)
    return vector.tidy_svg(
        file.getvalue(),
        sheet.words,
        prefix=prefix,
        title=plot.title,
        about=" ".join(sheet.remarks),
    )


def png(plot: Plot | Picture, colours: Colours | None = None) -> bytes:
    """For slides and papers."""
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.font_manager import fontManager

    here = {font.name for font in fontManager.ttflist}
    fonts = ["DejaVu Sans", *(name for name in WIDE_LETTERS if name in here)]
    with _drawn(plot, colours or {}, {"font.family": fonts}, written=True) as sheet:
        sheet.figure.set_facecolor("white")
        sheet.figure.set_dpi(72 * SHARPNESS)
        file = io.BytesIO()
        with warnings.catch_warnings():
            # what no font has is shown as a box
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            FigureCanvasAgg(sheet.figure).print_png(file, metadata={"Software": None})
    return file.getvalue()


@contextmanager
def _drawn(
    plot: Plot | Picture,
    colours: Colours,
    changes: Mapping[Any, Any] | None = None,
    written: bool = False,
) -> Iterator["Sheet"]:
    """A figure with all that is on it, and matplotlib set as it was drawn."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.textpath import TextToPath

    def measure(line: str, font: Any) -> float:
        return TextToPath().get_text_width_height_descent(line, font, False)[0]

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the person's own
        matplotlib.rcParams.update({**STYLE, **(changes or {})})
        figure = Figure(layout="constrained", dpi=72, facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        sheet = Sheet(figure=figure, axes=axes, measure=measure, written=written)
        if isinstance(plot, Picture):
            _heat_map(sheet, plot)
        else:
            _plot(sheet, plot, colours)
        yield sheet


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What is drawn on, and the words that belong to it; `written` there, or kept beside it."""

    figure: Any
    axes: Any
    measure: Any
    written: bool = False
    words: Words = field(default_factory=Words)
    remarks: list[str] = field(default_factory=list)

    def put(self, artist: Any, text: str) -> None:
        if self.written:
            artist.set_parse_math(False)
            artist.set_text(text)
        else:
            self.words.put(artist, text, self.measure)

    def resize(self, height: float) -> None:
        self.figure.set_size_inches(WIDTH / 72, height / 72)

    def label(self, below: str, above: str) -> None:
        """The vertical axis is named above itself: there it is read without turning the head."""
        if below:
            self.put(self.axes.set_xlabel("x"), vector.wrap(below, 55))
        if above:
            self.put(self.axes.set_title("y", loc="left"), vector.wrap(above, 55))

    def say_no_data(self) -> None:
        self.axes.set_xticks([])
        self.axes.set_yticks([])
        self.axes.text(0.5, 0.5, "no data", transform=self.axes.transAxes, ha="center")

    def name_ticks(self, axis: Any, names: Sequence[str], every: int = 1, **look: Any) -> None:
        shown = range(0, len(names), every)
        labels = [names[at] if self.written else vector.stand_in(names[at]) for at in shown]
        axis.set_ticks(list(shown), labels, parse_math=False, **look)
        for tick, at in zip(axis.get_ticklabels(), shown, strict=True):
            self.put(tick, names[at])


def _plot(sheet: Sheet, plot: Plot, colours: Colours) -> None:
    axes = sheet.axes
    places = _places(plot)
    names = [plain_line(format_cell(at)) for at in places]
    slot = (WIDTH - 70) / max(1, len(names))
    fit = all(vector.length(name) * LETTER + 8 < slot for name in names)
    down = not fit and plot.kind != "lines"
    where = [[places[at] if places else at for at in series.x] for series in plot.series]
    drawn = thin.thin(plot, [np.array(x, dtype=float) for x in where])
    count, total = sum(len(points.x) for points in drawn), sum(map(len, where))
    if count < total:
        sheet.remarks.append(f"{count:,} of {total:,} points are drawn; every extreme is kept.")
    brushes = [
        Brush(axes=axes, number=number, place=at, of=len(drawn), named=bool(names), down=down)
        for at, number in enumerate(numbers(plot, colours))
    ]
    height: float = HEIGHT
    if any(np.isfinite(points.y).any() for points in drawn):
        values = [column for points in drawn for column in (points.y, points.low, points.high)]
        _set_scale(axes, plot, down, values)
        each = _bar_colours(plot, colours)
        for brush, points in zip(brushes, drawn, strict=True):
            if each:
                brush.bars(points, each)
            else:
                getattr(brush, plot.kind)(points)
        _set_grid(axes, plot, down, bool(names))
        _set_ticks(axes.xaxis if down else axes.yaxis, values, log=plot.log_y)
        if down:
            height = _set_names_down(sheet, names, len(drawn))
        elif names:
            height = _set_names_along(sheet, names, fit)
        else:
            _set_ticks(axes.xaxis, [points.x for points in drawn], log=plot.log_x, own=True)
    else:
        sheet.say_no_data()
    for spine in axes.spines.values():
        spine.set_alpha(0.45)
    axes.tick_params(length=0, pad=6)
    sheet.label(*((plot.y, plot.x) if down else (plot.x, plot.y)))
    legend = 0 if _bar_colours(plot, colours) else _add_legend(sheet, plot, brushes)
    sheet.resize(height + LINE * legend)


def _bar_colours(plot: Plot, colours: Colours) -> list[str]:
    """Of the bars of one series, where they stand for series of the report."""
    if not by_place(plot) or colours.keys().isdisjoint(map(str, plot.series[0].x)):
        return []
    known = (colours.get(str(at)) for at in plot.series[0].x)
    return [NEUTRAL if number is None else colour(number) for number in known]


def _places(plot: Plot) -> dict[Any, int]:
    """Where names are on the x axis, in the order in which they come up; bars always have some."""
    if plot.kind != "bars" and not any(series.categories for series in plot.series):
        return {}
    names = dict.fromkeys(at for series in plot.series for at in series.x)
    return {name: place for place, name in enumerate(names)}


def _set_scale(axes: Any, plot: Plot, down: bool, values: list[Any]) -> None:
    axes.margins(x=0.06 if down else 0.03, y=0.07)
    if plot.log_x:
        axes.set_xscale("log")
    if plot.log_y:
        (axes.set_xscale if down else axes.set_yscale)("log")
        if plot.kind == "bars":  # they have no zero to begin at
            known = np.concatenate(values)
            ends = np.nanmin(known) / 2, np.nanmax(known) * 1.3
            (axes.set_xlim if down else axes.set_ylim)(*ends)


def _set_grid(axes: Any, plot: Plot, down: bool, named: bool) -> None:
    """Lines to read values by."""
    value = axes.xaxis if down else axes.yaxis
    both = plot.kind == "points" and not named
    for axis in (axes.xaxis, axes.yaxis) if both else (value,):
        axis.grid(True, color=INK, alpha=0.13, linewidth=1)


def _set_names_along(sheet: Sheet, names: list[str], fit: bool) -> float:
    """Names from left to right, turned if they are long; returns the height this takes."""
    sheet.axes.set_xlim(-0.6, len(names) - 0.4)
    if fit:
        sheet.name_ticks(sheet.axes.xaxis, names)
        return HEIGHT
    every = -(-len(names) // 20)  # more would touch each other
    short = [name if len(name) <= 28 else f"{name[:27]}…" for name in names]
    turned = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    sheet.name_ticks(sheet.axes.xaxis, short, every, **turned)
    return HEIGHT + 0.5 * LETTER * max(map(vector.length, short))


def _set_names_down(sheet: Sheet, names: list[str], series: int) -> float:
    """Names one below the other; returns the height this takes."""
    wrapped = [vector.wrap(name, 30) for name in names]
    sheet.name_ticks(sheet.axes.yaxis, wrapped)
    sheet.axes.set_ylim(len(names) - 0.5, -0.5)  # the first at the top
    most = max(1 + name.count("\n") for name in wrapped)
    return 80 + len(names) * max(6 + 15 * most, 12 * series)


def _add_legend(sheet: Sheet, plot: Plot, brushes: list[Brush]) -> int:
    """Above the axes, never over the data. Returns how many lines it takes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names, handles = [], []
    for series, brush in zip(plot.series, brushes, strict=True):
        if series.name.strip():
            marked = plot.kind == "points" or len(series.x) <= FEW
            line = Line2D(
                [],
                [],
                color=brush.colour,
                linestyle=brush.dash if plot.kind == "lines" else "",
                marker=brush.marker if marked else "",
            )
            handles.append(Patch(color=brush.colour) if plot.kind == "bars" else line)
            names.append(vector.wrap(series.name, 50))
    if not names:
        return 0
    widest = max(vector.length(line) for name in names for line in name.split("\n"))
    columns = max(1, min(len(names), int(WIDTH // (widest * LETTER + 42))))
    legend = sheet.figure.legend(
        handles,
        ["x"] * len(names),
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        handlelength=1.6,
        columnspacing=1.5,
        borderpad=0,
        borderaxespad=0.2,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        sheet.put(text, name)
    return -(-sum(1 + name.count("\n") for name in names) // columns)


def _set_ticks(axis: Any, values: list[Any], *, log: bool, own: bool = False) -> None:
    """Round numbers; on a log axis that may, the very values if they are few."""
    from matplotlib import ticker

    known = np.unique(np.concatenate(values))
    known = known[np.isfinite(known)]
    if not log:
        locator: Any = ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
    elif own and _apart(known):
        locator = ticker.FixedLocator(known.tolist())
    elif known[-1] < 8 * known[0]:
        locator = ticker.MaxNLocator(5, steps=[1, 2, 5, 10])
    elif known[-1] < 300 * known[0]:
        locator = ticker.LogLocator(subs=(1, 2, 5))
    else:
        locator = ticker.LogLocator(numticks=7)
    axis.set_major_locator(locator)
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: tick(value)))


def _apart(values: Any) -> bool:
    """Few enough, far enough from each other: each can have a tick of its own."""
    places = np.log(values)
    apart = np.diff(places) >= 0.11 * (places[-1] - places[0])
    return 1 < len(values) <= 8 and bool(apart.all())


def tick(value: float) -> str:
    """A number at an axis: as short as it can be."""
    size = abs(value)
    if 1e6 <= size < 1e12:
        unit, letter = (1e9, "G") if size >= 1e9 else (1e6, "M")
        text = f"{value / unit:,.10g}{letter}"
    else:
        text = f"{value:,.10g}" if 1e-4 <= size < 1e6 else f"{value:g}"
    return text.replace("-", "−", 1) if value < 0 else text


def _heat_map(sheet: Sheet, picture: Picture) -> None:
    """A pixel for each cell, and beside it the colours with their values."""
    from matplotlib import ticker

    cells = np.array(picture.rows, dtype=float)  # None becomes NaN, which stays empty
    seen = cells[np.isfinite(cells)]
    height, width = cells.shape
    square = 1 / 3 <= height / width <= 3
    axes = sheet.axes
    if len(seen):
        colours, low, high = _colours(float(seen.min()), float(seen.max()))
        look = {"cmap": colours, "vmin": low, "vmax": high, "interpolation": "none"}
        axes.imshow(cells, aspect="equal" if square else "auto", **look)
        bar = axes.inset_axes((1.04, 0, 0.04, 1))
        steps = np.linspace(low, high, 128)[:, None]
        bar.imshow(steps, origin="lower", extent=(0, 1, low, high), aspect="auto", **look)
        bar.yaxis.tick_right()
        bar.set_xticks([])
        _set_ticks(bar.yaxis, [np.array([low, high])], log=False)
        for part in (axes, bar):
            part.spines[:].set_visible(False)
            part.tick_params(length=0, pad=6)
        for axis in (axes.xaxis, axes.yaxis):
            whole = ticker.MaxNLocator(8, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
            axis.set_major_locator(whole)
            axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: tick(value)))
    else:
        sheet.say_no_data()
    axes.set_anchor("W")
    sheet.label(picture.x, picture.y)
    sheet.resize(min(320, 340 * height / width + 70) if square else HEIGHT)


def _colours(low: float, high: float) -> tuple[str, float, float]:
    """A scale and its ends; where there are both signs, zero is in the middle."""
    if low < 0 < high:
        end = max(-low, high)
        return "RdBu_r", -end, end
    room = 0.0 if low < high else max(0.5, abs(low) / 10)
    return "viridis", low - room, high + room
