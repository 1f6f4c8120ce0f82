"""A table of a report on the terminal. Nothing is cut: what does not fit is folded."""

from rich.markup import escape
from rich.table import Table as Grid

from attnlab.reports.report import Table, format_cell


def grid(table: Table) -> Grid:
    made = Grid(title=table.title or None, title_justify="left", box=None, pad_edge=False)
    for place, column in enumerate(table.columns):
        justify = "right" if table.numeric(place) else "left"
        made.add_column(escape(column), overflow="fold", justify=justify)  # type: ignore[arg-type]
    for row in table.rows:
        made.add_row(*(escape(format_cell(cell)) for cell in row))
    return made
