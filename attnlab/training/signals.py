"""Stopping when asked: a signal is noted, and the loop stops at the next safe place.

Ctrl-C, `kill`, a terminal that is closed (SIGHUP), a batch system that warns (SIGUSR1, as Slurm
sends), and a reader that goes away (`| head`): all lead to a checkpoint and an end.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from attnlab.stop import NUMBERS


class StopNow(BaseException):
    """Raised in what can be done again: an evaluation, a sample, getting ready.

    No Exception: a compiler handles those as errors of its own, and goes on.
    """


class Stopping:
    """Whether the process has been asked to stop, and by which signal (0: it has not)."""

    def __init__(self) -> None:
        self.signal = 0
        self._at_once = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C: at once
        self.signal = self.signal or number
        if self._at_once:
            raise StopNow

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Nothing here is lost when a signal ends it in the middle."""
        self._at_once = True
        try:
            if self.signal:
                raise StopNow
            yield
        except Exception:  # of a compiler whose processes the same signal has ended
            if not self.signal:
                raise
            raise StopNow from None
        finally:
            self._at_once = False


@contextmanager
def stopping() -> Iterator[Stopping]:
    stop = Stopping()
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread
        yield stop
        return
    # what is ignored stays so: SIGHUP under nohup
    heard = [one for one in NUMBERS if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
