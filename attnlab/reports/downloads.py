"""The files beside a report, to take home: tables as CSV and LaTeX, figures as SVG, PNG and CSV.

    report.html   report.md   results.json
    tables/01-results.csv, 01-results.tex      pictures/01-loss.svg, 01-loss.png, 01-loss.csv

Names are of letters, digits and hyphens, whatever a title holds.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnlab.reports import colours, plots, vector
from attnlab.reports.latex import as_latex
from attnlab.reports.report import Picture, Plot, Report, Sample, Section, Table
from attnlab.reports.spreadsheet import as_csv, numbers_of

PICTURES, TABLES = "pictures", "tables"
KINDS = (".svg", ".png", ".csv", ".tex")


@dataclass(frozen=True, kw_only=True)
class Download:
    kind: str  # "CSV", as a link says it
    path: str  # from the report's folder
    content: bytes


Downloads = Mapping[int, Sequence[Download]]  # by the number of the block in the report, from 0


def make(report: Report) -> dict[int, list[Download]]:
    """All of them; without matplotlib the figures are left out, their numbers are not."""
    names, numbers = stems(report), colours.assign(report.blocks)
    made: dict[int, list[Download]] = {}
    for place, block in enumerate(report.blocks):
        if isinstance(block, Sample):
            continue
        contents: dict[str, str | bytes] = {}
        if isinstance(block, Table):
            contents["CSV"] = as_csv(block)
            contents["LaTeX"] = as_latex(block, names[place])
        else:
            if plots.available():
                contents["SVG"] = vector.standalone(plots.svg(block, colours=numbers))
                contents["PNG"] = plots.png(block, numbers)
            contents["CSV"] = as_csv(numbers_of(block))
        folder = TABLES if isinstance(block, Table) else PICTURES
        made[place] = [
            Download(
                kind=kind,
                path=f"{folder}/{names[place]}.{'tex' if kind == 'LaTeX' else kind.lower()}",
                content=content.encode() if isinstance(content, str) else content,
            )
            for kind, content in contents.items()
        ]
    return made


def find(downloads: Sequence[Download], kind: str) -> Download | None:
    return next((one for one in downloads if one.kind == kind), None)


def stems(report: Report) -> dict[int, str]:
    """File names without suffix, by the number of the block; tables and figures apart."""
    found: dict[int, str] = {}
    figures: list[str] = []
    tables: list[str] = []
    place = 0
    for section in report.sections:
        for block in section.blocks:
            if isinstance(block, Plot | Picture):
                figures.append(_figure(section, block.title, figures))
                found[place] = figures[-1]
            elif isinstance(block, Table):
                tables.append(_numbered(block.title.strip() or section.heading, tables))
                found[place] = tables[-1]
            place += 1
    return found


def _figure(section: Section, title: str, taken: Sequence[str]) -> str:
    """A name that is still free: the section's, else a running number and the title."""
    if not section.pictures:
        return _numbered(title, taken)
    stem = section.pictures
    names = [stem, *(f"{stem}-{number}" for number in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)


def _numbered(title: str, taken: Sequence[str]) -> str:
    words = re.findall(r"[a-z0-9]+", title.lower())
    return "-".join([f"{len(taken) + 1:02}", *words])[:50].rstrip("-")
