"""The one thread that computes: jobs take turns, a step each, and more than a few are refused.

A job is an iterator whose values are sent to whoever waits for it; between two of its steps other
jobs have theirs, so a long text that is being written does not hold up a slider. One thread,
because PyTorch's random state is one, and two threads on two cores only wait for each other.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from attnlab.page.guard import Refused, log

T = TypeVar("T")

MOST = 8  # jobs begun or waiting
_END = object()


@dataclass(eq=False)
class _Job:
    steps: Iterator[Any]
    loop: asyncio.AbstractEventLoop
    results: asyncio.Queue = field(default_factory=asyncio.Queue)
    cancelled: bool = False

    def give(self, result: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(self.results.put_nowait, result)
        except RuntimeError:  # the page is closing
            self.cancelled = True


class Work:
    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._jobs: deque[_Job] = deque()
        self._idle: deque[Iterator[Any]] = deque()
        self._begun = 0  # waiting or at work
        self._change = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="attnlab-work", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join(timeout=5)

    async def answer(self, job: Callable[[], T]) -> T:
        """What a function gives."""
        async with aclosing(self.stream(_once(job))) as results:
            return await anext(results)

    async def last(self, steps: Iterator[T | None]) -> T:
        """The last thing an iterator gives; before it, None lets others have their turn."""
        async with aclosing(self.stream(steps)) as results:
            found = [result async for result in results][-1]
        assert found is not None
        return found

    def stream(self, steps: Iterator[T]) -> AsyncGenerator[T, None]:
        """What an iterator gives; whoever stops listening stops it."""
        job = _Job(steps, asyncio.get_running_loop())
        with self._change:
            if self._begun >= self.most:
                raise Refused(429, f"{self.most} things are being computed already; try again soon")
            self._begun += 1
            self._jobs.append(job)
            self._change.notify()
        return _results(job)

    def background(self, steps: Iterator[Any]) -> None:
        """Go through an iterator whenever there is nothing else to do; nobody waits for it."""
        with self._change:
            self._idle.append(steps)
            self._change.notify()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._jobs or self._idle or self._closed)
                if self._closed:
                    return
                job = self._jobs.popleft() if self._jobs else None
            if job is None:
                self._idle_step()
                continue
            going = False if job.cancelled else self._step(job)
            with self._change:
                if going:
                    self._jobs.append(job)
                else:
                    self._begun -= 1
            if not going:
                _close(job.steps)
                job.give(_END)
            del job  # what it holds is not kept until the next one comes

    def _idle_step(self) -> None:
        try:
            next(self._idle[0])
        except StopIteration:
            self._idle.popleft()
        except Exception:  # nobody waits for it: the log is who is told
            log.exception("what was to be got ready failed")
            self._idle.popleft()

    def _step(self, job: _Job) -> bool:
        """Whether it goes on."""
        try:
            job.give(next(job.steps))
        except StopIteration:
            return False
        except BaseException as error:  # raised again where the job was asked for
            job.give(error)
            return False
        return True


def _once(job: Callable[[], T]) -> Iterator[T]:
    yield job()


def _close(steps: Iterator[Any]) -> None:
    close = getattr(steps, "close", None)
    if close is not None:
        close()


async def _results(job: _Job) -> AsyncGenerator[Any, None]:
    try:
        while (result := await job.results.get()) is not _END:
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        job.cancelled = True
