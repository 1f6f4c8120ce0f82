"""Which of several processes is missing: each writes a beat into the store that they share.

A collective operation waits for every process, and when it fails it rarely says for whom. Here each
process counts up beside its work, with the step it is at; a count that stands still is a process
that is gone or does not run. What ends a process with an error is left in the store for the others.
"""

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, Store

from attnlab.printable import one_line, printable, raised

PAUSE = 0.5  # seconds between two beats
SILENT = 2.0  # seconds without a beat in which a process that runs would have given several
LOOKS = 20  # at the others, in the time that one may be silent
KNOCK = 0.05  # seconds between two looks at who has come
FAILURES = 5  # beats in a row that do not reach the store, after which torchrun counts as gone
FAILED = RuntimeError  # a call of a store, by timeout or lost connection: the base in every version
PATIENCE = 0.9  # part of the timeout after which a silent process ends the others


class Lost(ConnectionError):
    """A process that the others wait for is missing: which, and since which step."""


class Heartbeat:
    """The beats of this process, and a look at those of the others."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        # a connection of its own: on the other one a call may be waiting
        self._store, self._rank, self._size = store.clone(), rank, size
        self._timeout, self.step = timeout, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, error: BaseException | None = None) -> None:
        """No more beats; what ended this process is said to the others."""
        self._ended.set()
        if error is not None:
            with suppress(FAILED):
                self._store.set(_left(self._rank), printable(one_line(raised(error))))
        self._thread.join(timeout=SILENT)

    def diagnose(self) -> str:
        """Who is missing, after a collective operation has failed; empty if nobody is."""
        try:
            before = self._beats()
            time.sleep(SILENT)
            now, left = self._beats(), self._said(_left)
        except FAILED:  # the process that held the store took it along
            return f"process 0 of {self._size} cannot be reached any more"
        others = [rank for rank in range(self._size) if rank != self._rank]
        ended = [rank for rank in others if left[rank]]
        if ended:
            return "; ".join(
                f"process {rank} of {self._size} has stopped: {left[rank]}" for rank in ended[:3]
            )
        silent = [rank for rank in others if now[rank] == before[rank]]
        if silent:
            return f"{_named(silent, self._size)} gone: {_steps(silent, now)}"
        steps = [_step(one) for one in now]
        behind = [rank for rank in range(self._size) if steps[rank] < max(steps)]
        if behind:
            return f"{_named(behind, self._size)} behind: {_steps(behind, now)}"
        return ""

    def _run(self) -> None:
        try:
            self._beat_on()
        finally:
            if not self._ended.is_set():  # nobody would stop these processes any more: save and end
                os.kill(os.getpid(), signal.SIGTERM)

    def _beat_on(self) -> None:
        """Until this process has ended, or the store is gone."""
        count, looked, unchanged = 0, time.monotonic(), [0] * self._size
        before, failures = [""] * self._size, 0
        while failures < FAILURES and not self._ended.wait(PAUSE):
            count, failures = count + 1, failures + 1
            with suppress(FAILED):  # the main thread hears of it too
                self._store.set(_beat(self._rank), f"{count} {self.step}")
                failures = 0
                if time.monotonic() - looked >= self._timeout * PATIENCE / LOOKS:
                    looked, now = time.monotonic(), self._beats()
                    unchanged = [
                        number + 1 if one == other else 0
                        for number, one, other in zip(unchanged, now, before, strict=True)
                    ]
                    before = now
                    self._end_if_alone([r for r in range(self._size) if unchanged[r] >= LOOKS], now)

    def _end_if_alone(self, silent: Sequence[int], beats: Sequence[str]) -> None:
        """The main thread may wait for them in a library, where no signal reaches it."""
        others = [rank for rank in silent if rank != self._rank]
        if others and not self._ended.is_set():
            gone = f"{_named(others, self._size)} gone: {_steps(others, beats)}"
            with suppress(OSError, ValueError):
                sys.stderr.write(f"{gone}; stopped after {self._timeout:g} s without them\n")
                sys.stderr.flush()
            os._exit(1)

    def _beats(self) -> list[str]:
        return self._said(_beat)

    def _said(self, key: Callable[[int], str]) -> list[str]:
        there = [rank for rank in range(self._size) if self._store.check([key(rank)])]
        values = self._store.multi_get([key(rank) for rank in there]) if there else []
        said = dict(zip(there, values, strict=True))
        return [said.get(rank, b"").decode() for rank in range(self._size)]


def meet(launch: Store, rank: int, size: int, timeout: float) -> Store:
    """A fresh store for the processes of one start; Lost names those that have not come.

    The store of torchrun outlives a restart, with the keys of processes that are gone, and its
    agents do not count restarts alike. So each process leaves a word of its own, made anew at
    every start, and the first one answers to each word with the number of this start.
    """
    word, until = secrets.token_hex(8), time.monotonic() + timeout
    launch.set(_word(rank), word)
    try:
        if rank == 0:
            number = launch.add("attnlab/starts", 1)
        else:
            launch.wait([_start(word)], timedelta(seconds=timeout))
            number = int(launch.get(_start(word)))
    except FAILED:
        raise Lost(f"{_named([0], size)} {_absent(timeout)}") from None
    store = PrefixStore(f"attnlab/{number}", launch)
    store.set(_here(rank), "")
    missing, answered = list(range(size)), set[str]()
    while missing and time.monotonic() < until:
        if rank == 0:
            for key in [one for one in map(_word, missing) if launch.check([one])]:
                if (other := launch.get(key).decode()) not in answered:
                    answered.add(other)
                    launch.set(_start(other), str(number))
            time.sleep(KNOCK)
        else:
            with suppress(FAILED):
                left = max(until - time.monotonic(), KNOCK)
                store.wait([_here(one) for one in missing], timedelta(seconds=left))
        missing = [one for one in missing if not store.check([_here(one)])]
    if missing:
        raise Lost(f"{_named(missing, size)} {_absent(timeout)}")
    return store


def _absent(timeout: float) -> str:
    return f"missing: not there within {timeout:g} s of the start"


def _word(rank: int) -> str:
    return f"attnlab/word/{rank}"


def _start(word: str) -> str:
    return f"attnlab/start/{word}"


def _here(rank: int) -> str:
    return f"here/{rank}"


def _beat(rank: int) -> str:
    return f"beat/{rank}"


def _left(rank: int) -> str:
    return f"left/{rank}"


def _named(ranks: Sequence[int], size: int) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return (
        f"process {shown} of {size} is" if len(ranks) == 1 else f"processes {shown} of {size} are"
    )


def _step(beat: str) -> int:
    return int(beat.split()[1]) if beat else 0


def _steps(ranks: Sequence[int], beats: Sequence[str]) -> str:
    found = sorted({_step(beats[rank]) for rank in ranks})
    return f"last heard of at step {found[0]}" + (f" to {found[-1]}" if len(found) > 1 else "")
