"""A report as GitHub-flavoured Markdown, with its plots as SVG files beside it."""

import re
from collections.abc import Iterator, Sequence
from itertools import count
from urllib.parse import quote

from attnlab import config
from attnlab.reports import plots, vector
from attnlab.reports.downloads import Download, Downloads, find, stems
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
    plain_line,
)


def as_markdown(report: Report, pictures: str) -> tuple[str, dict[str, str]]:
    """The text, and the SVG files by name that it expects in the folder `pictures`.

    Every plot has colours of its own: what is documented here has no variants in common.
    """
    files: dict[str, str] = {}
    drawn: dict[int, list[Download]] = {}
    names = stems(report)
    for place, block in enumerate(report.blocks):
        if isinstance(block, Plot | Picture):
            name = f"{names[place]}.svg"
            files[name] = vector.standalone(plots.svg(block))
            content = files[name].encode()
            drawn[place] = [Download(kind="SVG", path=f"{pictures}/{name}", content=content)]
    return _render(report, drawn, links=False), files


def with_downloads(report: Report, downloads: Downloads) -> str:
    """The text, with links to the files beside it."""
    return _render(report, downloads, links=True)


def _render(report: Report, downloads: Downloads, *, links: bool) -> str:
    places = count()
    parts = [f"# {_text(report.title)}", _text(report.question)]
    answer = [_text(text) for text in paragraphs(report.answer)]
    parts.append("\n>\n".join(f"> **{text}**" for text in answer))
    for section in report.sections:
        parts += _section(section, downloads, places, links)
    parts += _origin(report)
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(
    section: Section, downloads: Downloads, places: Iterator[int], links: bool
) -> list[str]:
    parts = [f"## {_text(section.heading)}", *map(_text, section.paragraphs)]
    for block in section.blocks:
        beside = downloads.get(next(places), ())
        parts += [*_block(block, beside), _links(beside) if links else ""]
    return parts


def _block(block: Block, beside: Sequence[Download]) -> list[str]:
    title = f"**{_text(block.title)}**" if block.title.strip() else ""
    if isinstance(block, Table):
        return [title, _table(block), _text(block.note)]
    if isinstance(block, Sample):
        return [title, _fence(block.text)]
    drawn = find(beside, "SVG")
    if drawn is None:
        return [title, _text(f"Not drawn: {plots.MISSING}"), _text(block.note)]
    return [title, f"![{_text(block.title)}]({quote(drawn.path)})", _text(block.note)]


def _links(beside: Sequence[Download]) -> str:
    return " · ".join(f"[{one.kind}]({quote(one.path)})" for one in beside)


def _table(table: Table) -> str:
    marks = ["---:" if table.numeric(column) else "---" for column in range(len(table.columns))]
    rows = [[_text(column) for column in table.columns], marks]
    rows += [[_text(format_cell(cell)) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _origin(report: Report) -> list[str]:
    parts = []
    if report.command:
        parts.append(_fence(report.command))
    if report.took:
        parts.append(f"It took {report.took}.")
    if report.rates:
        parts.append(_text(report.rates))
    if report.runs:
        linked = ", ".join(f"[{_text(name_of_run(run))}]({quote(run)}/)" for run in report.runs)
        parts.append(f"Runs: {linked}.")
    if report.versions:
        versions = (f"{_text(name)} {_text(str(v))}" for name, v in report.versions.items())
        parts.append("Versions: " + ", ".join(versions) + ".")
    if report.settings:
        lines = _fence("\n".join(config.to_overrides(dict(report.settings))))
        parts.append(f"<details>\n<summary>Settings</summary>\n\n{lines}\n\n</details>")
    return ["## How this was made", *parts] if parts else []


def _fence(text: str) -> str:
    """A fence longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{plain(text)}\n{fence}"


def _text(text: str) -> str:
    """One line that shows as it is written: no markup, no HTML, no formula."""
    line = plain_line(text)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", line)
    return re.sub(r"^(?:#|[-+=](?=[-+=\s]|$)|\d+(?=[.)](?:\s|$)))", _at_start, line)


def _at_start(found: re.Match[str]) -> str:
    """What begins a heading, a list or a rule there."""
    return f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}"
