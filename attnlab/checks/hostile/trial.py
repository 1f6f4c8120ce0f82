"""What is tried: a payload against the code as it is, or a control against a naive reader.

A trial has a place of its own: a folder with a run that came from a stranger, and a victim beside
it. `plant` lays the trap, `act` is what a person then does, in a process of its own.
"""

import os
import runpy
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

SECRET = "the-canary-sings-at-four-43f1c07d"
REFUSED = (2,)  # exit codes: a refusal is one line and code 2
EITHER = (0, 2)  # or the trap was stepped over
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Place:
    """Where a trial happens: the working directory of the process that is attacked."""

    folder: Path
    template: Path  # a folder with good files to copy: run, shards, evil.so

    @property
    def victim(self) -> Path:
        """A file of the person's, which nothing may touch or show."""
        return self.victims / "precious.txt"

    @property
    def victims(self) -> Path:
        return self.folder / "victims"

    @property
    def mark(self) -> Path:
        """Exists once a command of the payload was executed."""
        return self.folder / "mark"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @cached_property
    def run(self) -> Path:
        """A copy of a finished run, with one checkpoint."""
        return self.copy("run", "runs/20200101-000000-tiny-abcdef")

    @property
    def checkpoint(self) -> Path:
        return self.run / "checkpoints" / "step_000002"

    def copy(self, name: str, to: str) -> Path:
        there = self.folder / to
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.template / name, there)
        return there

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def prepare(self) -> None:
        for name in ("precious.txt", "inner/keep.txt", "step_000002/keep.txt"):
            self.write(f"victims/{name}", f"{SECRET}\n")
        (self.folder / "tmp").mkdir()


Plant = Callable[[Place], object]
Act = Callable[[Place], object]


@dataclass(frozen=True, kw_only=True)
class Trial:
    name: str
    plant: Plant
    act: Act
    codes: tuple[int, ...] = REFUSED  # exit codes that are right
    patience: float = 60.0  # seconds for an answer
    terminal: bool = False  # whether it is run on a terminal
    verdicts: bool = False  # whether it answers with verdicts, not with a line
    environment: Mapping[str, str] = field(default_factory=dict)
    memory: int = 1024  # MiB more than before that it may take
    forbidden: str = ""  # a text that must not be in its output
    said: str = ""  # a text that must be in its output if it goes on
    caught: str = ""  # of a control: what must be found
    not_promised: str = ""  # why it counts neither as held nor as broken

    @property
    def is_control(self) -> bool:
        return bool(self.caught)


@dataclass(frozen=True, kw_only=True)
class Family:
    name: str
    about: str
    trials: Sequence[Trial]

    @property
    def payloads(self) -> list[Trial]:
        return [one for one in self.trials if not one.is_control]

    @property
    def controls(self) -> list[Trial]:
        return [one for one in self.trials if one.is_control]


def command(*words: str) -> Act:
    """`attnlab WORDS…`, as a person runs it; {run} and the like are filled in."""

    def act(place: Place) -> None:
        sys.argv = ["attnlab", *(fill(word, place) for word in words)]
        runpy.run_module("attnlab", run_name="__main__", alter_sys=True)

    return act


def fill(text: str, place: Place) -> str:
    known = {"victims": place.victims, "victim": place.victim, "folder": place.folder}
    for name, path in known.items():
        text = text.replace(f"{{{name}}}", str(path))
    return text.replace("{run}", str(place.run)) if "{run}" in text else text


def nothing(place: Place) -> None:
    pass


AGAIN = "made again from step_000002"  # what is said of a config.json that cannot be used
DECIDES = "the checkpoint decides"  # and of one that says something else
GENERATE = command("generate", "{run}", "--prompt", "Where", "--tokens", "3", "--device", "cpu")
RESUME = command("train", "tiny", "--runs", "runs", "--resume", "{run}", "steps=4", "device=cpu")
LIST = command("runs", "--runs", "runs")
EVALUATE = command("evaluate", "{run}", "--device", "cpu")


def by_pid(name: str, *, ending: str = "tmp") -> str:
    """The temporary name of this very process, as an attacker may guess it."""
    return f".{name}.{os.getpid()}.{ending}"
