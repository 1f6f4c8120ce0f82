"""The sweep: many targets, each with its row, whatever it does.

    targets -> jobs -> rows (`audit/rows.py`)

    hf:all, hf:llama*, hf:encoder/*bert*      models of the installed transformers
    @FILE                                     a target a line, as on the command line

Workers are processes of their own, so that one which crashes or hangs costs its row and no more.
Models are audited in the worker, which has the library loaded; a file in a child of the worker
(`audit/sandbox.py`), as it is without a sweep.
"""

import hashlib
import json
import math
import multiprocessing
import os
import shlex
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from attnlab import config, files
from attnlab.audit.answer import Answer, answer_of, ended, plain_of
from attnlab.audit.contract import Certificate
from attnlab.audit.errors import InputError, SubjectError
from attnlab.audit.memory import keep_freed_memory
from attnlab.audit.rows import Row, RowFile
from attnlab.audit.sandbox import Limits, Request, audit_in_child
from attnlab.audit.subject.load import parts_of
from attnlab.printable import one_line
from attnlab.stop import stopping

WORKERS = 2
LIMITS = Limits()
START = 60.0  # seconds that the first target of a worker may take more, to import everything
GLOBS = "*?["
# These take longest, and begin first: both workers then end at about the same time.
LONG = (
    "hf:seq2seq/vibevoice_asr",
    "hf:seq2seq/granite_speech",
    "hf:seq2seq/granite_speech_plus",
    "hf:seq2seq/fsmt",
    "hf:causal/qwen4_exp",
    "hf:causal/qwen4_exp_text",
    "hf:causal/kimi_linear",
    "hf:causal/bailing_hybrid",
    "hf:causal/prophetnet",
    "hf:causal/zamba2",
    "hf:causal/zamba",
)


@dataclass(frozen=True, kw_only=True)
class Job:
    request: Request

    @property
    def line(self) -> str:
        """As one would write it on the command line; a row is known by it."""
        words = [self.request.target, *self.request.options]
        for name, value in sorted(self.request.contract.declared().items()):
            text = value if isinstance(value, str) else json.dumps(value)
            words += ["--declare", f"{name}={text}"]
        if self.request.device != "cpu":
            words += ["--device", self.request.device]
        return shlex.join(words)

    @cached_property
    def code(self) -> str:
        """The hash of the file that is named; empty if none is. Rows of another are not kept."""
        if not self._file.is_file():
            return ""
        return hashlib.sha256(self._file.read_bytes()).hexdigest()  # a person's file may be a link

    @property
    def _file(self) -> Path:
        path = Path(parts_of(self.request.target)[0])
        return path if path.suffix == ".py" else Path()

    def row_in(self, out: RowFile | None) -> Row | None:
        """The row of this very code, if it is there already; what was not audited is tried anew."""
        row = None if out is None else out.known.get(self.line)
        if row is None or row.get("code", "") != self.code:
            return None
        if self._file.suffix and not self.code:  # there is nothing to be audited
            return None
        audited = bool(row.get("checks")) or row["verdict"] == "not built"
        return row if audited and not row.get("unfinished") else None

    @property
    def family(self) -> str:
        """Of a row that its worker did not finish: as far as the target says it."""
        target = self.request.target
        if not target.startswith("hf:"):
            return "code"
        named, slash, _ = target.removeprefix("hf:").partition("/")
        return named if slash and "." not in named else "hf"


def is_sweep(target: str) -> bool:
    """Whether a target stands for many."""
    models = target.startswith("hf:") and any(letter in target for letter in GLOBS)
    return target == "hf:all" or target.startswith("@") or models


def jobs_of(request: Request) -> list[Job]:
    """What a target stands for; what is declared holds for all, and a line's own wins."""
    if not request.target.startswith("@"):
        return [Job(request=one) for one in _models(request)]
    path = Path(request.target[1:])
    if request.options:
        raise InputError(f"{request.options[0]!r} is for one target; write it into {path}")
    try:
        lines = files.read_named(path).decode("utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name a text file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text in UTF-8; write a target a line into it") from None
    found = []
    for number, text in enumerate(lines, 1):
        try:
            words = shlex.split(text, comments=True)
            if words:
                found += [Job(request=one) for one in _models(_request(words, request))]
        except ValueError as error:  # quotes without an end, options that are none
            raise InputError(f"{path}, line {number}: {error}") from None
    if not found:
        raise InputError(f"{path} names no target; write one a line, as file.py:Name width=32")
    return list({job.line: job for job in found}.values())


def _request(words: Sequence[str], every: Request) -> Request:
    """Of the words of a line: TARGET key=value … --declare key=value … --device cuda"""
    target, options, declared, device = words[0], [], [], every.device
    if target.startswith("@"):
        raise InputError(f"{target} stands in a list itself; name its targets here")
    rest = iter(words[1:])
    for word in rest:
        if word == "--declare":
            declared.append(next(rest, ""))
        elif word.startswith("--declare="):
            declared.append(word.removeprefix("--declare="))
        elif word == "--device":
            device = next(rest, "")
        elif "=" in word:
            options.append(word)
        else:
            raise InputError(f"{word!r} is neither key=value nor --declare key=value")
    contract = config.override(every.contract, declared)
    return Request(target=target, options=tuple(options), contract=contract, device=device)


def _models(request: Request) -> list[Request]:
    """The models that a glob stands for; anything else is itself."""
    if not is_sweep(request.target):
        return [request]
    from attnlab.audit.hf.families import matching

    names = matching(request.target.removeprefix("hf:"))
    return [replace(request, target=f"hf:{name}") for name in names]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What came of a sweep; `left` jobs were not done when a signal stopped it."""

    rows: list[Row]
    left: int = 0
    signal: int = 0


def sweep(
    jobs: Sequence[Job],
    tick: Callable[[int, int, Row, float], None] = lambda done, total, row, left: None,
    *,
    workers: int = WORKERS,
    limits: Limits = LIMITS,
    start: float = START,
    out: RowFile | None = None,
    crew: Callable[[Sequence[Job]], AbstractContextManager["Crew"]] | None = None,
) -> Sweep:
    """A row for each job, in their order; rows that `out` has already are not done again.

    `crew` is who audits jobs; None for workers of this machine.

    `tick` is told how many are done, of how many, the last row, and the seconds that are left.
    """
    by_line = {job.line: job for job in jobs}
    there = {line: job.row_in(out) for line, job in by_line.items()}
    rows = {line: row for line, row in there.items() if row is not None}
    order = sorted(
        (line for line in by_line if line not in rows), key=lambda line: line not in LONG
    )
    waiting = order[::-1]
    ready, began = len(rows), time.monotonic()
    hire = crew or (lambda jobs: Workers(workers, limits, start))
    with hire([by_line[line] for line in order]) as pool, stopping() as stop:

        def keep(job: Job, found: Row) -> None:
            known = {"line": job.line, "family": job.family, "code": job.code}
            row = rows[job.line] = {**known, **found}
            if out is not None:
                out.write(row)
            done = len(rows) - ready
            left = (time.monotonic() - began) / done * (len(by_line) - len(rows))
            tick(len(rows), len(by_line), row, left)

        while (waiting or pool.jobs) and not stop.signal:
            while waiting and pool.jobs < pool.most:
                pool.take(by_line[waiting.pop()])
            for job, found in pool.answers():
                keep(job, found)
    kept = [rows[line] for line in by_line if line in rows]
    return Sweep(rows=kept, left=len(by_line) - len(kept), signal=stop.signal)


def by_backend(rows: Sequence[Row]) -> dict[str, str]:
    """Of each way in which models compute attention, how many agree with the others in it."""
    agree: Counter[str] = Counter()
    differ: Counter[str] = Counter()
    for row in rows:
        for check in (one for one in row.get("checks", ()) if one["name"] == "backends"):
            if check["verdict"] == "pass":
                agree.update(check["detail"].partition(" agree")[0].split(", "))
            elif check["verdict"] == "fail":
                differ[check["detail"].partition(" differs from")[0]] += 1
    names = sorted({*agree, *differ}, key=lambda name: (-agree[name], name))
    return {
        name: f"{agree[name]} agree" + (f", {differ[name]} differ" if differ[name] else "")
        for name in names
    }


def row_of(
    request: Request, limits: Limits, keep: Callable[[Answer], None] = lambda answer: None
) -> Row:
    """The audit of one target: of a model here, of a file in a child.

    Of a model `keep` is given what is known so far; a child has a limit of its own.
    """
    begin = time.monotonic()
    if request.target.startswith("hf:"):
        found = _model_row(request, keep)
    else:
        found = audit_in_child(request, limits).plain()
    return {**found, "target": request.target, "seconds": round(time.monotonic() - begin, 2)}


def _model_row(request: Request, keep: Callable[[Answer], None]) -> Row:
    from attnlab.audit.hf.families import pick
    from attnlab.audit.hf.models import audit_hf
    from attnlab.audit.subject.load import options_of

    known = {}
    try:
        known = {"family": pick(request.target.removeprefix("hf:"))[0]}
        options = options_of(request.options)
        backend = options.pop("attn_implementation", None)
        name, declared = request.target.removeprefix("hf:"), request.contract.declared()

        def hold(certificate: Certificate) -> None:
            keep(Answer(target=request.target, certificate=certificate))

        found = audit_hf(name, backend, options=options, keep=hold, **declared)
        return {**known, **found.plain()}
    except (InputError, SubjectError) as error:  # of the library's, or of the architecture's
        return {**known, "verdict": "not built", "detail": one_line(error)}
    except Exception as error:  # of ours: said in its row, and by the exit code
        said = {"detail": one_line(error), "traceback": traceback.format_exc()}
        return {**known, "verdict": "error", **said}


class Crew(Protocol):
    """Audits jobs, several at a time."""

    @property
    def most(self) -> int:
        """Jobs that it takes at a time."""

    @property
    def jobs(self) -> int:
        """Jobs that it has taken and not answered."""

    def take(self, job: Job) -> None: ...

    def answers(self) -> Iterator[tuple[Job, Row]]:
        """The rows that have come, after a moment's wait."""


class Workers:
    """Workers that are busy; one that has nothing to do waits for the next job."""

    def __init__(self, workers: int, limits: Limits, start: float) -> None:
        self.most, self._limits, self._start = workers, limits, start
        self.busy: dict[Connection, _Worker] = {}
        self._idle: list[_Worker] = []

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()

    def end(self) -> None:
        for worker in (*self.busy.values(), *self._idle):
            worker.end()

    @property
    def jobs(self) -> int:
        return len(self.busy)

    def take(self, job: Job) -> None:
        worker = self._idle.pop() if self._idle else _Worker(self._start)
        worker.take(job, self._limits)
        self.busy[worker.here] = worker

    def answers(self) -> Iterator[tuple[Job, Row]]:
        for answered in wait(list(self.busy), timeout=0.2):
            assert isinstance(answered, Connection)
            worker = self.busy[answered]
            row = worker.answer()
            if row is None:
                continue
            del self.busy[answered]
            yield worker.job, row
            if worker.alive:
                self._idle.append(worker)
            else:
                worker.end()
        for worker in [one for one in self.busy.values() if one.age > self._patience(one.job)]:
            self.busy.pop(worker.here)
            cause = f"time ran out after {self._limits.seconds:g} s"
            longer = max(60, 2 * math.ceil(self._limits.seconds))
            yield worker.job, worker.lost(cause, f"{cause}; allow more with --timeout {longer}")
            worker.end()

    def _patience(self, job: Job) -> float:
        """A file has a child with a limit of its own, which says more."""
        theirs = 0.0 if job.request.target.startswith("hf:") else 20.0
        return self._limits.seconds + theirs


class _Worker:
    """A process that audits what it is told to, one target at a time."""

    job: Job

    def __init__(self, start: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.here, there = context.Pipe()
        self.process = context.Process(target=_work, args=(there,), daemon=True)
        # Ctrl-C is for us; a process keeps the signals blocked with which it was started
        resource_tracker.ensure_running()  # which unblocks them when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()  # so that the end of the process is seen here
        self.alive, self._more = True, start

    def take(self, job: Job, limits: Limits) -> None:
        self._so_far: Mapping[str, Any] | None = None
        self.job, self.since = job, time.monotonic() + self._more
        self._more = 0.0
        try:
            self.here.send({**job.request.plain(), **vars(limits)})
        except OSError:  # it is gone; reading its answer says so
            self.alive = False

    @property
    def age(self) -> float:
        return max(time.monotonic() - self.since, 0.0)

    def answer(self) -> Row | None:
        """The row; None if it has only said what is known so far."""
        try:
            found: Row = self.here.recv()
        except (EOFError, OSError):
            self.alive = False
            self.process.join(1)
            reason = f"the process ended with code {self.process.exitcode}"
            return self.lost(reason, reason)
        if "so_far" not in found:
            return found
        self._so_far = found["so_far"]
        return None

    def lost(self, cause: str, reason: str) -> Row:
        """The row of an audit that ended early: what was known, the rest for this cause not."""
        target = self.job.request.target
        known = None if self._so_far is None else answer_of(target, self._so_far)
        row = ended(target, known, cause, reason).plain()
        return {**row, "target": target, "seconds": round(self.age, 2)}

    def end(self) -> None:
        self.here.close()
        self.process.terminate()  # a child that it has is ended by it
        self.process.join(2)
        self.process.kill()
        self.process.join()


def _end_with_parent() -> None:
    """Which a lost machine or `kill -9` may have ended while this process is within an audit."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    with suppress(EOFError, BrokenPipeError):  # nobody asks any more
        while True:
            given: Mapping[str, Any] = connection.recv()
            request = Request.of(given)
            is_model = request.target.startswith("hf:")
            # a child is ended on the way out
            signal.signal(signal.SIGTERM, signal.SIG_DFL if is_model else _leave)
            if is_model:
                import torch

                torch.set_num_threads(1)
            limits = Limits(seconds=given["seconds"], gibibytes=given["gibibytes"])
            connection.send(row_of(request, limits, lambda known: _send(connection, known)))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is on its way out


def _send(connection: Connection, known: Answer) -> None:
    connection.send({"so_far": plain_of(known)})


def _leave(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)
