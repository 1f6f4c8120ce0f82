"""A result that shows itself: as text, and in a notebook as HTML without script, all escaped."""

import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from attnlab import files
from attnlab.reports.report import Block, Cell, Sample, Section, Table

WIDTH = 100  # letters of a line of text


class Shown(ABC):
    @abstractmethod
    def section(self) -> Section:
        """What there is to see: a heading, sentences, tables and figures."""

    @property
    def colours_of(self) -> Sequence[Block]:
        """The blocks of a whole report that gives its colours; none: those of the section."""
        return ()

    @property
    def tables(self) -> list[Table]:
        return [block for block in self.section().blocks if isinstance(block, Table)]

    def table(self, title: str | int = 0) -> Table:
        """By its number or the beginning of its title: `.columns` and `.rows`."""
        found = self.tables
        for number, one in enumerate(found):
            if isinstance(title, int):
                fits = title in (number, number - len(found))
            else:
                fits = one.title.lower().startswith(title.lower())
            if fits:
                return one
        named = ", ".join(repr(one.title) for one in found) or "none"
        raise LookupError(f"there is no table {title!r}; there are: {named}")

    @property
    def rows(self) -> list[dict[str, Cell]]:
        """The first table, a dictionary for each row."""
        table = self.table()
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows]

    def to_csv(self, path: str | Path | None = None, table: str | int = 0) -> str:
        """A table as CSV, and written to a file if a path is given."""
        from attnlab.reports.spreadsheet import as_csv

        text = as_csv(self.table(table))
        if path is not None:
            files.write_named(Path(path), text.encode())
        return text

    def __repr__(self) -> str:
        from rich.markup import escape

        from attnlab.reports.terminal import grid
        from attnlab.screen import Screen

        screen = Screen()
        screen.file = io.StringIO()
        screen.width, screen.no_color = WIDTH, True
        section = self.section()
        for line in (section.heading, *section.paragraphs):
            screen.print(escape(line), highlight=False)
        for block in section.blocks:
            if isinstance(block, Table):
                screen.print(grid(block))
            elif isinstance(block, Sample):
                screen.print(escape(f"{block.title}\n{block.text}"), highlight=False)
        return "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines())

    def _repr_html_(self) -> str:
        """For notebooks."""
        from attnlab.reports.html import inline

        return inline(self.section(), self.colours_of, self._more_html())

    def _more_html(self) -> str:
        """HTML after the section, where a report has no block for it."""
        return ""
