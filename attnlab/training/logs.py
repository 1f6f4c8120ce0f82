"""Logs of a run: a line of JSON for every step; lines that are damaged are counted, not hidden.

A process that is killed leaves a torn last line, which is nothing unusual. A line in the middle
that cannot be read is damage, or was written by another program: it is left out of every curve, and
whoever reads the log says how many there were.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab import files, json_files

NAMES = ("metrics", "eval", "speed", "samples", "held")
EVERY_STEP = ("metrics",)  # logs with a row for each
# what a row holds besides its step; the shape of each is as in json_files.in_shape
_SHAPES: dict[str, dict[str, Any]] = {
    "metrics": {"loss": float},
    "eval": {"loss": float, "accuracy?": float},
    "held": {"sums": [float], "counts": [float]},
}


@dataclass(frozen=True)
class Log:
    """The rows of a log, each as read and as written, and how many lines are none."""

    path: Path
    rows: list[dict[str, Any]]
    lines: list[bytes]  # of the rows, each with its newline
    damaged: int = 0  # whole lines that are no rows
    torn: bool = False  # the last line has no end

    def complaint(self) -> str:
        """In one line; empty if nothing is wrong. A torn last line is nothing unusual."""
        if self.damaged:
            many = "lines are" if self.damaged > 1 else "line is"
            return f"{self.path}: {self.damaged:,} {many} damaged and left out"
        steps = {row["step"] for row in self.rows if self.path.stem in EVERY_STEP}
        missing = max(steps, default=0) - len(steps)
        if missing > 0:  # resuming removes lines that are damaged, and they do not come again
            return f"{self.path}: {missing:,} of {max(steps):,} steps are missing"
        return ""


def read(path: Path) -> Log:
    """A log; without any rows where there is no file."""
    if not path.is_file():
        return Log(path, [], [])
    *whole, last = files.read(path).split(b"\n")
    rows, lines, damaged = [], [], 0
    for text in whole:
        row = parse(text, path)
        if row is not None:
            rows.append(row)
            lines.append(text + b"\n")
        elif text.strip():
            damaged += 1
    unended = parse(last, path)  # torn off right before its newline
    if unended is not None:
        rows.append(unended)
        lines.append(last + b"\n")
    return Log(path, rows, lines, damaged, torn=bool(last))


def parse(text: bytes, path: Path) -> dict[str, Any] | None:
    """A line as a row; None if it is none."""
    try:
        row = json_files.parse_json(text, path)
        shape = _SHAPES.get(path.stem, {}) | {"step": int}
        found: dict[str, Any] = json_files.in_shape(row, shape, path)
    except ValueError:
        return None
    return found


def line(row: Mapping[str, object]) -> bytes:
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
