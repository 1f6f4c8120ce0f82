"""Trainings for other processes: what a task is, how it ended, and what every pool offers."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict, runtime_checkable

from attnlab import config, files
from attnlab.training.recipe import Recipe
from attnlab.training.runs import Run

GRACE = 60.0  # seconds a worker may take to save and exit
POLL = 0.5  # seconds between two looks at the progress


class Ending(TypedDict):
    ending: str  # "finished", "diverged", "failed", or the name of a signal
    why: str  # of one that is finished: what had to be mended


Endings = dict[str, Ending]  # by the name of the task
Watch = Callable[[int, str], None]  # called with the steps done and a line of text


class Interrupted(Exception):
    """A signal has stopped the trainings; everything is saved."""

    def __init__(self, signal: str) -> None:
        super().__init__(f"stopped by {signal}")
        self.signal = signal


class Message(TypedDict):
    """A task as JSON, for another process."""

    folder: str
    recipe: dict[str, Any]
    text: NotRequired[str]
    held: NotRequired[bool]


@dataclass(frozen=True)
class Task:
    """A training, and the folder of its run."""

    name: str
    folder: Path
    recipe: Recipe
    text: str = ""  # the fingerprint it must have, whatever is on the disk by then; empty: any
    held: bool = True  # whether losses are kept by stretches of the text, as verdicts need them

    def message(self) -> Message:
        recipe = config.to_dict(with_absolute_paths(self.recipe))
        folder = str(self.folder.absolute())
        return {"folder": folder, "recipe": recipe, "text": self.text, "held": self.held}


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The same recipe for a process with another working directory."""
    changes: dict[str, Any] = {}
    if path := getattr(recipe.corpus, "path", ""):
        absolute = str(Path(path).expanduser().absolute())
        changes["corpus"] = dataclasses.replace(recipe.corpus, path=absolute)
    if recipe.start is not None and Path(recipe.start).exists():  # else it is the name of a run
        changes["start"] = str(Path(recipe.start).absolute())
    return dataclasses.replace(recipe, **changes)


@runtime_checkable
class Pool(Protocol):
    """Runs trainings: in processes of this machine, or on a cluster."""

    def concurrency(self, tasks: int) -> int:
        """How many of so many trainings run at the same time."""

    def lasting(self) -> AbstractContextManager[None]:
        """What several calls of `train` share, such as a connection."""

    def train(self, tasks: Sequence[Task], log: Path, watch: Watch) -> Endings:
        """Run all tasks; raise Interrupted, with everything saved, when a signal arrives."""


def steps_taken(tasks: Sequence[Task]) -> int:
    """By the lines in the logs, which every machine can read."""
    logs = [Run(task.folder).log("metrics") for task in tasks]
    return sum(files.read(log).count(b"\n") for log in logs if log.exists())
