"""A report into a folder: to look at, to put into a repository, to compute with."""

from pathlib import Path
from typing import Any

from attnlab import files
from attnlab.reports.html import as_html
from attnlab.reports.markdown import as_markdown
from attnlab.reports.report import Report

PICTURES = "pictures"


def write(report: Report, results: Any, folder: Path) -> None:
    """Write results.json, pictures/*.svg, report.md and report.html; all are made before any is.

    The page comes last: where it is, the rest is too.
    """
    text, pictures = as_markdown(report, PICTURES)
    contents = {"results.json": files.as_json(results)}
    contents |= {f"{PICTURES}/{name}": svg.encode() for name, svg in pictures.items()}
    contents |= {"report.md": text.encode(), "report.html": as_html(report).encode()}
    for name, content in contents.items():
        path = folder / name
        files.make_folder(path.parent)
        files.write_whole(path, content)
