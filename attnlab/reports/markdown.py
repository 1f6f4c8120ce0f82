"""A report as GitHub-flavoured Markdown, with its plots as SVG files beside it."""

import re
from urllib.parse import quote

from attnlab import config
from attnlab.reports import plots, vector
from attnlab.reports.report import (
    Block,
    Report,
    Sample,
    Section,
    Table,
    format_cell,
    paragraphs,
    plain,
)


def as_markdown(report: Report, pictures: str) -> tuple[str, dict[str, str]]:
    """The text, and the SVG files by name that it expects in the folder `pictures`."""
    files: dict[str, str] = {}
    parts = [f"# {_text(report.title)}", _text(report.question)]
    answer = [_text(text) for text in paragraphs(report.answer)]
    parts.append("\n>\n".join(f"> **{text}**" for text in answer))
    for section in report.sections:
        parts += _section(section, pictures, files)
    parts += _origin(report)
    return "\n\n".join(part for part in parts if part) + "\n", files


def _section(section: Section, pictures: str, files: dict[str, str]) -> list[str]:
    parts = [f"## {_text(section.heading)}", *map(_text, section.paragraphs)]
    for block in section.blocks:
        parts += _block(block, section, pictures, files)
    return parts


def _block(block: Block, section: Section, pictures: str, files: dict[str, str]) -> list[str]:
    title = f"**{_text(block.title)}**" if block.title.strip() else ""
    if isinstance(block, Table):
        return [title, _table(block), _text(block.note)]
    if isinstance(block, Sample):
        return [title, _fence(block.text)]
    name = _file_name(section.pictures, block.title, files)
    files[name] = vector.standalone(plots.svg(block))
    return [title, f"![{_text(block.title)}]({quote(pictures)}/{name})", _text(block.note)]


def _file_name(stem: str, title: str, files: dict[str, str]) -> str:
    """A name that is still free: the section's, else a running number and the title."""
    if stem:
        names = [f"{stem}.svg", *(f"{stem}-{n}.svg" for n in range(2, len(files) + 2))]
        return next(name for name in names if name not in files)
    words = re.findall(r"[a-z0-9]+", title.lower())
    return "-".join([f"{len(files) + 1:02}", *words])[:50].rstrip("-") + ".svg"


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
    line = " ".join(plain(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", line)
    return re.sub(r"^(?:#|[-+=](?=[-+=\s]|$)|\d+(?=[.)](?:\s|$)))", _at_start, line)


def _at_start(found: re.Match[str]) -> str:
    """What begins a heading, a list or a rule there."""
    return f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}"
