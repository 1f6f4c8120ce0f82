"""The working directory of an experiment: each job runs once, its result is cached.

    runs/study-<name>-<id>/     or runs/compare-<id>/, runs/claims-<name>-<id>/
      settings.json     parts/<job>.json     the result of each job, with its hash
      jobs.json         the names of all jobs, from which others see how far it is
      runs/<training>/  run folders          report.html, report.md, pictures/, results.json

The id is a hash of settings, text, device and version: the same command finds its folder. An
experiment that was stopped or killed resumes: finished jobs are not repeated, and a training
continues from its newest checkpoint, to the same bits on a CPU. A damaged result is said and
computed again.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnlab import files, json_files
from attnlab.experiments import reuse
from attnlab.experiments.pool import Endings, Interrupted, Pool, Task
from attnlab.experiments.progress import Progress
from attnlab.training import launch, runs
from attnlab.training.recipe import Recipe
from attnlab.training.report import duration

JOBS = "jobs.json"
# what is kept of a job
PART = {"name": str, "seconds": float, "result": object, "whole": bool}


@dataclass(frozen=True)
class Job:
    """One part of an experiment."""

    name: str
    work: Callable[[], Any]  # returns what JSON can hold
    seconds: Callable[[], float] = lambda: 1.0  # an estimate; called only if the job has to run
    # whether its result comes out another each time: when it runs, all jobs after it run again,
    # since they are made of it
    renews: bool = False
    # trainings that it makes, by name, as far as they are known by now
    trainings: Callable[[], Sequence[tuple[str, Recipe]]] = tuple


@dataclass
class Workspace:
    folder: Path
    progress: Progress
    kind: str = "study"
    pool: Pool | None = None  # trains what jobs are going to train; None: each job does
    ahead: dict[str, float] = field(default_factory=dict)  # seconds spent on jobs before they ran
    lacking: str = ""  # why results are not whole; this job and those after it run again next time

    def run_jobs(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """The result of each job by name; says first how long the missing ones will take."""
        names = [job.name for job in jobs]
        assert len({slug(name) for name in names}) == len(names), "two jobs share a name"
        files.write_whole(self.folder / JOBS, json_files.as_json([slug(name) for name in names]))
        missing = self._missing(jobs)
        self.progress.note(f"{self.kind} in {self.folder}")
        if not missing:
            self.progress.note("all of it is done already")
        else:
            expected = duration(sum(missing.values()))
            self.progress.note(f"to do: {len(missing)} of {len(jobs)} parts, about {expected}")
        with self.progress.working(missing):
            todo = [job for job in jobs if job.name in missing]
            for number, job in enumerate(todo):
                if self.pool is not None and job.trainings():
                    self.ahead |= self._train_ahead(todo[number:], self.pool)
                self._run(job)
        return {job.name: self.result(job.name) for job in jobs}

    def _missing(self, jobs: Sequence[Job]) -> dict[str, float]:
        """Jobs to run, with their seconds; results that a job renews are set aside before it."""
        missing, renewing = dict[str, float](), ""
        for job in jobs:
            there = self.has(job.name)
            if there and renewing:
                path = self._file(job.name)
                path.replace(path.with_suffix(".json.old"))
                self.progress.note(f"{renewing} is lost, and {job.name} was made of it: done again")
            if renewing or not there:
                missing[job.name] = job.seconds()
                renewing = renewing or (job.name if job.renews else "")
        return missing

    def result(self, name: str) -> Any:
        """The cached result of a job."""
        return json_files.read_sealed(self._file(name))["result"]

    def _train_ahead(self, jobs: Sequence[Job], pool: Pool) -> dict[str, float]:
        """Train all that these jobs are going to train, as far as it is known, in a pool.

        What starts from another training waits for it. Returns seconds by job: an equal part each.
        """
        start, trained = time.monotonic(), set[str]()
        recipes = {name: (job.name, made) for job in jobs for name, made in job.trainings()}
        waiting = dict[str, Task]()
        for name, (_, recipe) in recipes.items():
            run = self.run_of(name)
            reuse.set_aside_other(run, recipe, note=self.progress.note)
            if not reuse.is_done(run, self.progress.note):
                waiting[name] = Task(name, run.folder, recipe, held=False)
        with pool.lasting() if waiting else nullcontext():
            while waiting:
                ready = [one for one in waiting.values() if not _waits_for(one, waiting.values())]
                assert ready, "trainings start from each other"
                for name, ending in self.train_all(ready, pool).items():
                    if ending["ending"] != "finished":
                        why = f"{name} {ending['ending']}: {ending['why']}"
                        raise ValueError(f"{why}; {self.folder / 'log.txt'} says more")
                    trained.add(recipes[name][0])
                    del waiting[name]
        return dict.fromkeys(trained, (time.monotonic() - start) / max(len(trained), 1))

    def _run(self, job: Job) -> None:
        start = time.monotonic() - self.ahead.get(job.name, 0.0)
        self.progress.started(job.name)
        result = job.work()
        seconds = time.monotonic() - start
        kept = {"name": job.name, "seconds": seconds, "result": result, "whole": not self.lacking}
        files.write_whole(self._file(job.name), json_files.sealed_json(kept))
        self.progress.finished(job.name, seconds)

    def seconds(self) -> float:
        """Spent on all finished jobs, in whatever processes."""
        found = map(self._kept, sorted((self.folder / "parts").glob("*.json")))
        return float(sum(kept["seconds"] for kept in found if kept is not None))

    def train(self, name: str, recipe: Recipe) -> runs.Run:
        """Train in this process with all of its threads, or resume.

        Studies train here unless they are given a pool, which gives every training one thread:
        that adds in another order, and losses change (in the eighth digit after 40 steps, and
        more later).
        """
        run = self.run_of(name)
        reuse.set_aside_other(run, recipe, note=self.progress.note)
        if not reuse.is_done(run, self.progress.note):
            result = launch.train_in(run, recipe, report=self.progress.training())
            if result.ending.startswith("SIG"):
                raise Interrupted(result.ending)
        return run

    def train_all(self, tasks: Sequence[Task], pool: Pool) -> Endings:
        """Train in the workers of a pool, or resume; a training that fails stops no other."""
        total = sum(task.recipe.steps for task in tasks)
        with self.progress.counting("trainings", total) as watch:
            endings = pool.train(tasks, self.folder / "log.txt", watch)
        failed = sum(one["ending"] == "failed" for one in endings.values())
        if failed:  # which may be our error, and is no result
            log = self.folder / "log.txt"
            self.lacking = f"{failed} of {len(tasks)} trainings failed: {log} says why"
        return endings

    def run_of(self, name: str) -> runs.Run:
        """The run folder of a training, finished or not."""
        return runs.Run(self.folder / "runs" / slug(name))

    def has(self, name: str) -> bool:
        """Whether the result of a job is cached, and whole."""
        kept = self._kept(self._file(name))
        return kept is not None and kept["name"] == name and kept["whole"]

    def _kept(self, path: Path) -> dict[str, Any] | None:
        """What is cached of a job; None where that is nothing, or damaged."""
        try:
            kept: dict[str, Any] = json_files.in_shape(json_files.read_sealed(path), PART, path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self.progress.note(f"{reason or error}; computing it again")
            return None
        return kept

    def _file(self, name: str) -> Path:
        return self.folder / "parts" / f"{slug(name)}.json"


def open_workspace(
    root: Path,
    name: str,
    identity: str,
    progress: Progress,
    again: bool,
    kind: str = "study",
    pool: Pool | None = None,
) -> Workspace:
    """The folder of an experiment, made if it is not there yet."""
    folder = place(root, name, identity, kind, again)
    try:
        for inside in ("parts", "runs"):
            files.make_folder(folder / inside)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"no {kind} can be made in {root}: {reason}; use --runs FOLDER") from None
    return Workspace(folder, progress, kind, pool)


def _waits_for(task: Task, others: Iterable[Task]) -> bool:
    """Whether a training starts from the weights of another one."""
    start = Path(task.recipe.start or "").absolute()
    return any(start.is_relative_to(other.folder.absolute()) for other in others)


def place(root: Path, name: str, identity: str, kind: str, again: bool) -> Path:
    """The newest folder with this identity; with `again`, a new one beside it."""
    stem = "-".join(part for part in (kind, name, identity) if part)
    numbered = [root / f"{stem}{end}" for end in ("", *(f"-{n}" for n in MORE))]
    there = [folder for folder in numbered if folder.exists()]
    return there[-1] if there and not again else numbered[len(there)]


MORE = range(2, 1000)


def slug(name: str) -> str:
    """A name as a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
