"""Being stopped: after Ctrl-C or `kill`, a command ends with one line and leaves nothing behind.

The signal raises KeyboardInterrupt wherever the program is. Whoever has a child process or a
temporary folder removes it on the way out, as after any other exception. What can say more than
"interrupted" adds a note to the exception: `error.add_note("3 of 8 are done")`.
Work that is saved before it ends has handlers of its own meanwhile (`training/signals.py`).
"""

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A terminal and a parent process may both pass on one Ctrl-C: within these seconds it is the same.
SAME = 1.0
WAIT = 0.05  # seconds between two looks whether an import is over


class Handler:
    """Raises KeyboardInterrupt, and knows which signal it was (0: none yet).

    Not within an import: a module in C may abort, or make another exception of it. There the
    process ends at once if it has nothing to clean up; else at the end of the import, or when a
    second signal comes.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._since = 0.0
        self._waiting = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        again, now = self.signal, time.monotonic()
        if again and now - self._since < SAME:
            return
        self.signal, self._since = again or number, now
        if _is_importing(frame) and not again:
            if _has_nothing_to_clean_up():
                _say(number)
                os._exit(128 + number)
            self.raise_later()
            return
        self._waiting = False
        raise KeyboardInterrupt

    def raise_later(self) -> None:
        """Where Python is now, it could only drop the exception."""
        self._waiting = True
        later = threading.Timer(WAIT, self._repeat)
        later.daemon = True
        later.start()

    def _repeat(self) -> None:
        if not self._waiting:
            return
        if _is_importing(sys._current_frames().get(threading.main_thread().ident or 0)):
            self.raise_later()
            return
        self._since = -SAME
        os.kill(os.getpid(), self.signal)

    def forget(self) -> None:
        self._waiting = False


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _has_nothing_to_clean_up() -> bool:
    """No child process, no other thread (as a spinner has), no temporary folder."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pending = weakref.finalize._registry.values()  # type: ignore[attr-defined]
        names = [getattr(one.func, "__qualname__", "") for one in pending]
        return threading.active_count() == 1 and "TemporaryDirectory._cleanup" not in names
    return False


@contextmanager
def ending() -> Iterator[Handler]:
    """A signal in here ends the process: one line on stderr, and exit code 128 + its number.

    An exception that some library has made of the interrupt, as when a module in C is being
    imported, counts as the interrupt.
    """
    with _handling() as handler:
        try:
            yield handler
        except KeyboardInterrupt as error:
            _end(handler.signal or signal.SIGINT, error)
        except Exception as error:
            if not handler.signal:
                raise
            _end(handler.signal, error)


@contextmanager
def sparing_children() -> Iterator[None]:
    """Ctrl-C does not reach processes that start in here; who starts them ends them.

    A process keeps the signals blocked with which it was started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(number: int, error: BaseException) -> NoReturn:
    _say(number, *getattr(error, "__notes__", []))
    sys.exit(128 + number)


def _say(number: int, *notes: str) -> None:
    what = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    with suppress(OSError, ValueError):  # nobody may be there to read it
        sys.stderr.write("; ".join([what, *notes]) + "\n")


@contextmanager
def _handling() -> Iterator[Handler]:
    """Our handler for all signals that are not ignored; within another `ending`, that one's."""
    there = signal.getsignal(signal.SIGTERM)
    if isinstance(there, Handler):
        yield there
        return
    handler = Handler()
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread
        yield handler
        return
    # what is ignored stays so: SIGHUP under nohup, SIGINT in the background of a script
    heard = [one for one in NUMBERS if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    report = sys.unraisablehook

    def unraisable(lost: Any) -> None:
        if handler.signal and issubclass(lost.exc_type, KeyboardInterrupt):
            handler.raise_later()
        else:
            report(lost)

    sys.unraisablehook = unraisable
    try:
        yield handler
    finally:
        handler.forget()
        sys.unraisablehook = report
        for number, previous in before.items():
            signal.signal(number, previous)
