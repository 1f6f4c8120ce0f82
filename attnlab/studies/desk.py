"""Where a study works: a folder in which every part is done once and kept.

    runs/study-<name>-<id>/     or another kind of folder: runs/compare-<id>/
      settings.json     parts/<job>.json     what each job gave
      runs/<training>/  run folders          report.html, report.md, pictures/, results.json

The id is a function of settings, text, device and version: the same command finds its folder. What
was stopped or killed goes on where it was: trainings from their newest checkpoint, to the same bits
on a CPU, and jobs that are done are not done again.
"""

import dataclasses
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnlab import files
from attnlab.data.batches import Batch
from attnlab.studies.progress import Progress
from attnlab.training import launch, runs
from attnlab.training.parallel import World, place_of
from attnlab.training.recipe import Recipe
from attnlab.training.report import duration
from attnlab.training.step import Stepper


class Interrupted(Exception):
    """A signal has stopped a training; everything is saved."""

    def __init__(self, signal: str) -> None:
        super().__init__(f"stopped by {signal}")
        self.signal = signal


@dataclass(frozen=True)
class Job:
    """One part of a study."""

    name: str
    work: Callable[[], Any]  # gives something that JSON can hold
    seconds: Callable[[], float] = lambda: 1.0  # about how long; asked while it is not done


@dataclass
class Desk:
    folder: Path
    progress: Progress
    kind: str = "study"

    def do(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """What each job gave, by name; says first how long it will take."""
        names = [job.name for job in jobs]
        assert len({slug(name) for name in names}) == len(names), "two jobs share a name"
        waiting = {job.name: job.seconds() for job in jobs if not self._kept(job.name).exists()}
        self.progress.note(f"{self.kind} in {self.folder}")
        if not waiting:
            self.progress.note("all of it is done already")
        else:
            expected = duration(sum(waiting.values()))
            self.progress.note(f"to do: {len(waiting)} of {len(jobs)} parts, about {expected}")
        with self.progress.working(waiting):
            for job in jobs:
                if job.name in waiting:
                    self._do(job)
        return {job.name: self.result(job.name) for job in jobs}

    def result(self, name: str) -> Any:
        """What a job that is done gave."""
        return files.read_json(self._kept(name))["result"]

    def _do(self, job: Job) -> None:
        began = time.monotonic()
        self.progress.begun(job.name)
        result = job.work()
        seconds = time.monotonic() - began
        content = files.as_json({"name": job.name, "seconds": seconds, "result": result})
        files.write_whole(self._kept(job.name), content)
        self.progress.finished(job.name, seconds)

    def seconds(self) -> float:
        """Spent on all parts that are done, in whatever processes."""
        found = sorted((self.folder / "parts").glob("*.json"))
        return float(sum(files.read_json(path)["seconds"] for path in found))

    def train(self, name: str, recipe: Recipe) -> runs.Run:
        """A training of this study; the one that was stopped goes on."""
        run = runs.Run(self.folder / "runs" / slug(name))
        if not run.finished:
            result = launch.train_in(run, recipe, report=self.progress.training())
            if result.ending.startswith("SIG"):
                raise Interrupted(result.ending)
        return run

    def run(self, name: str) -> runs.Run:
        """The folder of a training, finished or not."""
        return runs.Run(self.folder / "runs" / slug(name))

    def _kept(self, name: str) -> Path:
        return self.folder / "parts" / f"{slug(name)}.json"


def open_desk(
    root: Path, name: str, identity: str, progress: Progress, again: bool, kind: str = "study"
) -> Desk:
    """The newest folder of a study with this identity; with `again`, a new one beside it."""
    stem = "-".join(part for part in (kind, name, identity) if part)
    numbered = [root / f"{stem}{end}" for end in ("", *(f"-{n}" for n in MORE))]
    there = [folder for folder in numbered if folder.exists()]
    folder = there[-1] if there and not again else numbered[len(there)]
    try:
        for inside in ("parts", "runs"):
            (folder / inside).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"no {kind} can be made in {root}: {reason}; use --runs FOLDER") from None
    return Desk(folder, progress, kind)


MORE = range(2, 1000)


def slug(name: str) -> str:
    """A name as a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def training_seconds(recipe: Recipe) -> float:
    """About how long a training takes here: on a CPU by taking a few steps of it.

    A GPU's steps would first have to be compiled, so they are guessed: COMPILING and CAPTURED.
    """
    device = place_of(recipe.device)
    if device.type == "cuda":
        return (COMPILING if recipe.compile else 0) + recipe.steps * CAPTURED
    alike = dataclasses.replace(recipe, steps=1, seed=0, start=None, evaluate_every=None)
    return recipe.steps * _step_seconds(alike)


COMPILING, CAPTURED = 10.0, 0.004  # seconds, on one H200


@cache
def _step_seconds(recipe: Recipe) -> float:
    world = World(rank=0, size=1, device=torch.device("cpu"))
    with torch.random.fork_rng(devices=[]):
        model = recipe.model.build()
        tokens = torch.randint(recipe.model.vocabulary, (recipe.batch, recipe.length))
        stepper = Stepper(model, recipe.optimiser.build(model), recipe, world)
        return stepper.rehearse([Batch(tokens, tokens)])[1]
