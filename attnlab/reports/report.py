"""A report as plain data: a question, its answer, and sections of text, tables and pictures.

Everything is checked when it is made, so what writes a report never meets a NaN or a short row.
`None` stands for a number that is not there: "–" in a table, a gap in a line, an empty cell.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

Cell = str | int | float | None
MOST_BARS = 200  # more are no longer told apart at the width of a page
MOST = 1e100  # of what is drawn; beyond, axes overflow


@dataclass(frozen=True, kw_only=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError(f"table {self.title!r} has no columns; it needs 1 or more")
        for number, row in enumerate(self.rows, 1):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.title!r}: row {number} has {len(row)} cells "
                    f"for {len(self.columns)} columns; give every column one, None if empty"
                )
            for column, cell in zip(self.columns, row, strict=True):
                if not isinstance(cell, str):
                    _check_number(cell, f"table {self.title!r}: row {number}, column {column!r}")

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which line up at their right end."""
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and not any(isinstance(cell, str) for cell in cells)


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one name; `low` and `high` are the ends of an interval around each y."""

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None

    def __post_init__(self) -> None:
        where = f"series {self.name!r}"
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{where} has one end of an interval; give low and high, or neither")
        numbers = {"y": self.y, "low": self.low, "high": self.high}
        for name, values in numbers.items():
            if values is None:
                continue
            if len(values) != len(self.x):
                raise ValueError(
                    f"{where}: {name} has {len(values)} values for {len(self.x)} of x; "
                    f"make them equally long"
                )
            for value in values:
                _check_number(value, f"{where}: {name}", MOST)
        if not self.categories:
            for at in self.x:
                if at is None or isinstance(at, str):
                    raise ValueError(f"{where}: x holds {at!r}; give all numbers or all names")
                _check_number(at, f"{where}: x", MOST)
        for low, high in zip(self.low or (), self.high or (), strict=True):
            if (low is None) != (high is None):
                raise ValueError(f"{where} has a half interval; low and high are None together")
            if low is not None and high is not None and low > high:
                raise ValueError(f"{where} has an interval from {low} to {high}; low comes first")

    @property
    def categories(self) -> bool:
        """Whether x are names; a series without points goes with any."""
        return bool(self.x) and all(isinstance(at, str) for at in self.x)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Series over a common x; `x` and `y` label the axes. Bars stand at names, so x is not log."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    kind: Literal["lines", "points", "bars"] = "lines"
    log_x: bool = False
    log_y: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        where = f"plot {self.title!r}"
        if self.kind not in ("lines", "points", "bars"):
            raise ValueError(f"{where}: kind is {self.kind!r}; use lines, points or bars")
        if len({series.categories for series in self.series if series.x}) > 1:
            raise ValueError(f"{where}: x are names in one series and numbers in another")
        bars = sum(len(series.x) for series in self.series)
        if self.kind == "bars" and bars > MOST_BARS:
            raise ValueError(
                f"{where} has {bars} bars; up to {MOST_BARS} can be told apart, so use lines"
            )
        for series in self.series if self.kind == "bars" else ():
            if len(set(series.x)) < len(series.x):
                raise ValueError(f"{where}: series {series.name!r} has two bars at one x")
        if self.log_x and (self.kind == "bars" or any(s.categories for s in self.series)):
            raise ValueError(f"{where}: log_x needs numbers on the x axis, not names or bars")
        for series in self.series:
            values: dict[str, Sequence[Any]] = {"log_x": series.x if self.log_x else ()}
            values["log_y"] = (*series.y, *(series.low or ())) if self.log_y else ()
            for axis, numbers in values.items():
                for number in numbers:
                    if number is not None and number < 1 / MOST:
                        raise ValueError(
                            f"{where}: {axis}, and series {series.name!r} holds {number}; "
                            f"a log axis takes numbers above 0 (from {1 / MOST:g}), "
                            f"so leave it out or use None"
                        )


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A matrix as a heat map, row 0 at the top; `x` labels the columns, `y` the rows."""

    title: str
    rows: Sequence[Sequence[float | None]]
    x: str
    y: str
    note: str = ""

    def __post_init__(self) -> None:
        where = f"picture {self.title!r}"
        if not self.rows or not self.rows[0]:
            raise ValueError(f"{where} is empty; it needs 1 or more rows and columns")
        for number, row in enumerate(self.rows, 1):
            if len(row) != len(self.rows[0]):
                raise ValueError(
                    f"{where}: row {number} has {len(row)} numbers and row 1 has "
                    f"{len(self.rows[0])}; make them equally long"
                )
            for value in row:
                _check_number(value, f"{where}: row {number}", MOST)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Text shown as it is, line for line."""

    title: str
    text: str


Block = Table | Plot | Picture | Sample


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, plain paragraphs with a blank line between them, and what they speak of."""

    heading: str
    text: str = ""
    blocks: Sequence[Block] = ()
    pictures: str = ""  # file name of its pictures, without suffix; "": their number and title

    def __post_init__(self) -> None:
        if not self.heading.strip():
            raise ValueError("a section has no heading; give it one")

    @property
    def paragraphs(self) -> list[str]:
        return paragraphs(self.text)


@dataclass(frozen=True, kw_only=True)
class Report:
    """A question in one sentence, its answer in one or two, what supports it, how to repeat it.

    `rates` says whether learning rates were searched. `runs` are the folders of the trainings, from
    the report's own.
    """

    title: str
    question: str
    answer: str
    sections: Sequence[Section] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str | int] = field(default_factory=dict)
    command: str = ""
    seconds: float | None = None
    rates: str = ""
    runs: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("title", "question", "answer"):
            if not getattr(self, name).strip():
                raise ValueError(f"a report's {name} is empty; say it in one sentence")
        _check_number(self.seconds, "a report's seconds")
        if self.seconds is not None and self.seconds < 0:
            raise ValueError(f"a report's seconds are {self.seconds}; they cannot be below 0")

    @property
    def blocks(self) -> list[Block]:
        """Of all sections, in order."""
        return [block for section in self.sections for block in section.blocks]

    @property
    def took(self) -> str:
        """The time it took, for a person; empty when nobody measured it."""
        if self.seconds is None:
            return ""
        if self.seconds < 59.95:
            return f"{self.seconds:.1f} s"
        minutes, seconds = divmod(round(self.seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def format_cell(cell: Cell) -> str:
    """A cell for a person: 4 significant digits, but never a rounded whole part."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Integral):  # NumPy's integers too
        return f"{cell:,}"
    size = abs(cell)
    if size == 0:
        return "0"
    if size < 1e-4 or size >= 1e12:
        return f"{cell:.3e}"
    return f"{cell:,.0f}" if size >= 9999.5 else f"{cell:#,.4g}".removesuffix(".")


def name_of_run(folder: str) -> str:
    """What a link to a run says."""
    return folder.rpartition("/")[2]


def plain(text: str) -> str:
    """Text that HTML and XML can hold: a generated sample may have any character in it."""
    return _UNWRITABLE.sub(
        lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 32 else "\ufffd",
        text.replace("\r\n", "\n").replace("\r", "\n"),
    )


_UNWRITABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def plain_line(text: str) -> str:
    """The same in one line."""
    return " ".join(plain(text).split())


def paragraphs(text: str) -> list[str]:
    """Each as one line: where a line ends within a paragraph has no meaning."""
    parts: Iterable[str] = re.split(r"\n\s*\n", text)
    return [line for part in parts if (line := " ".join(part.split()))]


def _check_number(value: object, where: str, most: float = math.inf) -> None:
    if value is None:
        return
    if not isinstance(value, Real):
        raise ValueError(f"{where} holds {value!r}; give a number, or None where there is none")
    # an int may exceed every float
    if not isinstance(value, Integral) and not math.isfinite(value):
        raise ValueError(f"{where} holds {value}; give a finite number, or None")
    size: Any = abs(value)
    if size > most:
        raise ValueError(f"{where} holds {value}; what is drawn goes up to {most:g}")
