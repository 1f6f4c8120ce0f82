"""A report as one HTML file: no script, nothing from the network, light, dark, narrow, printed."""

import html
from collections.abc import Iterator
from itertools import count

from attnlab import config
from attnlab.reports import plots
from attnlab.reports.report import (
    Block,
    Picture,
    Plot,
    Report,
    Sample,
    Section,
    Table,
    format_cell,
    paragraphs,
    plain,
)
from attnlab.reports.style import CSS

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
LONG_CELL = 27  # letters: an interval with signs is short
LONG_LINE = 100  # letters; a sample with longer lines is prose, to be wrapped and not scrolled


def as_html(report: Report) -> str:
    numbers = count(1)
    sections = "\n".join(_section(section, numbers) for section in report.sections)
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
{_origin(report)}
</main>
</body>
</html>
"""


def _section(section: Section, numbers: Iterator[int]) -> str:
    parts = [f"<h2>{_text(section.heading)}</h2>", _paragraphs(section.paragraphs)]
    parts += [_block(block, numbers) for block in section.blocks]
    return "<section>\n" + "\n".join(part for part in parts if part) + "\n</section>"


def _block(block: Block, numbers: Iterator[int]) -> str:
    """The numbers tell the blocks of a page apart."""
    name = f"block-{next(numbers)}"
    if isinstance(block, Table):
        return _table(block, name)
    if isinstance(block, Sample):
        return _sample(block)
    return (
        f"<figure>\n<figcaption>{_text(block.title)}</figcaption>\n"
        f"{plots.svg(block, name)}\n{_note(block)}</figure>"
    )


def _table(table: Table, name: str) -> str:
    looks = [_look(table, column) for column in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col"{look}>{_text(column)}</th>'
        for column, look in zip(table.columns, looks, strict=True)
    )
    rows = []
    for row in table.rows:
        first, *rest = (
            f"{look}>{_text(format_cell(cell))}" for cell, look in zip(row, looks, strict=True)
        )
        cells = "".join(f"<td{cell}</td>" for cell in rest)
        rows.append(f'<tr><th scope="row"{first}</th>{cells}</tr>')
    return (
        # a box that scrolls must be reached by the keyboard
        f'<div class="table">\n<div class="scroll" tabindex="0" role="region" '
        f'aria-labelledby="{name}-title">\n<table>\n'
        f'<caption id="{name}-title">{_text(table.title)}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>\n"
        f"</table>\n</div>\n{_note(table)}</div>"
    )


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


def _origin(report: Report) -> str:
    """How to get the same again."""
    parts = []
    if report.command:
        parts.append(f"<h3>Command</h3>\n{_lines(report.command, wrap=True)}")
    if report.took:
        parts.append(f"<p>It took {report.took}.</p>")
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
