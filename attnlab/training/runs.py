"""Run folders: the only thing that training, evaluation, generation and the page share.

    runs/<date>-<preset>-<short id>/
      config.json       the resolved settings        manifest.json  versions, device, command, paths
      metrics.jsonl     a line for every step        eval.jsonl     a line for every evaluation
      speed.jsonl       tokens a second, now and then samples.jsonl  text written while training
      tokenizer.json    checkpoints/                 result.json    written when it has finished
      held.jsonl        in a comparison: the losses of each evaluation by stretches of the text

Metrics hold nothing that depends on the clock: the same run twice gives the same bytes.
"""

import fcntl
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from attnlab import config, files, registry
from attnlab.training import checkpoint
from attnlab.training.recipe import Recipe

LOGS = ("metrics", "eval", "speed", "samples", "held")


@dataclass(frozen=True)
class Run:
    folder: Path

    @property
    def preset(self) -> str:
        """As its name says: <date>-<time>-<preset>-<short id>."""
        return "-".join(self.folder.name.split("-")[2:-1])

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def recipe(self) -> Recipe:
        plain = files.read_json(self.folder / "config.json")
        return config.from_dict(Recipe, plain)

    def log(self, name: str) -> Path:
        assert name in LOGS
        return self.folder / f"{name}.jsonl"

    def read(self, name: str) -> list[dict[str, Any]]:
        return list(_lines(self.log(name)))

    def cut_logs(self, steps: dict[str, int]) -> None:
        """Forget what was logged after a step, torn last lines included: it will come again."""
        for name in LOGS:
            path, last = self.log(name), steps.get(name, steps["metrics"])
            if path.exists():
                kept = [row for row in _lines(path) if row["step"] <= last]
                files.write_whole(path, b"".join(map(line, kept)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process writes in a run folder; the lock goes with the process, however it ends."""
        with files.open_lock(self.folder / "lock") as file:
            for _ in range(5):  # whoever only looks has it for a moment
                if _try_lock(file, fcntl.LOCK_EX):
                    break
                time.sleep(0.02)
            else:
                raise ValueError(busy_message(self.folder))
            yield

    @property
    def busy(self) -> bool:
        """Whether a process has the lock. Looking writes nothing: the folder may be read-only."""
        lock = self.folder / "lock"
        if not lock.is_file():
            return False
        with files.open_plain(lock) as file:
            return not _try_lock(file, fcntl.LOCK_SH)

    @property
    def finished(self) -> bool:
        return (self.folder / "result.json").exists()

    @property
    def state(self) -> str:
        """An OSError where that cannot be read."""
        return "running" if self.busy else "finished" if self.finished else "stopped"


def busy_message(folder: Path) -> str:
    return f"{folder} is being trained by another process; wait for it or stop it"


def _try_lock(file: IO[Any], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def line(row: Mapping[str, object]) -> bytes:
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a log: a process may have been killed in the middle of the last one."""
    if not path.is_file():
        return
    for text in files.read(path).split(b"\n"):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row


def create(root: Path, preset: str) -> Run:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = root / f"{stamp}-{preset}-{secrets.token_hex(3)}"
    try:
        files.make_folder(folder / "checkpoints")
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"no run can be made in {root}: {reason}; use --runs FOLDER") from None
    return Run(folder)


def all_in(root: Path) -> list[Run]:
    """Runs, newest first."""
    if not root.is_dir():
        return []
    found = [path.parent for path in root.glob("*/config.json") if path.is_file()]
    return [Run(folder) for folder in sorted(found, reverse=True)]


def find(word: str, root: Path) -> tuple[Run, Path | None]:
    """A run by its path, its name or the end of its name; the newest of a preset; a checkpoint."""
    known = all_in(root)
    of_preset = [run for run in known if run.preset == word]
    names = [run.folder.name for run in known]
    ending = [run for run in known if word and run.folder.name.endswith(word)]
    for folder in [Path(word), root / word] if word else []:
        if (folder / "config.json").is_file() and (folder / "checkpoints").is_dir():
            return Run(folder), None
        if folder.absolute().parent.name == "checkpoints" and folder.is_dir():
            return Run(folder.absolute().parent.parent), folder
    if len(ending) == 1 or of_preset:
        return (of_preset or ending)[0], None
    if ending:
        several = ", ".join(run.folder.name for run in ending)
        raise ValueError(f"{word} is the end of several runs; write more of one of {several}")
    hint = registry.suggest(word, names) if names else f"there are no runs in {root}"
    raise ValueError(f"{word!r} is no run and no checkpoint; {hint}")


def open_checkpoint(word: str, root: Path, best: bool = False) -> tuple[Path, list[str]]:
    """The checkpoint a word stands for: itself, or a run's best or newest good one."""
    run, folder = find(word, root)
    if folder is not None:
        checkpoint.read_verified(folder)
        return folder, []
    newest, broken = checkpoint.newest_good(run.checkpoints)
    if newest is None:
        why = f": {broken[0]}" if broken else ""
        raise ValueError(f"{run.folder} has no checkpoint that can be used{why}")
    for folder in _best_first(run) if best else []:
        if checkpoint.is_good(folder):
            return folder, broken
    return newest, broken


def _best_first(run: Run) -> list[Path]:
    """Where the checkpoints of the evaluated steps are, or were, the lowest loss first."""
    rows = [row for row in run.read("eval") if isinstance(row.get("loss"), int | float)]
    rows.sort(key=lambda row: row["loss"])
    return [run.checkpoints / checkpoint.name_of(row["step"]) for row in rows if row["step"] > 0]
