"""Trainings on a Ray cluster: `attnlab compare … --on ray`, `attnlab study … --on ray`.

A training has one CPU, and a GPU or a part of one where this machine has one. When its worker or
its machine is lost, another resumes it from the checkpoints; so the folder of runs must be on a
filesystem that all machines of the cluster share.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attnlab import files
from attnlab.cluster import RETRIES, Calls, Cluster, Lost, Session
from attnlab.experiments import pool, worker
from attnlab.experiments.pool import Ending, Endings, Interrupted, Task, Watch, steps_taken
from attnlab.stop import stopping
from attnlab.training.parallel import torch_device


class RayPool:
    """Trainings on a Ray cluster; `processes` at a time, and on a cluster with GPUs on each."""

    def __init__(self, cluster: Cluster, processes: int | None = None) -> None:
        self.cluster, self.processes = cluster, processes

    def concurrency(self, tasks: int) -> int:
        """A guess: the cluster is not connected yet."""
        return max(min(self.processes or os.cpu_count() or 1, tasks), 1)

    @contextmanager
    def lasting(self) -> Iterator[None]:
        with self.cluster.connected(processors=self.processes):
            yield

    def train(self, tasks: Sequence[Task], log: Path, watch: Watch) -> Endings:
        with (
            files.open_log(log) as file,
            self.cluster.connected(processors=self.processes, log=file) as session,
        ):
            gpus = _share_of_gpu(session, tasks, self.processes)
            session.require("CPU")
            session.refuse_other_versions()
            session.refuse_unshared(log.parent, "--runs")
            calls = session.calls(worker.train, gpus=gpus)
            at_once = self.processes if self.processes and not gpus else len(tasks)
            return _train(calls, tasks, at_once, watch)


def _share_of_gpu(session: Session, tasks: Sequence[Task], processes: int | None) -> float:
    """What a training has of one; 0 if they train on the CPU, as they would on this machine."""
    kinds = {torch_device(task.recipe.device).type for task in tasks}
    if "cuda" in kinds:
        session.require("GPU")
        return 1 / (processes or 1)
    if session.total("GPU") and any(task.recipe.device == "auto" for task in tasks):
        raise ValueError(
            "the Ray cluster has GPUs and this machine has none, so that times here would be of "
            "another device; start the command where there is one, or train with device=cpu"
        )
    return 0.0


def _train(calls: Calls, tasks: Sequence[Task], at_once: int, watch: Watch) -> Endings:
    endings: Endings = {}
    waiting, tries = list(tasks)[::-1], dict.fromkeys((task.name for task in tasks), 0)
    with stopping() as stop:
        while (waiting or calls.under_way) and not stop.signal:
            while waiting and calls.under_way < at_once:
                task = waiting.pop()
                calls.give(task, task.message())
            for task, answer in calls.ended(pool.POLL):
                ending = _ending(answer)
                tries[task.name] += 1
                # a machine that is taken away warns its processes: the training is saved
                if ending["ending"].startswith("SIG") and tries[task.name] <= RETRIES:
                    waiting.append(task)
                else:
                    endings[task.name] = ending
            watch(steps_taken(tasks), f"{len(endings)} of {len(tasks)} trainings done")
        if stop.signal:
            calls.cancel(pool.GRACE)
            raise Interrupted(signal.Signals(stop.signal).name)
    return endings


def _ending(answer: Ending | Lost) -> Ending:
    if isinstance(answer, Lost):
        return {"ending": "failed", "why": str(answer)}
    return answer
