"""Reports of studies and comparisons: shown without any rights, with the files beside them.

    /report/NAME                       leads to the next, for who has the cookie
    /report/NAME/KEY/                  the report
    /report/NAME/KEY/tables/FILE.csv   a file beside it, to be downloaded
    /report/NAME/KEY/runs/RUN/         leads to the view of that run

A report may come from a stranger, so it is shown in a sandbox, where it is of no origin. A browser
sends no cookie with a click there, since any site could be asking. Hence the key in the address: it
is made from the token, nobody can guess it, and it opens the files of that one report.
"""

import html
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attnlab import files
from attnlab.page.guard import Refused
from attnlab.page.runs import plain_content
from attnlab.printable import distinct
from attnlab.reports.downloads import PICTURES, TABLES

TYPES = {  # of the files beside a report; others are not served
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".tex": "application/x-tex",
}
BESIDE = ("results.json", "report.md")
MOST_REPORT = 64 << 20  # bytes of a report with its pictures, or of a file beside it
MOST_FILES = 2_000  # in a folder beside a report
OPENING = 80_000  # bytes that hold the first three paragraphs of a report


class Reports:
    """The reports of a folder. Names are looked up in what is there; they are never a path."""

    def __init__(self, root: Path, key: Callable[[str], str]) -> None:
        self.root, self.key = root, key

    def list_all(self) -> list[dict[str, Any]]:
        return [
            {"id": name, "kind": name.partition("-")[0], **_opening(path.with_suffix(".md"))}
            for name, path in self._paths().items()
        ]

    def address(self, name: str) -> str:
        self._path(name)
        return f"/report/{quote(name, safe='')}/{self.key(name)}/"

    def report(self, name: str) -> bytes:
        return _content(self._path(name), f"the report of {name[:120]}")

    def file(self, name: str, wanted: str) -> tuple[bytes, str]:
        """A file beside a report, and its type."""
        found = dict(_files(self._path(name).parent)).get(wanted)
        if found is None:
            raise Refused(404, f"there is no file {wanted[:120]!r} beside this report")
        return _content(found, wanted[:120]), TYPES[found.suffix]

    def _path(self, name: str) -> Path:
        found = self._paths().get(name)
        if found is None:
            raise Refused(404, f"there is no report {name[:120]!r} here; /api/reports has them")
        return found

    def _paths(self) -> dict[str, Path]:
        found = {distinct(path.parent.name): path for path in self.root.glob("*/report.html")}
        kinds = ("study-", "compare-")
        return {name: found[name] for name in sorted(found, reverse=True) if name.startswith(kinds)}


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files to take home, by their names in links. A link is followed nowhere."""
    for name in BESIDE:
        if (folder / name).exists():
            yield name, folder / name
    for name in (TABLES, PICTURES):
        inside = folder / name
        if inside.is_dir() and not inside.is_symlink():
            for path in islice(inside.iterdir(), MOST_FILES):
                if path.suffix in TYPES:
                    yield f"{name}/{distinct(path.name)}", path


def _content(path: Path, what: str) -> bytes:
    content = plain_content(path, MOST_REPORT)
    if content is None:
        reason = f"is a link, no plain file, or has more than {MOST_REPORT:,} bytes"
        raise Refused(404, f"{what} is not shown: it {reason}")
    return content


def _opening(markdown: Path) -> dict[str, str]:
    """Title, question and answer: how every report of ours begins."""
    try:
        with files.open_plain(markdown) as file:
            text = file.read(OPENING).decode(errors="replace")
    except OSError:
        text = ""
    title, question, answer = [*text.split("\n\n")[:3], "", "", ""][:3]
    return {
        "title": _shown(title.removeprefix("# ")) or distinct(markdown.parent.name),
        "question": _shown(question),
        "answer": _shown(re.sub(r"^> ?|\*\*", "", answer, flags=re.MULTILINE)),
    }


def _shown(markdown: str) -> str:
    """The words without what keeps them from being markup."""
    return " ".join(html.unescape(re.sub(r"\\(?=[^\w\s])", "", markdown)).split())
