"""Trainings in worker processes of this machine: one a core, on a GPU one, or as many as asked for.

On a CPU each has one thread, so no result depends on how many run. A worker runs many trainings,
since loading PyTorch takes seconds. A lost worker is replaced and its training resumes from its
checkpoints; a training that fails again is given up, and the others continue.
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
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO

from attnlab import files
from attnlab.experiments import pool
from attnlab.experiments.pool import Ending, Endings, Interrupted, Task, Watch, steps_taken
from attnlab.stop import stopping
from attnlab.training.parallel import torch_device

TRIES = 2


class LocalPool:
    """Worker processes of this machine."""

    def __init__(self, processes: int | None = None) -> None:
        self._processes = processes

    def concurrency(self, tasks: int) -> int:
        if torch_device("auto").type == "cuda":
            return max(min(self._processes or 1, tasks), 1)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return max(min(self._processes or cores or 1, tasks), 1)

    def lasting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def train(self, tasks: Sequence[Task], log: Path, watch: Watch) -> Endings:
        waiting: queue.Queue[Task] = queue.Queue()
        for task in tasks:
            waiting.put(task)
        endings: Endings = {}
        workers = [WorkerProcess(log) for _ in range(self.concurrency(len(tasks)))]
        threads = [
            threading.Thread(target=_serve, args=(worker, waiting, endings), daemon=True)
            for worker in workers
        ]
        try:
            with stopping() as stop:
                for thread in threads:
                    thread.start()
                _watch(tasks, endings, threads, watch, lambda: bool(stop.signal))
                if stop.signal:
                    for worker in workers:
                        worker.terminate()
                    for thread in threads:
                        thread.join(pool.GRACE)
                    raise Interrupted(signal.Signals(stop.signal).name)
        finally:
            for worker in workers:
                worker.close()
        return endings


def _watch(
    tasks: Sequence[Task],
    endings: Endings,
    threads: Sequence[threading.Thread],
    watch: Watch,
    stopped: Callable[[], bool],
) -> None:
    last = 0.0
    while any(thread.is_alive() for thread in threads) and not stopped():
        if time.monotonic() - last > pool.POLL:
            last = time.monotonic()
            watch(steps_taken(tasks), f"{len(endings)} of {len(tasks)} trainings done")
        time.sleep(0.05)


def _serve(worker: "WorkerProcess", waiting: "queue.Queue[Task]", endings: Endings) -> None:
    while not worker.stopped:
        try:
            task = waiting.get_nowait()
        except queue.Empty:
            return
        ending = None
        for _ in range(TRIES):
            ending = worker.run(task)
            if ending is not None or worker.stopped:
                break
        if not worker.stopped:
            endings[task.name] = ending or {"ending": "failed", "why": worker.exit_reason()}


def _close(*pipes: IO[bytes] | None) -> None:
    for pipe in pipes:
        if pipe is not None:
            with suppress(OSError):  # unsent bytes have no reader any more
                pipe.close()


class WorkerProcess:
    """A process that trains, started with its first task."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.stopped = False
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, task: Task) -> Ending | None:
        """How the training ended; None if the process exited before it answered."""
        if self.process is None or self.process.poll() is not None:
            self._start()
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        if self.stopped:
            return None
        try:
            process.stdin.write(json.dumps(task.message()).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            process.wait()
            _close(process.stdin, process.stdout)
            return None
        ending: Ending = json.loads(line)
        return None if ending["ending"].startswith("SIG") else ending  # not by us: it resumes

    def terminate(self) -> None:
        """The process saves and exits; no new task starts."""
        self.stopped = True
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def close(self) -> None:
        self.stopped = True
        if self.process is None:
            return
        _close(self.process.stdin)  # a worker exits when its stdin closes
        try:
            self.process.wait(pool.GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _close(self.process.stdout)

    def exit_reason(self) -> str:
        code = self.process.returncode if self.process is not None else None
        how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        return f"its process ended by {how}, {TRIES} times"

    def _start(self) -> None:
        # one thread each; and Ctrl-C in a terminal reaches this process alone, which stops them
        one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with files.open_log(self.log) as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "attnlab.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **one},
                start_new_session=True,
            )
