"""Rows of a sweep: one for each target, kept in a file as they come, and summed up in a table.

    {line, target, family, verdict, checks, seconds}      or without checks, {…, detail}

A row's verdict is that of its certificate; if the audit ended early, "unfinished" says why. Without
a certificate it is "not built" where the library refuses an architecture, "incomplete" if nothing
could be audited or the process was lost, and "error" if attnlab itself failed.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnlab import files, json_files
from attnlab.audit.contract import EXIT_CODES
from attnlab.audit.errors import InputError

Row = dict[str, Any]
VERDICTS = ("pass", "fail", "incomplete", "not built", "error")
MOST = 2**30  # bytes of a file of rows
# what is used of a row that was read
SHAPE = dict.fromkeys(("line", "family", "verdict"), str) | {
    **dict.fromkeys(("code?", "reason?", "detail?", "unfinished?"), str),
    "checks?": [dict],
}


def exit_code(rows: Iterable[Mapping[str, Any]]) -> int:
    """That of the worst row: an error of ours, a failure, an audit that is no pass or none."""
    codes = {EXIT_CODES.get(row["verdict"], EXIT_CODES["incomplete"]) for row in rows}
    worst = (EXIT_CODES[verdict] for verdict in ("error", "fail", "incomplete"))
    return next((code for code in worst if code in codes), EXIT_CODES["pass"])


def count(rows: Iterable[Mapping[str, Any]]) -> str:
    """10 pass, 2 fail"""
    found = Counter(row["verdict"] for row in rows)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])


def by_family(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The counts of each family, and of all if there are several."""
    families = list(dict.fromkeys(row["family"] for row in rows))
    found = {one: count(row for row in rows if row["family"] == one) for one in families}
    return found | ({"all": count(rows)} if len(families) > 1 else {})


class RowFile:
    """A file with a row a line. Each is on the disk before the next target begins."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self.known: dict[str, Row] = {}  # by their lines; the last one of a line counts
        if not path.parent.is_dir() or path.is_dir():
            raise InputError(f"--out {path} is no place for a file; name one in a folder")
        if path.exists() and path.stat().st_size and not resume:
            raise InputError(f"{path} has rows already; add --resume to go on, or name another")
        self._whole = 0  # bytes up to the end of the last whole line
        if path.exists():
            self._read()

    def _read(self) -> None:
        try:
            content = files.read_named(self.path, MOST)
        except OSError as error:
            raise InputError(
                f"--out {self.path} cannot be read ({error.strerror}); name another file"
            ) from None
        self._whole = content.rfind(b"\n") + 1  # what follows was torn off when it was written
        for number, line in enumerate(content[: self._whole].splitlines(), 1):
            try:
                row = json_files.in_shape(json_files.parse_json(line, self.path), SHAPE, self.path)
                self.known[row["line"]] = row
            except ValueError:
                raise InputError(
                    f"{self.path}, line {number} is no row of a sweep; name another file"
                ) from None

    @contextmanager
    def writing(self) -> Iterator["RowFile"]:
        with self.path.open("ab") as file:
            file.truncate(self._whole)
            self._file = file
            yield self

    def write(self, row: Row) -> None:
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
