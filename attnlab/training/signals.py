"""Stopping when asked: SIGINT and SIGTERM are noted, and the loop stops at the next safe place."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopping:
    """Whether the process has been asked to stop, and by which signal (0: it has not)."""

    def __init__(self) -> None:
        self.signal = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C: at once
        self.signal = number


class StopNow(Exception):
    """Raised in an evaluation or while sampling, which can be done again."""


@contextmanager
def stopping() -> Iterator[Stopping]:
    stop = Stopping()
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread
        yield stop
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
