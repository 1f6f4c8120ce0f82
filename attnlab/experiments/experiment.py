"""The interface of an experiment: settings, jobs to run, and findings to report.

An experiment is a dataclass of settings: a study, or a comparison. `jobs` is its plan; each job
runs once and its result is cached. `findings` turns the results into numbers and sentences, and
computes nothing long, so a finished experiment writes its report anew within seconds.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from attnlab import __version__, config, files, json_files
from attnlab.command import line as command_line
from attnlab.experiments.pool import Pool
from attnlab.experiments.progress import Progress
from attnlab.experiments.reuse import settings_of
from attnlab.experiments.workspace import Job, Workspace, open_workspace
from attnlab.kernels.hardware import machine
from attnlab.reports import plots
from attnlab.reports.report import Report, Section
from attnlab.reports.write import write
from attnlab.training import runs

NOT_SEARCHED = "Learning rates were not searched: every model trains with that of its recipe."


@dataclass(frozen=True)
class Findings:
    """What an experiment says: the answer to its question, and what supports it."""

    title: str
    question: str  # in one sentence
    answer: str  # in one or two
    sections: Sequence[Section]
    summary: dict[str, Any]  # the numbers behind it, for results.json and --json
    rates: str = NOT_SEARCHED  # whether learning rates were searched


class Experiment(ABC):
    kind: ClassVar[str] = "study"  # the first word of its folder's name

    def settings(self) -> dict[str, Any]:
        """What decides the results, for the folder's identity and the report."""
        return config.to_dict(self)

    @abstractmethod
    def text(self) -> str:
        """A fingerprint of its text; refuses a wrong text or wrong settings."""

    @abstractmethod
    def jobs(self, workspace: Workspace) -> list[Job]: ...

    @abstractmethod
    def findings(self, results: dict[str, Any]) -> Findings: ...


@dataclass(frozen=True)
class Record:
    """What a finished experiment leaves behind."""

    folder: Path
    report: Report
    results: dict[str, Any]
    lacking: str = ""  # why it is not whole; the same command tries again


def carry_out(
    name: str,
    experiment: Experiment,
    *,
    root: Path,
    progress: Progress,
    again: bool = False,
    command: Sequence[str] = (),
    pool: Pool | None = None,
) -> Record:
    """Run the jobs that are missing, and write the report.

    The report says which command makes it again: `command` in this folder of runs, else that of
    this process. A pool trains what jobs say they are going to train; without one each job does.
    """
    elsewhere = ["--runs", str(root)] if command and root != Path("runs") else []
    if not plots.available():
        progress.note(f"tables are written, and no figures: {plots.MISSING}")
    kind, settings = experiment.kind, experiment.settings()
    identity, here = identity_of(experiment)
    workspace = open_workspace(root, name, identity, progress, again, kind=kind, pool=pool)
    named = {kind: name or identity}
    with runs.Run(workspace.folder).locked():
        content = json_files.as_json({**named, **settings})
        files.write_whole(workspace.folder / "settings.json", content)
        found = experiment.findings(workspace.run_jobs(experiment.jobs(workspace)))
        seconds, damaged = workspace.seconds(), _damaged_logs(workspace.folder)
        for line in damaged:
            progress.note(line)
        report = Report(
            title=found.title,
            question=found.question,
            answer=found.answer,
            sections=[*found.sections, *_damage(damaged)],
            settings=settings,
            versions=here,
            command=command_line([*command, *elsewhere]),
            seconds=seconds,
            rates=found.rates,
            runs=_runs_in(workspace.folder),
        )
        results = {
            **named,
            "settings": settings,
            "versions": here,
            "seconds": seconds,
            "answer": found.answer,
            **({"damaged": damaged} if damaged else {}),
            **found.summary,
        }
        write(report, results, workspace.folder)
    return Record(workspace.folder, report, results, workspace.lacking)


def identity_of(experiment: Experiment) -> tuple[str, dict[str, Any]]:
    """The end of its folder's name, and this machine, which is a part of it."""
    here = machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    made_from = json.dumps(
        [experiment.settings(), experiment.text(), here["device"], __version__], sort_keys=True
    )
    return hashlib.sha256(made_from.encode()).hexdigest()[:6], here


def _damaged_logs(folder: Path) -> list[str]:
    """A line for each log of a training that is not whole, from the folder of the experiment."""
    found = []
    for name in _runs_in(folder):
        run = runs.Run(folder / name)
        found += run.complaints() or _lost_evaluations(run)
    return [line.removeprefix(f"{folder}/") for line in found]


def _lost_evaluations(run: runs.Run) -> list[str]:
    """A line for each log of a finished training that lacks evaluations; no line of it is damaged.

    An experiment never changes the settings of a training that has begun, so it is known at which
    steps it was evaluated.
    """
    settings = settings_of(run)
    if settings is None or not run.finished or run.result()["best_loss"] is None:
        return []
    last, every = run.result()["step"], settings.get("evaluate_every")
    due = {last, *(range(every, last + 1, every) if every else ())}
    said = []
    for log in ("eval", "held"):
        missing = due - {row["step"] for row in run.read(log)}
        if missing and run.log(log).exists():
            said.append(f"{run.log(log)}: {len(missing)} of {len(due)} evaluations are missing")
    return said


def _damage(damaged: Sequence[str]) -> list[Section]:
    """What a reader must know: curves and training losses are made of the logs."""
    if not damaged:
        return []
    said = f"Curves and training losses lack what is not in the logs: {'; '.join(damaged)}."
    return [Section(heading="Damaged logs", text=said)]


def _runs_in(folder: Path) -> list[str]:
    """The run folders of an experiment, from its own folder."""
    return [f"runs/{path.parent.name}" for path in sorted(folder.glob("runs/*/config.json"))]
