"""The sweep over architectures: each gets its row, whatever it does.

    names -> rows {target, verdict, checks, seconds} or {target, verdict: "not built", detail}

A row's verdict is that of its certificate; without one "incomplete" if the process was lost, and
"error" if attnlab itself failed.

Workers are processes of their own, so that one which crashes or hangs costs its row and no more.
"""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

from attnlab.audit.contract import EXIT_CODES
from attnlab.audit.errors import InputError, SubjectError

WORKERS = 2
SECONDS = 30.0  # that one architecture may take
START = 60.0  # and the first of a worker more, to import everything


def sweep(
    architectures: Iterable[str],
    tick: Callable[[str], None] = lambda text: None,
    *,
    workers: int = WORKERS,
    seconds: float = SECONDS,
    start: float = START,
) -> list[dict[str, Any]]:
    """One row for each architecture, in the order they are named."""
    names = list(dict.fromkeys(architectures))
    rows: dict[str, dict[str, Any]] = {}
    waiting = names[::-1]
    busy: dict[Connection, _Worker] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                worker = _Worker(waiting.pop(), start)
                busy[worker.here] = worker
            for answered in wait(list(busy), timeout=0.2):
                assert isinstance(answered, Connection)
                worker = busy[answered]
                rows[worker.name] = worker.answer()
                tick(f"{len(rows)} of {len(names)}: {worker.name}")
                if waiting and worker.alive:
                    worker.take(waiting.pop())
                else:
                    busy.pop(answered).end()
            for worker in [one for one in busy.values() if one.age > seconds]:
                rows[worker.name] = _lost(worker.name, f"took more than {seconds:g} s", worker.age)
                busy.pop(worker.here).end()
    finally:
        for worker in busy.values():
            worker.end()
    return [rows[name] for name in names]


def row(name: str) -> dict[str, Any]:
    """The audit of one architecture, in this process."""
    from attnlab.audit.hf.models import audit_hf

    start = time.monotonic()
    try:
        found = audit_hf(name).plain()
    except (InputError, SubjectError) as error:  # of the library's, or of the architecture's
        found = {"target": name, "verdict": "not built", "detail": _line(error)}
    except Exception as error:  # of ours: said in its row, and by the exit code
        found = {"target": name, "verdict": "error", "detail": _line(error)}
        found["traceback"] = traceback.format_exc()
    return {**found, "seconds": round(time.monotonic() - start, 2)}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def exit_code(rows: Iterable[Mapping[str, Any]]) -> int:
    """That of the worst row: an error of ours, a failure, an audit that is no pass or none."""
    codes = {EXIT_CODES.get(row["verdict"], EXIT_CODES["incomplete"]) for row in rows}
    worst = (EXIT_CODES[verdict] for verdict in ("error", "fail", "incomplete"))
    return next((code for code in worst if code in codes), EXIT_CODES["pass"])


def _lost(name: str, reason: str, seconds: float) -> dict[str, Any]:
    row = {"target": name, "verdict": "incomplete", "detail": reason}
    return {**row, "seconds": round(seconds, 2)}


class _Worker:
    """A process that audits what it is told to, one architecture at a time."""

    def __init__(self, name: str, start: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.here, there = context.Pipe()
        self.process = context.Process(target=_work, args=(there,), daemon=True)
        self.process.start()
        there.close()  # so that the end of the process is seen here
        self.alive = True
        self.take(name)
        self.since += start

    def take(self, name: str) -> None:
        self.name, self.since = name, time.monotonic()
        try:
            self.here.send(name)
        except OSError:  # it is gone; reading its answer says so
            self.alive = False

    @property
    def age(self) -> float:
        return max(time.monotonic() - self.since, 0.0)

    def answer(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.here.recv()
        except (EOFError, OSError):
            self.alive = False
            self.process.join(1)
            reason = f"the process ended with code {self.process.exitcode}"
            return _lost(self.name, reason, self.age)
        return found

    def end(self) -> None:
        self.here.close()
        self.process.kill()
        self.process.join()


def _work(connection: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        connection.send(row(name))
