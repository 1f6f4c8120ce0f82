"""The one thread that computes: turns, an end to waiting, and a limit."""

import asyncio
import threading
import time
from contextlib import aclosing

import pytest

from attnlab.page.guard import Refused
from attnlab.page.work import Work


@pytest.fixture
def work():
    made = Work(most=3)
    yield made
    made.close()


def test_a_job_gives_its_result_or_its_error(work):
    async def both():
        assert await work.answer(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await work.answer(lambda: 1 / 0)
        assert await work.last(iter([1, 2, 3])) == 3

    asyncio.run(both())


def test_jobs_take_turns_so_a_short_one_does_not_wait_for_a_long_one(work):
    done = []

    def long():
        for step in range(1000):
            time.sleep(0.002)
            done.append(step)
            yield step

    async def both():
        async with aclosing(work.stream(long())) as steps:
            await anext(steps)
            assert await work.answer(lambda: "quick") == "quick"
            assert len(done) < 1000  # it is still at work

    asyncio.run(both())


def test_more_jobs_than_the_limit_are_refused_with_429(work):
    gate = threading.Event()

    async def fill():
        waiting = [asyncio.ensure_future(work.answer(lambda: gate.wait(2))) for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(Refused) as refused:
            await work.answer(lambda: 1)
        assert refused.value.status == 429
        gate.set()
        await asyncio.gather(*waiting)
        assert await work.answer(lambda: 1) == 1

    asyncio.run(fill())


def test_who_stops_listening_stops_the_job(work):
    seen, closed = [], threading.Event()

    def endless():
        try:
            while True:
                time.sleep(0.001)
                seen.append(1)
                yield 1
        finally:
            closed.set()

    async def leave():
        async with aclosing(work.stream(endless())) as steps:
            await anext(steps)

    asyncio.run(leave())
    assert closed.wait(5)
    count = len(seen)
    time.sleep(0.05)
    assert len(seen) == count


def test_a_job_that_nobody_waits_for_is_not_begun(work):
    gate, begun = threading.Event(), []

    async def leave():
        first = asyncio.ensure_future(work.answer(gate.wait))
        second = asyncio.ensure_future(work.answer(lambda: begun.append(1)))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.sleep(0.05)
        gate.set()
        await first
        await work.answer(lambda: None)

    asyncio.run(leave())
    assert begun == []


def test_what_is_got_ready_waits_for_those_who_ask(work):
    order = []
    gate = threading.Event()

    def ready():
        gate.wait(5)
        for _ in range(3):
            order.append("ready")
            yield None

    async def ask():
        work.background(ready())
        await asyncio.sleep(0.05)
        asked = [asyncio.ensure_future(work.answer(lambda: order.append("asked"))) for _ in "ab"]
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.gather(*asked)

    asyncio.run(ask())
    time.sleep(0.1)
    assert order == ["ready", "asked", "asked", "ready", "ready"]
