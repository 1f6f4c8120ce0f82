"""Runs to look at: a list, curves that grow during a training, settings, samples.

    runs/<run>/               named "<run>"
    runs/<study>/runs/<run>/  named "<study>/<run>": the trainings of studies and comparisons

A log is read from where the last look ended, so a poll costs what is new. A run that resumes from
a checkpoint writes its logs anew, shorter: then all is read again. A curve is sent as buckets, the
mean with the lowest and the highest of each, so 10⁵ steps draw as quickly as 10³.

A folder may come from a stranger: a link, a FIFO or a file that is too large counts as not there,
and a name is shown with its unprintable characters escaped.
"""

import json
import math
import os
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from attnlab import files
from attnlab.json_files import Json, finite
from attnlab.page.guard import Refused
from attnlab.printable import distinct
from attnlab.training import checkpoint, logs, runs

MOST_RUNS = 2_000
MOST_POINTS = 4_000
KEPT_LOGS = 64  # read and kept in memory: 16 bytes a step
MOST_READ = 64 << 20  # bytes of a log at a time; the next look begins there
MOST_FILE = 4 << 20  # bytes of a settings or result file
TAIL = 16 << 10  # bytes at the end of a log that hold its newest line
SAMPLES, LONGEST_SAMPLE = 12, 4_000
VALUES = {"metrics": "loss", "eval": "loss", "speed": "tokens_per_second"}  # by the log


class Runs:
    """The runs of a folder. Names are looked up in what is there; they are never a path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._logs: OrderedDict[Path, Log] = OrderedDict()
        # each with what was there when it was read: the list is asked for every second
        self._settings: dict[Path, tuple[Any, Any]] = {}
        self._summaries: dict[Path, tuple[Any, dict[str, Any]]] = {}
        self._lock = threading.Lock()  # requests come from several threads

    def folders(self) -> dict[str, Path]:
        """Where each run is, the newest first."""
        found = {distinct(one.folder.name): one.folder for one in runs.all_in(self.root)}
        for inside in self.root.glob("*/runs"):
            study = distinct(inside.parent.name)
            found |= {
                f"{study}/{distinct(one.folder.name)}": one.folder for one in runs.all_in(inside)
            }
        every = sorted(found.items(), key=lambda one: _modified(one[1]), reverse=True)
        return dict(every[:MOST_RUNS])

    def folder(self, name: str) -> Path:
        found = self.folders().get(name)
        if found is None:
            raise Refused(404, f"there is no run {name[:120]!r} here; /api/runs has their names")
        return found

    def with_weights(self) -> list[str]:
        """The names that `start=RUN` takes: of runs with a checkpoint, outside of studies."""
        return [
            name
            for name, folder in self.folders().items()
            if name == folder.name
            and folder.parent == self.root
            and "=" not in name
            and _checkpoints(runs.Run(folder))
        ]

    def list_all(self) -> list[dict[str, Any]]:
        return [self._summary(name, folder) for name, folder in self.folders().items()]

    def curve(self, name: str, after: int, points: int) -> dict[str, Any]:
        run = runs.Run(self.folder(name))
        with self._lock:
            metrics, evaluations, speed = (
                self._log(run.log(log), value) for log, value in VALUES.items()
            )
            for log in (metrics, evaluations, speed):
                log.read_on()
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
        run, notes = runs.Run(folder), list[str]()
        settings = _settings(run, notes.append)
        with self._lock:
            for name_of_log, value in VALUES.items():
                log = self._log(run.log(name_of_log), value)
                log.read_on()
                notes.append(_complaint(log.path, log.damaged))
        rows, lines = _last_rows(run.log("samples"), TAIL * 16)
        notes.append(_complaint(run.log("samples"), lines - len(rows)))
        samples = [
            {
                "step": row["step"],
                "prompt": _text(row.get("prompt"))[:LONGEST_SAMPLE],
                "text": _text(row.get("text"))[:LONGEST_SAMPLE],
            }
            for row in rows[-SAMPLES:]
        ]
        return {
            "name": name,
            "settings": settings,
            "flat": dict(_flat(settings)) if isinstance(settings, dict) else {},
            "manifest": _json(folder / "manifest.json"),
            "samples": samples,
            "result": _json(folder / "result.json"),
            "notes": [_as_shown(note, folder) for note in notes if note],
        }

    def _log(self, path: Path, value: str = "loss") -> "Log":
        log = self._logs.setdefault(path, Log(path, value))
        self._logs.move_to_end(path)
        while len(self._logs) > KEPT_LOGS:
            self._logs.popitem(last=False)
        return log

    def _known_settings(self, run: runs.Run) -> Json:
        """Read again only when a file of theirs has changed."""
        there = _settings_files(run)
        known = self._settings.get(run.folder)
        if known is None or known[0] != there:
            if len(self._settings) > 2 * MOST_RUNS:
                self._settings.clear()
            known = self._settings[run.folder] = there, _settings(run)
        return known[1]

    def _summary(self, name: str, folder: Path) -> dict[str, Any]:
        """Read again only when something in the folder has changed; whether it runs, always."""
        run = runs.Run(folder)
        there = [*_settings_files(run), *_entries(folder)]
        known = self._summaries.get(folder)
        if known is None or known[0] != there:
            if len(self._summaries) > 2 * MOST_RUNS:
                self._summaries.clear()
            known = self._summaries[folder] = there, self._read_summary(name, run)
        summary = known[1]
        readable = summary["state"] != "unreadable"
        return {**summary, "name": name, "state": _state(run) if readable else "unreadable"}

    def _read_summary(self, name: str, run: runs.Run) -> dict[str, Any]:
        folder, settings = run.folder, self._known_settings(run)
        manifest = _json(folder / "manifest.json")
        rows, _ = _last_rows(run.log("metrics"), TAIL)
        metrics = [row for row in rows if _number(row.get("loss"))]
        with self._lock:
            evaluations = self._log(run.log("eval"))
            evaluations.read_on()
            best = min(evaluations.values, default=None)
        return {
            "name": name,
            "preset": distinct(run.preset),
            "state": _state(run) if isinstance(settings, dict) else "unreadable",
            "step": metrics[-1]["step"] if metrics else 0,
            "steps": _whole(settings, "steps"),
            "loss": metrics[-1]["loss"] if metrics else None,
            "best_loss": best,
            "parameters": _whole(manifest, "parameters"),
            "writable": bool(_checkpoints(run)),  # text with
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
        self.damaged = 0  # whole lines that are no rows of ours

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
        rows, lines = _rows(new[:whole])
        self.damaged += lines - self._take(rows)

    def _take(self, rows: Iterable[Any]) -> int:
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
        return len(good)

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
        low, high = np.minimum.reduceat(values, edges), np.maximum.reduceat(values, edges)
        # divided first: a sum of losses may exceed every float, and their mean does not
        means = np.add.reduceat(values / np.repeat(counts, counts), edges)
        return {
            "steps": steps[ends].tolist(),  # where a bucket ends, so that the newest is the last
            "loss": _short(np.clip(means, low, high)),
            "low": _short(low),
            "high": _short(high),
        }


def _short(values: Any) -> list[float]:
    """Six digits are more than a curve shows, and a third of the bytes."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def _rows(text: bytes) -> tuple[list[Any], int]:
    """The rows of whole lines, and how many lines there are; one may be no row of ours."""
    lines = [line for line in text.split(b"\n") if line.strip()]
    try:  # all at once is three times as fast
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        found = []
    if len(found) != len(lines):
        found = [_row(line) for line in lines]
    whole = [row for row in found if isinstance(row, dict) and type(row.get("step")) is int]
    return [row for row in whole if 0 <= row["step"] < 2**53], len(lines)


def _row(line: bytes) -> Json:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _number(value: object) -> bool:
    return type(value) is float and math.isfinite(value)


def _last_rows(path: Path, most: int) -> tuple[list[Any], int]:
    """Of the end of a log, with the number of lines that were read."""
    try:
        with files.open_plain(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            text = file.read(most)
    except OSError:
        return [], 0
    if size > most:
        text = text.partition(b"\n")[2]
    return _rows(text[: text.rfind(b"\n") + 1])


def _as_shown(note: str, folder: Path) -> str:
    """Without the folder, which stands above it. Looking makes nothing again; resuming does."""
    said = note.replace(f"{folder}{os.sep}", "")
    return distinct(said.replace("; made again from ", "; the settings are those of "))


def _complaint(path: Path, damaged: int) -> str:
    return logs.Log(path, [], [], damaged).complaint()


def _every_nth(rows: list[Any], most: int) -> list[Any]:
    step = -(-len(rows) // most) if rows else 1
    return rows[::-step][::-1]  # the newest is among them


def _evaluation(step: int, loss: float, accuracy: float) -> dict[str, Any]:
    known = {"accuracy": accuracy} if math.isfinite(accuracy) else {}
    return {"step": step, "loss": loss, **known}


def _state(run: runs.Run) -> str:
    try:
        return run.state
    except OSError:
        return "unreadable"


def _checkpoints(run: runs.Run) -> list[Path]:
    try:
        return checkpoint.all_in(run.checkpoints)
    except OSError:
        return []


def _settings(run: runs.Run, note: Callable[[str], None] | None = None) -> Json:
    """As they would be used; None if they cannot be read."""
    if any(size > MOST_FILE for _, _, size in _settings_files(run)):
        return None
    try:
        return finite(run.settings(note=note)[0])
    except (OSError, ValueError):
        return None


def _settings_files(run: runs.Run) -> list[tuple[Path, int, int]]:
    """What settings may be read from, each with its time and size."""
    found = []
    for folder in [run.folder, *_checkpoints(run)]:
        for name in ("config.json", "manifest.json"):
            try:
                there = (folder / name).lstat()
            except OSError:
                continue
            found.append((folder / name, there.st_mtime_ns, there.st_size))
    return found


def _entries(folder: Path) -> list[tuple[str, int, int]]:
    """What is in a folder, each with its time and size."""
    try:
        with os.scandir(folder) as found:
            stats = sorted((one.name, one.stat(follow_symlinks=False)) for one in found)
    except OSError:
        return []
    return [(name, there.st_mtime_ns, there.st_size) for name, there in stats]


def _json(path: Path) -> Json:
    """What a file of settings holds, with numbers that JSON can hold; None if that is nothing."""
    content = plain_content(path, MOST_FILE)
    try:
        return None if content is None else finite(json.loads(content))
    except (ValueError, RecursionError):
        return None


def plain_content(path: Path, most: int) -> bytes | None:
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


def _inside(plain: object, name: str) -> Json:
    return plain.get(name) if isinstance(plain, dict) else None


def _whole(plain: object, name: str) -> int | None:
    found = _inside(plain, name)
    return found if type(found) is int else None


def _objective(settings: object) -> str | None:
    found = _inside(_inside(settings, "objective"), "name")
    return found if isinstance(found, str) else None


def _text(value: object) -> str:
    """As JSON can be sent: half a surrogate pair is no letter."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def _modified(folder: Path) -> float:
    """When something was last written there."""
    times = []
    for name in ("metrics.jsonl", "config.json", "checkpoints"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
