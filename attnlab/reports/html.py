"""A report as one HTML file: no script, nothing from the network, light, dark, narrow, printed."""

import hashlib
import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from urllib.parse import quote

from attnlab import config
from attnlab.reports import colours, plots
from attnlab.reports.colours import Colours
from attnlab.reports.downloads import Download, Downloads
from attnlab.reports.report import (
    Block,
    Picture,
    Plot,
    Report,
    Sample,
    Section,
    Table,
    format_cell,
    name_of_run,
    paragraphs,
    plain,
)
from attnlab.reports.style import CSS, INLINE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
LONG_CELL = 27  # letters: an interval with signs is short
MANY = 10  # columns; on paper, more than that need every bit of room
NO_BREAK = "\u00a0"
LONG_LINE = 100  # letters; a sample with longer lines is prose, to be wrapped and not scrolled


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What the blocks of a page share: a number for each, the files beside it, the colours."""

    downloads: Downloads
    colours: Colours
    places: Iterator[int] = field(default_factory=count)
    prefix: str = ""  # of identifiers, where another page holds the blocks


def as_html(report: Report, downloads: Downloads | None = None) -> str:
    """One file, with links to the files beside it if there are any."""
    sheet = Sheet(downloads=downloads or {}, colours=colours.assign(report.blocks))
    sections = "\n".join(_section(section, sheet) for section in report.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_text(report.title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<header>
<h1>{_text(report.title)}</h1>
<p class="question">{_text(report.question)}</p>
<div class="answer"><span class="label">Answer</span>{_paragraphs(paragraphs(report.answer))}</div>
</header>
{sections}
{_origin(report, beside=downloads is not None)}
</main>
</body>
</html>
"""


def inline(section: Section, colours_of: Sequence[Block] = (), more: str = "") -> str:
    """A section within a page of somebody else's, as a notebook is: in its colours and fonts.

    Series have the colours they have among the blocks `colours_of`. `more` is HTML for the end.
    """
    made_from = hashlib.sha256(repr(section).encode("utf-8", "backslashreplace")).hexdigest()
    sheet = Sheet(
        downloads={},
        colours=colours.assign(colours_of or section.blocks),
        prefix=f"attnlab-{made_from[:12]}-",
    )
    return (
        f'<div class="attnlab-result">\n<style>{INLINE}</style>\n'
        f"{_inside(section, sheet, 'h4')}{more}\n</div>"
    )


def _section(section: Section, sheet: Sheet) -> str:
    return f"<section>\n{_inside(section, sheet, 'h2')}\n</section>"


def _inside(section: Section, sheet: Sheet, level: str) -> str:
    parts = [f"<{level}>{_text(section.heading)}</{level}>", _paragraphs(section.paragraphs)]
    for drawn, several in groupby(section.blocks, lambda block: isinstance(block, Plot | Picture)):
        blocks = [_block(block, sheet) for block in several]
        # figures that follow each other stand side by side where there is room
        parts += ['<div class="figures">', *blocks, "</div>"] if drawn else blocks
    return "\n".join(part for part in parts if part)


def _block(block: Block, sheet: Sheet) -> str:
    place = next(sheet.places)
    name, links = (
        f"{sheet.prefix}block-{place + 1}",
        _links(sheet.downloads.get(place, ()), block.title),
    )
    if isinstance(block, Table):
        return _table(block, name, links)
    if isinstance(block, Sample):
        return _sample(block)
    if plots.available():
        drawn = plots.svg(block, name, sheet.colours)
    else:
        drawn = f'<p class="missing">Not drawn: {_text(plots.MISSING)}</p>'
    return (
        f"<figure>\n<figcaption>{_text(block.title)}</figcaption>\n"
        f"{drawn}\n{_note(block)}{links}</figure>"
    )


def _links(beside: Sequence[Download], title: str) -> str:
    """Plain links, which work from the folder and from a server."""
    if not beside:
        return ""
    links = " ".join(
        f'<a href="{_text(quote(one.path))}" aria-label="{_text(f"{one.kind}: {title}")}">'
        f"{_text(one.kind)}</a>"
        for one in beside
    )
    return f'<p class="files">{links}</p>\n'


def _table(table: Table, name: str, links: str) -> str:
    looks = [_look(table, column) for column in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col"{look}>{_text(column)}</th>'
        for column, look in zip(table.columns, looks, strict=True)
    )
    many = ' class="many"' if len(table.columns) > MANY else ""
    rows = []
    for row in table.rows:
        first, *rest = (
            f"{look}>{_cell(format_cell(cell))}" for cell, look in zip(row, looks, strict=True)
        )
        cells = "".join(f"<td{cell}</td>" for cell in rest)
        rows.append(f'<tr><th scope="row"{first}</th>{cells}</tr>')
    return (
        # a box that scrolls must be reached by the keyboard
        f'<div class="table">\n<div class="scroll" tabindex="0" role="region" '
        f'aria-labelledby="{name}-title">\n<table{many}>\n'
        f'<caption id="{name}-title">{_text(table.title)}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>\n"
        f"</table>\n</div>\n{_note(table)}{links}</div>"
    )


def _cell(text: str) -> str:
    """Lines end before an interval, not within it, and within settings after a comma."""
    kept = re.sub(r"\(\S+ to \S+\)$", lambda ends: ends[0].replace(" ", NO_BREAK), text)
    return re.sub(r"([,:])(?=[^\W\d])", r"\1<wbr>", _text(kept))


def _look(table: Table, column: int) -> str:
    """How a column's cells are set: numbers to the right, short texts in one line, long ones not
    in a narrow strip."""
    if table.numeric(column):
        return ' class="number"'
    long = any(len(format_cell(row[column])) > LONG_CELL for row in table.rows)
    return f' class="{"long" if long else "short"}"'


def _sample(sample: Sample) -> str:
    wrap = any(len(line) > LONG_LINE for line in sample.text.splitlines())
    return (
        f"<figure>\n<figcaption>{_text(sample.title)}</figcaption>\n"
        f"{_lines(sample.text, wrap=wrap)}\n</figure>"
    )


def _origin(report: Report, beside: bool) -> str:
    """How to get the same again; `beside` it are the files that every report in a folder has."""
    parts = []
    if report.command:
        parts.append(f"<h3>Command</h3>\n{_lines(report.command, wrap=True)}")
    if report.took:
        parts.append(f"<p>It took {report.took}.</p>")
    if report.rates:
        parts.append(f"<h3>Learning rates</h3>\n<p>{_text(report.rates)}</p>")
    if beside:
        parts.append(
            '<div class="beside">\n<h3>Files</h3>\n<p class="files">'
            '<a href="results.json">all numbers, JSON</a> '
            '<a href="report.md">this report, Markdown</a></p>\n</div>'
        )
    if report.runs:
        runs = "\n".join(
            f'<li><a href="{_text(quote(run))}/">{_text(name_of_run(run))}</a></li>'
            for run in report.runs
        )
        parts.append(
            f"<details>\n<summary>Runs ({len(report.runs)})</summary>\n"
            f'<ul class="runs">\n{runs}\n</ul>\n</details>'
        )
    if report.versions:
        pairs = "".join(
            f"<div><dt>{_text(name)}</dt><dd>{_text(str(version))}</dd></div>"
            for name, version in report.versions.items()
        )
        parts.append(f'<h3>Versions</h3>\n<dl class="versions">{pairs}</dl>')
    if report.settings:
        words = "\n".join(config.to_overrides(dict(report.settings)))
        parts.append(f"<details>\n<summary>Settings</summary>\n{_lines(words)}\n</details>")
    if not parts:
        return ""
    inside = "\n".join(parts)
    return f'<section class="origin">\n<h2>How this was made</h2>\n{inside}\n</section>'


def _lines(text: str, wrap: bool = False) -> str:
    look = ' class="wrap"' if wrap else ""
    # a parser drops the first newline of <pre>, so it gets one to drop
    return f'<pre tabindex="0"{look}>\n{_text(text)}</pre>'


def _paragraphs(texts: list[str]) -> str:
    return "\n".join(f"<p>{_text(text)}</p>" for text in texts)


def _note(block: Table | Plot | Picture) -> str:
    return f'<p class="note">{_text(block.note)}</p>\n' if block.note else ""


def _text(text: str) -> str:
    return html.escape(plain(text))
