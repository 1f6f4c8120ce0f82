"""A sweep on a Ray cluster: `attnlab audit hf:all --on ray`.

A process of Ray has a worker as on one machine (`audit/sweep.py`), which limits time and memory and
gives the same rows, and keeps it for its next target. A target whose machine is lost is audited
again on another. Rows come back as messages; only a person's code must be on all machines.
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnlab import files
from attnlab.audit.answer import ended
from attnlab.audit.errors import InputError
from attnlab.audit.rows import Row
from attnlab.audit.sandbox import Limits, Request
from attnlab.audit.sweep import START, Crew, Job, Workers
from attnlab.cluster import RETRIES, Cluster, Lost, Session

MOST = 2**30  # bytes of code


@contextmanager
def crew_on(cluster: Cluster, limits: Limits, jobs: Sequence[Job]) -> Iterator[Crew]:
    """Who audits these jobs, on this cluster."""
    named = [job.request.device for job in jobs if ":" in job.request.device]
    if named:
        raise InputError(f"--device {named[0]} is of this machine; on a cluster write cuda")
    if not jobs:
        yield Workers(1, limits, START)  # which start with their first job
        return
    with cluster.connected() as session:
        session.require("CPU")
        if any(job.request.device == "cuda" for job in jobs):
            session.require("GPU")
        session.refuse_other_versions()
        _refuse_other_code(session, jobs)
        crew = _RayCrew(session, limits, len(jobs))
        try:
            yield crew
        finally:
            crew.end()


class _RayCrew:
    def __init__(self, session: Session, limits: Limits, most: int) -> None:
        self._calls, self.most = session.calls(audited), most
        self._limits = limits

    @property
    def jobs(self) -> int:
        return self._calls.under_way

    def take(self, job: Job) -> None:
        place = {"folder": str(Path.cwd()), "path": [one or str(Path.cwd()) for one in sys.path]}
        gpus = int(job.request.device == "cuda")
        self._calls.give(job, job.request.plain(), vars(self._limits), place, gpus=gpus)

    def answers(self) -> Iterator[tuple[Job, Row]]:
        for job, answer in self._calls.ended():
            yield job, _lost(job, answer) if isinstance(answer, Lost) else answer

    def end(self) -> None:
        self._calls.cancel()


def _lost(job: Job, why: Lost) -> Row:
    target = job.request.target
    reason = f"its worker was lost, in {RETRIES + 1} tries at most: {why}"
    return {**ended(target, None, reason, reason).plain(), "target": target, "seconds": 0.0}


def _refuse_other_code(session: Session, jobs: Sequence[Job]) -> None:
    """A person's files must be there, under the same path, as they are here."""
    here = {path: seen for job in jobs if (path := _path_of(job)) and (seen := seen_at(path))}
    for name, there in session.ask_all(all_seen, list(here)).items() if here else ():
        for path, seen in here.items():
            if there[path] != seen:
                what = "another" if there[path] else "no"
                raise InputError(
                    f"{name} has {what} {path}; put the code on a filesystem that all machines of "
                    "the cluster share"
                )


def _path_of(job: Job) -> str:
    named = job.request.target
    named = named.removeprefix("hf:") if named.startswith("hf:") else named.rpartition(":")[0]
    return str(Path(named.rstrip(":")).absolute()) if named else ""


def all_seen(paths: Sequence[str]) -> dict[str, str]:
    return {path: seen_at(path) for path in paths}


def seen_at(path: str) -> str:
    """The hash of a file, "folder" for a folder; empty where there is nothing."""
    with suppress(OSError, ValueError):
        if Path(path).is_dir():
            return "folder"
        return hashlib.sha256(files.read_named(Path(path), MOST)).hexdigest()
    return ""


_kept: tuple[Any, Workers] | None = None  # of this process of Ray, for its next target


def audited(request: dict[str, Any], limits: dict[str, float], place: dict[str, Any]) -> Row:
    """The row of a target; in a process of Ray."""
    global _kept
    if _kept is None or _kept[0] != (limits, place):
        if _kept is not None:
            _kept[1].end()
        with suppress(OSError):  # of a folder that only this machine has, models have no need
            os.chdir(place["folder"])
        sys.path += [one for one in place["path"] if one not in sys.path]
        _kept = (limits, place), Workers(1, Limits(**limits), START)
    workers = _kept[1]
    workers.take(Job(request=Request.of(request)))
    while True:
        for _, row in workers.answers():
            return row
