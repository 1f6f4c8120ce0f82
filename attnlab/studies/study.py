"""What every study has in common: settings, jobs to do, and findings to report.

A study is a frozen dataclass of settings. `jobs` is its plan, each job done once and kept;
`findings` turns what the jobs gave into numbers and sentences, and computes nothing long.
"""

import hashlib
import json
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from attnlab import __version__, config, files
from attnlab.kernels.hardware import machine
from attnlab.reports import plots
from attnlab.reports.report import Report, Section
from attnlab.reports.write import write
from attnlab.studies.desk import Desk, Job, open_desk
from attnlab.studies.progress import Progress
from attnlab.training import runs


@dataclass(frozen=True)
class Findings:
    title: str
    question: str  # in one sentence
    answer: str  # in one or two
    sections: Sequence[Section]
    summary: dict[str, Any]  # the numbers behind it, for results.json and --json


class Study(ABC):
    kind: ClassVar[str] = "study"  # what its folder's name begins with

    def settings(self) -> dict[str, Any]:
        """What decides the results, for the folder's identity and the report."""
        return config.to_dict(self)

    @abstractmethod
    def text(self) -> str:
        """A fingerprint of the text it reads; what is wrong with text or settings is found here."""

    @abstractmethod
    def jobs(self, desk: Desk) -> list[Job]: ...

    @abstractmethod
    def findings(self, results: dict[str, Any]) -> Findings: ...


@dataclass(frozen=True)
class Outcome:
    folder: Path
    report: Report
    results: dict[str, Any]


def carry_out(
    name: str, study: Study, *, root: Path, progress: Progress, again: bool = False
) -> Outcome:
    """Do what is not done yet, and write the report."""
    plots.require()
    settings = study.settings()
    here = machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    made_from = json.dumps([settings, study.text(), here["device"], __version__], sort_keys=True)
    identity = hashlib.sha256(made_from.encode()).hexdigest()[:6]
    desk = open_desk(root, name, identity, progress, again, kind=study.kind)
    named = {study.kind: name or identity}
    with runs.Run(desk.folder).locked():
        files.write_whole(desk.folder / "settings.json", files.as_json({**named, **settings}))
        parts = desk.do(study.jobs(desk))
        found = study.findings(parts)
        report = Report(
            title=found.title,
            question=found.question,
            answer=found.answer,
            sections=found.sections,
            settings=settings,
            versions=here,
            command=shlex.join(["attnlab", *sys.argv[1:]]),
            seconds=desk.seconds(),
        )
        results = {
            **named,
            "settings": settings,
            "versions": here,
            "seconds": desk.seconds(),
            "answer": found.answer,
            **found.summary,
        }
        write(report, results, desk.folder)
    return Outcome(desk.folder, report, results)
