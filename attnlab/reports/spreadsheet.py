"""Tables and the numbers of figures as CSV: for pandas, for R, and harmless in a spreadsheet.

Numbers have all their digits. "1.64 (1.60 to 1.68)" becomes three columns. Text that a spreadsheet
would compute begins with an apostrophe, which makes it text there.
"""

import csv
import io
import re
from collections.abc import Sequence

from attnlab.reports.report import Cell, Picture, Plot, Table, plain_line

NUMBER = r"[+−-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
WITH_ENDS = re.compile(rf"({NUMBER})(?: \(({NUMBER}) to ({NUMBER})\))?")
FORMULA = tuple("=+-@＝＋－＠")  # full width too, which some spreadsheets take alike


def as_csv(table: Table) -> str:
    columns: list[list[Cell]] = []
    for place, name in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        columns += _split(name, cells) or [[name, *cells]]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([_field(cell) for cell in row] for row in zip(*columns, strict=True))
    return file.getvalue()


def numbers_of(figure: Plot | Picture) -> Table:
    """What a figure shows, all of its points."""
    if isinstance(figure, Picture):
        rows: list[list[Cell]] = [[number, *row] for number, row in enumerate(figure.rows)]
        columns = [f"{figure.y or 'row'} \\ {figure.x or 'column'}"]
        columns += [str(number) for number in range(len(figure.rows[0]))]
        return Table(title=figure.title, columns=columns, rows=rows)
    rows = []
    for series in figure.series:
        empty: list[None] = [None] * len(series.x)
        ends = series.low or empty, series.high or empty
        along: list[Cell] = [*series.x]
        points = zip(along, series.y, *ends, strict=True)
        rows += [[series.name, *point] for point in points]
    columns = ["series", figure.x or "x", figure.y or "y", "low", "high"]
    return Table(title=figure.title, columns=columns, rows=rows)


def _split(name: str, cells: Sequence[Cell]) -> list[list[Cell]]:
    """A column of intervals as three of numbers; nothing if it is another column."""
    found: list[re.Match[str] | None] = []
    for cell in cells:
        match = WITH_ENDS.fullmatch(cell) if isinstance(cell, str) else None
        if match is None and cell not in (None, ""):
            return []
        found.append(match)
    if not any(match and match[2] for match in found):
        return []
    return [
        [f"{name}{end}", *(_number(match[part]) if match else None for match in found)]
        for part, end in ((1, ""), (2, ", low"), (3, ", high"))
    ]


def _number(text: str | None) -> Cell:
    """Digits as they are shown, without what a spreadsheet may not read."""
    return None if text is None else text.replace(",", "").replace("−", "-").removeprefix("+")


def _field(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if not isinstance(cell, str):
        return repr(cell.item() if hasattr(cell, "item") else cell)  # NumPy's numbers too
    text = plain_line(cell)
    if re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", text):
        return text
    # where the decimal sign is a comma, a semicolon begins a new cell
    text = re.sub(r"(;\s*)(?=[=+@-])", r"\1'", text)
    return f"'{text}" if text.startswith(FORMULA) else text
