"""Run folders: the only thing that training, evaluation, generation and the page share.

    runs/<date>-<preset>-<short id>/
      config.json       the resolved settings        manifest.json  versions, device, command, paths
      metrics.jsonl     a line for every step        eval.jsonl     a line for every evaluation
      speed.jsonl       tokens a second, now and then samples.jsonl  text written while training
      tokenizer.json    checkpoints/                 result.json    written when it has finished
      held.jsonl        in a comparison: the losses of each evaluation by stretches of the text

Metrics hold nothing that depends on the clock: the same run twice gives the same bytes.
"""

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab import config, files, json_files, registry
from attnlab.training import checkpoint, logs
from attnlab.training.lock import Lock, held_by_another
from attnlab.training.logs import NAMES as LOGS
from attnlab.training.logs import line as line
from attnlab.training.state import State

if TYPE_CHECKING:  # who only lists runs need not wait for torch
    from attnlab.training.recipe import Recipe

MANIFEST = {"corpus?": str, "start?": str, "parameters?": int, "ready_seconds?": float}
RESULT = {"step": int, "loss": (float, None), "best_loss": (float, None)}
RESULT |= {"seconds": float, "step_seconds": float}
RESCUED = "rescued"  # at the end of the name of a run whose folder was removed while it trained


@dataclass(frozen=True)
class Run:
    folder: Path

    @property
    def preset(self) -> str:
        """As its name says: <date>-<time>-<preset>-<short id>, with -rescued after it or not."""
        return "-".join(_first_name(self.folder).split("-")[2:-1])

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def recipe(
        self, begin: Path | None = None, note: Callable[[str], None] | None = None
    ) -> "Recipe":
        """The settings, each checked."""
        return _recipe(*self.settings(begin, note))

    def settings(
        self, begin: Path | None = None, note: Callable[[str], None] | None = None
    ) -> tuple[Any, Path]:
        """The settings as plain JSON: of the checkpoint it begins from, or of its newest; and the
        file that has them.

        Before there is one, config.json has them. Later that file is a copy for people, which
        anything may have changed: the checkpoint decides, and `note` hears what differs.
        """
        path = self.folder / "config.json"
        found = [begin] if begin is not None else checkpoint.all_in(self.checkpoints)
        for folder in found:
            try:
                plain = checkpoint.read_plain(folder, "config.json")
            except checkpoint.BrokenCheckpoint:
                if begin is not None:
                    raise
                continue
            if note is not None:
                self._compare_copy(plain, folder, note)
            return plain, folder / "config.json"
        return json_files.read_json(path), path

    def _compare_copy(
        self, plain: dict[str, Any], folder: Path, note: Callable[[str], None]
    ) -> None:
        path = self.folder / "config.json"
        try:
            copy = config.flat(json_files.in_shape(json_files.read_json(path), {}, path))
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            why = "is missing" if missing else "cannot be used"
            note(f"{path} {why}; made again from {folder.name}")
            return
        kept = config.flat(plain)
        differing = [key for key in {**kept, **copy} if kept.get(key) != copy.get(key)]
        for key in differing[:1]:
            more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
            note(
                f"{path} has {key}={_short(copy.get(key))}, its {folder.name} "
                f"{_short(kept.get(key))}{more}: the checkpoint decides"
            )

    def log(self, name: str) -> Path:
        assert name in LOGS
        return self.folder / f"{name}.jsonl"

    def read(self, name: str) -> list[dict[str, Any]]:
        return logs.read(self.log(name)).rows

    def complaints(self) -> list[str]:
        """A line for each log with damaged lines, which were left out, or that cannot be read."""
        return [said for name in LOGS if (said := self._complaint(name))]

    def _complaint(self, name: str) -> str:
        try:
            return logs.read(self.log(name)).complaint()
        except OSError as error:
            return f"{self.log(name)} cannot be read: {error.strerror or error}"

    def cut_logs(self, steps: dict[str, int]) -> None:
        """Forget what was logged after a step, torn last lines included: it will come again."""
        for name in LOGS:
            log, last = logs.read(self.log(name)), steps.get(name, steps["metrics"])
            if log.path.exists():
                pairs = zip(log.rows, log.lines, strict=True)
                kept = b"".join(text for row, text in pairs if row["step"] <= last)
                files.write_whole(log.path, kept)

    def manifest(self) -> dict[str, Any]:
        """What was known before the first step; empty if nothing is."""
        path = self.folder / "manifest.json"
        there = path.exists()
        found: dict[str, Any] = json_files.read_json(path, MANIFEST) if there else {}
        return found

    def result(self) -> dict[str, Any]:
        """Of a finished training: the fields of loop.Result."""
        found: dict[str, Any] = json_files.read_json(self.folder / "result.json", RESULT)
        return found

    def forget_result(self) -> None:
        """It goes on from where it had ended."""
        (self.folder / "result.json").unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[Lock]:
        """One process writes in a run folder; the lock goes with the process, however it ends."""
        with files.open_lock(self.folder / "lock") as file:
            lock = Lock(self.folder, file)
            if not lock.taken():
                raise ValueError(busy_message(self.folder))
            yield lock

    @property
    def busy(self) -> bool:
        """Whether a process has the lock. Looking writes nothing: the folder may be read-only."""
        lock = self.folder / "lock"
        if not lock.is_file():
            return False
        with files.open_plain(lock) as file:
            return held_by_another(file)

    @property
    def finished(self) -> bool:
        """Whether it has a result; one that is empty or damaged is none."""
        path = self.folder / "result.json"
        if not path.exists():
            return False
        try:
            self.result()
        except (OSError, ValueError):
            return False
        return True

    @property
    def state(self) -> str:
        """An OSError where that cannot be read."""
        return "running" if self.busy else "finished" if self.finished else "stopped"


def busy_message(folder: Path) -> str:
    return f"{folder} is being trained by another process; wait for it or stop it"


def _recipe(plain: object, path: Path) -> "Recipe":
    from attnlab.training.recipe import Recipe

    try:
        return config.from_dict(Recipe, plain)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def create(root: Path, preset: str) -> Run:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = root / f"{stamp}-{preset}-{secrets.token_hex(3)}"
    try:
        files.make_folder(folder / "checkpoints")
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"no run can be made in {root}: {reason}; use --runs FOLDER") from None
    return Run(folder)


def _first_name(folder: Path) -> str:
    """As the run was called before it was rescued."""
    return re.sub(rf"-{RESCUED}(-\d+)?$", "", folder.name)


def free_name(folder: Path, word: str) -> Path:
    """A folder beside it that is not there yet."""
    names = [
        f"{folder.name}-{word}",
        *(f"{folder.name}-{word}-{number}" for number in range(2, 99)),
    ]
    return next(one for name in names if not (one := folder.with_name(name)).exists())


def all_in(root: Path) -> list[Run]:
    """Runs, newest first."""
    if not root.is_dir():
        return []
    found = {path.parent for path in root.glob("*/config.json") if path.is_file()}
    found |= {path.parent for path in root.glob("*/checkpoints") if checkpoint.all_in(path)}
    return [Run(folder) for folder in sorted(found, reverse=True)]


def find(word: str, root: Path) -> tuple[Run, Path | None]:
    """A run by its path, its name or the end of its name; the newest of a preset; a checkpoint."""
    known = all_in(root)
    of_preset = [run for run in known if run.preset == word]
    ending = [
        run
        for run in known
        if word and (run.folder.name.endswith(word) or _first_name(run.folder).endswith(word))
    ]
    for folder in [Path(word), root / word] if word else []:
        if (folder / "checkpoints").is_dir():
            return Run(folder), None
        if folder.absolute().parent.name == "checkpoints" and folder.is_dir():
            return Run(folder.absolute().parent.parent), folder
    if len(ending) == 1 or of_preset:
        return (of_preset or ending)[0], None
    if ending:
        several = ", ".join(run.folder.name for run in ending)
        raise ValueError(f"{word} is the end of several runs; write more of one of {several}")
    raise ValueError(f"{word!r} is no run and no checkpoint; {_hint(word, known, root)}")


def _hint(word: str, known: list[Run], root: Path) -> str:
    """What may be meant: a run, the newest of a preset, or a preset that was not trained yet."""
    presets = [option.name for option in registry.options("preset")]
    trained = {run.preset for run in known}
    meant = registry.nearest(word, presets)
    if meant and trained.isdisjoint(meant):
        return f"there is no run of {meant[0]} in {root} yet; begin one: attnlab train {meant[0]}"
    names = [*sorted(trained), *(run.folder.name for run in known)]
    if names:
        return registry.suggest(word, names)
    return f"there are no runs in {root}; begin one: attnlab train tiny"


def open_checkpoint(
    word: str,
    root: Path,
    best: bool = False,
    verify: Callable[[Path], object] = checkpoint.read_verified,
) -> tuple[Path, list[str]]:
    """The checkpoint a word stands for: itself, or a run's best or newest good one."""
    run, folder = find(word, root)
    if folder is not None:
        verify(folder)
        return folder, []
    newest, broken = checkpoint.newest_good(run.checkpoints, verify)
    if newest is None:
        why = f": {broken[0]}" if broken else ""
        raise ValueError(f"{run.folder} has no checkpoint that can be used{why}")
    return _best(run, newest, broken, verify) if best else (newest, broken)


def _best(
    run: Run, newest: Path, broken: list[str], verify: Callable[[Path], object]
) -> tuple[Path, list[str]]:
    """The checkpoint with the lowest loss, as the state of the newest one has it.

    The log may have lost a line. It decides where no step is known, or that one is not there.
    """
    log = logs.read(run.log("eval"))
    said = [*broken, *([log.complaint()] if log.complaint() else [])]
    by_loss = [row["step"] for row in sorted(log.rows, key=lambda row: row["loss"])]
    best = _best_step(newest)
    for step in dict.fromkeys([best or 0, *by_loss]):
        if step == 0:
            continue
        folder = run.checkpoints / checkpoint.name_of(step)
        if folder == newest:  # which was verified
            break
        try:
            verify(folder)
        except checkpoint.BrokenCheckpoint as error:
            if step == best and str(error) not in said:
                there = str(error) if folder.exists() else f"{run.folder} has no {folder.name}"
                said.append(f"{there}, its best step")
        else:
            return folder, said
    return newest, said


def _best_step(folder: Path) -> int | None:
    """The step with the lowest loss, as a checkpoint has it; None if it knows of none."""
    try:
        return State.from_json(checkpoint.read_plain(folder, "state.json")).best_step
    except ValueError:  # a state that no training of ours has written, and that is refused later
        return None
