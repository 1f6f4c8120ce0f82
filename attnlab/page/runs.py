"""Runs to look at: a list, curves that grow during a training, settings, samples, reports.

    runs/<run>/               named "<run>"
    runs/<study>/runs/<run>/  named "<study>/<run>": the trainings of studies and comparisons

A log is read from where the last look ended, so a poll costs what is new. A run that resumes from
a checkpoint writes its logs anew, shorter: then all is read again. A curve is sent as buckets, the
mean with the lowest and the highest of each, so 10⁵ steps draw as quickly as 10³.

A folder may come from a stranger: a link, a FIFO or a file that is too large counts as not there,
and a name is shown with its unprintable characters escaped.
"""

import html
import json
import math
import os
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from attnlab import files
from attnlab.audit.contract import finite
from attnlab.page.guard import Refused
from attnlab.training import checkpoint, runs

MOST_RUNS = 2_000
MOST_POINTS = 4_000
KEPT_LOGS = 64  # read and kept in memory: 16 bytes a step
MOST_READ = 64 << 20  # bytes of a log at a time; the next look begins there
MOST_FILE = 4 << 20  # bytes of a settings or result file
MOST_REPORT = 64 << 20  # bytes of a report with its pictures
OPENING = 80_000  # bytes that hold the first three paragraphs of a report
TAIL = 16 << 10  # bytes at the end of a log that hold its newest line
SAMPLES, LONGEST_SAMPLE = 12, 4_000


class Runs:
    """The runs of a folder. Names are looked up in what is there; they are never a path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._logs: OrderedDict[Path, Log] = OrderedDict()
        self._lock = threading.Lock()  # requests come from several threads

    def folders(self) -> dict[str, Path]:
        """Where each run is, the newest first."""
        plain = {
            printable(path.parent.name): path.parent for path in self.root.glob("*/config.json")
        }
        inside = {
            f"{printable(path.parents[2].name)}/{printable(path.parent.name)}": path.parent
            for path in self.root.glob("*/runs/*/config.json")
        }
        every = sorted((plain | inside).items(), key=lambda one: _modified(one[1]), reverse=True)
        return dict(every[:MOST_RUNS])

    def folder(self, name: str) -> Path:
        found = self.folders().get(name)
        if found is None:
            raise Refused(404, f"there is no run {name[:120]!r} here; /api/runs has their names")
        return found

    def list_all(self) -> list[dict[str, Any]]:
        return [self._summary(name, folder) for name, folder in self.folders().items()]

    def curve(self, name: str, after: int, points: int) -> dict[str, Any]:
        run = runs.Run(self.folder(name))
        with self._lock:
            metrics, evaluations = self._log(run.log("metrics")), self._log(run.log("eval"))
            speed = self._log(run.log("speed"), "tokens_per_second")
            metrics.read_on()
            evaluations.read_on()
            speed.read_on()
            rows = list(zip(*evaluations.since(after), strict=True))
            return {
                **metrics.buckets(after, points),
                "eval": [_evaluation(*row) for row in _every_nth(rows, points)],
                "last": metrics.last,
                "state": _state(run),
                "speed": speed.values[-1] if speed.values else None,
            }

    def details(self, name: str) -> dict[str, Any]:
        folder = self.folder(name)
        settings = _json(folder / "config.json")
        with self._lock:
            rows = _last_rows(folder / "samples.jsonl", TAIL * 16)[-SAMPLES:]
        samples = [
            {
                "step": row["step"],
                "prompt": _text(row.get("prompt"))[:LONGEST_SAMPLE],
                "text": _text(row.get("text"))[:LONGEST_SAMPLE],
            }
            for row in rows
        ]
        return {
            "name": name,
            "settings": settings,
            "flat": dict(_flat(settings)) if isinstance(settings, dict) else {},
            "manifest": _json(folder / "manifest.json"),
            "samples": samples,
            "result": _json(folder / "result.json"),
        }

    def reports(self) -> list[dict[str, Any]]:
        return [
            {"id": name, "kind": name.partition("-")[0], **_opening(path.with_suffix(".md"))}
            for name, path in self._reports().items()
        ]

    def report(self, name: str) -> bytes:
        found = self._reports().get(name)
        if found is None:
            raise Refused(404, f"there is no report {name[:120]!r} here; /api/reports has them")
        content = _content(found, MOST_REPORT)
        if content is None:
            reason = f"is a link, no plain file, or has more than {MOST_REPORT:,} bytes"
            raise Refused(404, f"the report of {name[:120]} is not shown: it {reason}")
        return content

    def _reports(self) -> dict[str, Path]:
        found = {printable(path.parent.name): path for path in self.root.glob("*/report.html")}
        kinds = ("study-", "compare-")
        return {name: found[name] for name in sorted(found, reverse=True) if name.startswith(kinds)}

    def _log(self, path: Path, value: str = "loss") -> "Log":
        log = self._logs.setdefault(path, Log(path, value))
        self._logs.move_to_end(path)
        while len(self._logs) > KEPT_LOGS:
            self._logs.popitem(last=False)
        return log

    def _summary(self, name: str, folder: Path) -> dict[str, Any]:
        run, settings = runs.Run(folder), _json(folder / "config.json")
        manifest = _json(folder / "manifest.json")
        metrics = [row for row in _last_rows(run.log("metrics"), TAIL) if _number(row.get("loss"))]
        with self._lock:
            evaluations = self._log(run.log("eval"))
            evaluations.read_on()
            best = min(evaluations.values, default=None)
        return {
            "name": name,
            "preset": printable(run.preset),
            "state": _state(run) if isinstance(settings, dict) else "unreadable",
            "step": metrics[-1]["step"] if metrics else 0,
            "steps": _whole(settings, "steps"),
            "loss": metrics[-1]["loss"] if metrics else None,
            "best_loss": best,
            "parameters": _whole(manifest, "parameters"),
            "writable": _writable(run),
            "kind": "questions" if _objective(settings) in ("questions", "mixed") else "language",
            "context": _whole(settings, "context") or _whole(_inside(settings, "model"), "context"),
            "modified": _modified(folder),
        }


class Log:
    """Steps and numbers of a log, as far as it was read."""

    def __init__(self, path: Path, value: str = "loss") -> None:
        self.path, self.value = path, value
        self._forget()

    def _forget(self) -> None:
        self.steps, self.values, self.more = array("q"), array("d"), array("d")
        self._offset, self._file = 0, -1

    @property
    def last(self) -> int:
        return self.steps[-1] if self.steps else 0

    def read_on(self) -> None:
        """Take in the whole lines that are new."""
        try:
            with files.open_plain(self.path) as file:
                there = os.fstat(file.fileno())
                if there.st_ino != self._file or there.st_size < self._offset:
                    self._forget()
                if there.st_size == self._offset:
                    return
                self._file = there.st_ino
                file.seek(self._offset)
                new = file.read(MOST_READ)
        except OSError:
            self._forget()
            return
        whole = new.rfind(b"\n") + 1
        if not whole and len(new) == MOST_READ:
            whole = len(new)  # no line of ours is so long; what is left of it is no row
        self._offset += whole
        self._take(_rows(new[:whole]))

    def _take(self, rows: Iterable[Any]) -> None:
        """In bulk where steps go up, as they do; a log of 10⁵ lines is taken in at once."""
        name, finite_number = self.value, math.isfinite
        good = [
            (row["step"], row[name], row.get("accuracy"))
            for row in rows
            if type(row.get(name)) is float and finite_number(row[name])
        ]
        steps = [step for step, _, _ in good]
        if any(step <= before for before, step in pairwise([self.last, *steps])) and steps:
            for row in good:
                self._forget_from(row[0])
                self._add([row])
        else:
            self._add(good)

    def _add(self, good: list[tuple[int, float, Any]]) -> None:
        self.steps.extend([step for step, _, _ in good])
        self.values.extend([value for _, value, _ in good])
        self.more.extend([more if type(more) is float else math.nan for _, _, more in good])

    def _forget_from(self, step: int) -> None:
        """It went back, and comes again from here."""
        if step <= self.last:
            keep = int(np.searchsorted(np.array(self.steps), step))
            for column in (self.steps, self.values, self.more):
                del column[keep:]

    def since(self, after: int) -> tuple[list[int], list[float], list[float]]:
        first = int(np.searchsorted(np.array(self.steps), after, side="right"))
        return self.steps[first:].tolist(), self.values[first:].tolist(), self.more[first:].tolist()

    def buckets(self, after: int, points: int) -> dict[str, list[Any]]:
        steps, values = np.array(self.steps), np.array(self.values)
        first = int(np.searchsorted(steps, after, side="right"))
        steps, values = steps[first:], values[first:]
        edges = np.unique(np.linspace(0, len(steps), min(points, len(steps)) + 1).astype(int))[:-1]
        if not len(edges):
            return {"steps": [], "loss": [], "low": [], "high": []}
        counts = np.diff(np.append(edges, len(steps)))
        ends = np.append(edges[1:], len(steps)) - 1
        return {
            "steps": steps[ends].tolist(),  # where a bucket ends, so that the newest is the last
            "loss": _short(np.add.reduceat(values, edges) / counts),
            "low": _short(np.minimum.reduceat(values, edges)),
            "high": _short(np.maximum.reduceat(values, edges)),
        }


def _short(values: Any) -> list[float]:
    """Six digits are more than a curve shows, and a third of the bytes."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def _rows(text: bytes) -> list[Any]:
    """The rows of whole lines; one that is no row of ours is passed over."""
    lines = text.split(b"\n")
    try:  # all at once is three times as fast
        found = json.loads(b"[" + b",".join(line for line in lines if line.strip()) + b"]")
    except (ValueError, RecursionError):
        found = [row for line in lines if (row := _row(line)) is not None]
    whole = [row for row in found if isinstance(row, dict) and type(row.get("step")) is int]
    return [row for row in whole if 0 <= row["step"] < 2**53]


def _row(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _number(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _last_rows(path: Path, most: int) -> list[Any]:
    """Of the end of a log."""
    try:
        with files.open_plain(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            text = file.read(most)
    except OSError:
        return []
    if size > most:
        text = text.partition(b"\n")[2]
    return _rows(text[: text.rfind(b"\n") + 1])


def _every_nth(rows: list[Any], most: int) -> list[Any]:
    step = -(-len(rows) // most) if rows else 1
    return rows[::-step][::-1]  # the newest is among them


def _evaluation(step: int, loss: float, accuracy: float) -> dict[str, Any]:
    known = {} if math.isnan(accuracy) else {"accuracy": accuracy}
    return {"step": step, "loss": loss, **known}


def _state(run: runs.Run) -> str:
    try:
        return run.state
    except OSError:
        return "unreadable"


def _writable(run: runs.Run) -> bool:
    """Whether there is a checkpoint to write text with."""
    try:
        return bool(checkpoint.all_in(run.checkpoints))
    except OSError:
        return False


def _json(path: Path) -> Any:
    """What a file of settings holds, with numbers that JSON can hold; None if that is nothing."""
    content = _content(path, MOST_FILE)
    try:
        return None if content is None else finite(json.loads(content))
    except (ValueError, RecursionError):
        return None


def _content(path: Path, most: int) -> bytes | None:
    """Of a plain file; None for anything else, and for more than so many bytes."""
    try:
        with files.open_plain(path) as file:
            content = file.read(most + 1)
    except OSError:
        return None
    return content if len(content) <= most else None


def _flat(settings: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted, as on the command line: {"model.width": 128, …}."""
    for name, value in settings.items():
        if isinstance(value, dict):
            if "name" in value:
                yield prefix + name, value["name"]
            inner = {key: it for key, it in value.items() if key != "name"}
            yield from _flat(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _inside(plain: Any, name: str) -> Any:
    return plain.get(name) if isinstance(plain, dict) else None


def _whole(plain: Any, name: str) -> int | None:
    found = _inside(plain, name)
    return found if type(found) is int else None


def _objective(settings: Any) -> Any:
    found = _inside(_inside(settings, "objective"), "name")
    return found if isinstance(found, str) else None


def printable(name: str) -> str:
    """A folder's name as it is shown and asked for: newlines, escape sequences, letters that turn
    the direction of writing, and bytes that are no UTF-8 are escaped, as \\n or \\udcff. Two names
    are never shown alike, so the backslash is escaped too."""
    return "".join(
        one if one.isprintable() and one != "\\" else one.encode("unicode_escape").decode()
        for one in name
    )


def _text(value: Any) -> str:
    """As JSON can be sent: half a surrogate pair is no letter."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def _modified(folder: Path) -> float:
    """When something was last written there."""
    times = []
    for name in ("metrics.jsonl", "config.json"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def _opening(markdown: Path) -> dict[str, str]:
    """Title, question and answer: how every report of ours begins."""
    try:
        with files.open_plain(markdown) as file:
            text = file.read(OPENING).decode(errors="replace")
    except OSError:
        text = ""
    title, question, answer = [*text.split("\n\n")[:3], "", "", ""][:3]
    return {
        "title": _shown(title.removeprefix("# ")) or printable(markdown.parent.name),
        "question": _shown(question),
        "answer": _shown(re.sub(r"^> ?|\*\*", "", answer, flags=re.MULTILINE)),
    }


def _shown(markdown: str) -> str:
    """The words without what keeps them from being markup."""
    return " ".join(html.unescape(re.sub(r"\\(?=[^\w\s])", "", markdown)).split())
