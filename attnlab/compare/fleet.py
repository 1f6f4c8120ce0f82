"""Trainings in local processes, as many as the machine has cores; on a GPU one after another.

On a CPU each has one thread, so that no result depends on how many there are. A process serves many
trainings, since loading PyTorch takes seconds. One that is lost is replaced, and what it trained
goes on from its checkpoints; what fails again is given up, and the rest goes on.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from attnlab.compare.work import Task
from attnlab.studies.desk import Interrupted
from attnlab.training.parallel import place_of
from attnlab.training.runs import Run
from attnlab.training.signals import stopping

Outcomes = dict[str, dict[str, Any]]  # by the task's name: "ending" and "why"
Watch = Callable[[int, str], None]  # told of steps done, and in words
TRIES = 2
GRACE = 60.0  # seconds to save and end in
LOOKING = 0.5  # seconds between looks at how far all are


class Fleet:
    """What carries out trainings: processes of this machine."""

    def __init__(self, processes: int | None = None) -> None:
        self._processes = processes

    def side_by_side(self, tasks: int) -> int:
        """How many trainings run at a time."""
        if place_of("auto").type == "cuda":
            return 1
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return max(min(self._processes or cores or 1, tasks), 1)

    def train(self, tasks: Sequence[Task], log: Path, watch: Watch) -> Outcomes:
        """All of them; Interrupted when a signal comes, with everything saved."""
        waiting: queue.Queue[Task] = queue.Queue()
        for task in tasks:
            waiting.put(task)
        outcomes: Outcomes = {}
        workers = [Worker(log) for _ in range(self.side_by_side(len(tasks)))]
        threads = [
            threading.Thread(target=_serve, args=(worker, waiting, outcomes), daemon=True)
            for worker in workers
        ]
        try:
            with stopping() as stop:
                for thread in threads:
                    thread.start()
                _look_on(tasks, outcomes, threads, watch, lambda: bool(stop.asked))
                if stop.asked:
                    for worker in workers:
                        worker.ask_to_stop()
                    for thread in threads:
                        thread.join(GRACE)
                    raise Interrupted(signal.Signals(stop.asked).name)
        finally:
            for worker in workers:
                worker.end()
        return outcomes


def _look_on(
    tasks: Sequence[Task],
    outcomes: Outcomes,
    threads: Sequence[threading.Thread],
    watch: Watch,
    asked: Callable[[], bool],
) -> None:
    looked = 0.0
    while any(thread.is_alive() for thread in threads) and not asked():
        if time.monotonic() - looked > LOOKING:
            looked = time.monotonic()
            watch(steps_taken(tasks), f"{len(outcomes)} of {len(tasks)} trainings done")
        time.sleep(0.05)


def steps_taken(tasks: Sequence[Task]) -> int:
    """By the lines in the logs, which all machines can see."""
    logs = [Run(task.folder).log("metrics") for task in tasks]
    return sum(log.read_bytes().count(b"\n") for log in logs if log.exists())


def _serve(worker: "Worker", waiting: "queue.Queue[Task]", outcomes: Outcomes) -> None:
    while not worker.stopped:
        try:
            task = waiting.get_nowait()
        except queue.Empty:
            return
        found = None
        for _ in range(TRIES):
            found = worker.do(task)
            if found is not None or worker.stopped:
                break
        if not worker.stopped:
            outcomes[task.name] = found or {"ending": "failed", "why": worker.last_words()}


def _close(*pipes: IO[bytes] | None) -> None:
    for pipe in pipes:
        if pipe is not None:
            with suppress(OSError):  # what was not sent yet has nobody to go to
                pipe.close()


class Worker:
    """A process that trains, started when there is something to do."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.stopped = False
        self.process: subprocess.Popen[bytes] | None = None

    def do(self, task: Task) -> dict[str, Any] | None:
        """How the training ended; None if the process did not live to tell."""
        if self.process is None or self.process.poll() is not None:
            self._start()
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        if self.stopped:
            return None
        try:
            process.stdin.write(json.dumps(task.plain()).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            process.wait()
            _close(process.stdin, process.stdout)
            return None
        found = dict(json.loads(line))
        return None if found["ending"].startswith("SIG") else found  # not by us: it goes on

    def ask_to_stop(self) -> None:
        """It saves and ends; nothing new is begun."""
        self.stopped = True
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def end(self) -> None:
        self.stopped = True
        if self.process is None:
            return
        _close(self.process.stdin)  # it has nothing more to do
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _close(self.process.stdout)

    def last_words(self) -> str:
        code = self.process.returncode if self.process is not None else None
        how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        return f"its process ended by {how}, {TRIES} times"

    def _start(self) -> None:
        # one thread each; and a terminal's Ctrl-C goes to us alone, who then ask them to stop
        one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "attnlab.compare.work"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **one},
                start_new_session=True,
            )
