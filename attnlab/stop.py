"""Being stopped: after Ctrl-C or `kill`, a command ends with one line and leaves nothing behind.

    ending()      of every command: a signal raises KeyboardInterrupt wherever the program is
    stoppable()   of work within it that reports how far it came: the interrupt carries the report
    stopping()    of work that is saved before it ends: the signal is noted, and the work looks

Whoever has a child process or a temporary folder removes it on the way out, as after any other
exception. What can say more than "stopped by Ctrl-C" adds a note to the exception:
`error.add_note("3 of 8 are done")`.

The exit code is 128 + the number of the signal: 130 after Ctrl-C, 143 after `kill`. One command is
ended by Ctrl-C and by nothing else, `attnlab page`: there it is 0.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

# Ctrl-C, `kill`, a terminal that is closed, and a batch system that warns, as Slurm does
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# A terminal and a parent process may both pass on one Ctrl-C: within these seconds it is the same.
SAME = 1.0
PATIENCE = 5.0  # seconds in which work that notes a signal should have come to an end
WAIT = 0.01  # seconds between two looks whether an import is over


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
            if _is_alone():
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


_handler: Handler | None = None  # of the outermost `ending`


def received() -> int:
    """The signal that has stopped this process; where none is known, that of Ctrl-C."""
    return (_handler.signal if _handler else 0) or signal.SIGINT


def heed() -> None:
    """After a person's code: it may have swallowed the interrupt, and then nobody heard it."""
    if _handler is not None and _handler.signal:
        raise KeyboardInterrupt


def reason(number: int) -> str:
    """In words, such as "stopped by SIGTERM"."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return f"stopped by {name}"


def end(number: int, *notes: str) -> NoReturn:
    """End the process as stopped by a signal."""
    _say(number, *notes)
    sys.exit(128 + number)


def pass_on(how: str) -> None:
    """Of a training that is a part of something: the signal that ended it stops the whole."""
    if how in signal.Signals.__members__:
        signal.raise_signal(signal.Signals[how])


@contextmanager
def ending() -> Iterator[Handler]:
    """A signal in here ends the process: one line on stderr, and exit code 128 + its number.

    An exception that some library has made of the interrupt, as when a module in C is being
    imported, counts as the interrupt. Any other is said as well: it may be a mistake of ours.
    """
    with _handling() as handler:
        try:
            yield handler
        except KeyboardInterrupt as error:
            end(handler.signal or signal.SIGINT, *getattr(error, "__notes__", []))
        except Exception as error:
            if not handler.signal:
                raise
            what = [] if _comes_of_it(error) else [f"{type(error).__name__}: {error}"]
            end(handler.signal, *getattr(error, "__notes__", []), *what)


def _comes_of_it(error: BaseException | None) -> bool:
    """Whether an exception was raised while the interrupt was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


class Stopped(KeyboardInterrupt):
    """A person has stopped a check or a benchmark: how far it was, and what it had found."""

    def __init__(self, done: str, found: Mapping[str, Any]) -> None:
        super().__init__(done)
        self.done, self.found = done, found


@contextmanager
def stoppable(done: Callable[[], str], found: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Work that a person may stop: what was found until then goes along with the interrupt.

    Of one within another, the outer one tells.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(done(), found()) from None


class StopNow(BaseException):
    """Raised in what can be done again: an evaluation, a sample, getting ready.

    No Exception: a compiler handles those as errors of its own, and goes on.
    """


class Stopping:
    """Whether the process has been asked to stop, and by which signal (0: it has not)."""

    def __init__(self) -> None:
        self.signal = 0
        self._since = 0.0
        self._at_once = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        # a second Ctrl-C: at once; of `kill` one that comes later, since the work may hang
        if self.signal and (number == signal.SIGINT or now - self._since > PATIENCE):
            if _handler is not None:
                _handler.signal = self.signal
            raise KeyboardInterrupt
        if not self.signal:
            self.signal, self._since = number, now
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
    """A signal in here is noted; who does the work looks, and stops at the next safe place."""
    stop = Stopping()
    with _installed(stop):
        yield stop


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


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _is_alone() -> bool:
    """Without a child process, and without another thread.

    What makes temporary folders, as a check does, runs beside the thread of a spinner.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13: nobody can tell without reaping one
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return threading.active_count() == 1
    return False


def _say(number: int, *notes: str) -> None:
    with suppress(OSError, ValueError):  # nobody may be there to read it
        sys.stderr.write("; ".join([reason(number), *notes]) + "\n")


@contextmanager
def _handling() -> Iterator[Handler]:
    """Our handler for all signals that are not ignored; within another `ending`, that one's."""
    global _handler
    if _handler is not None:
        yield _handler
        return
    handler = Handler()
    if not _is_main_thread():
        yield handler
        return
    report = sys.unraisablehook

    def unraisable(lost: Any) -> None:
        if handler.signal and issubclass(lost.exc_type, KeyboardInterrupt):
            handler.raise_later()
        else:
            report(lost)

    with _installed(handler):
        sys.unraisablehook, _handler = unraisable, handler
        try:
            yield handler
        finally:
            handler.forget()
            sys.unraisablehook, _handler = report, None


@contextmanager
def _installed(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """The handler of all our signals, in the main thread, to which signals go."""
    if not _is_main_thread():
        yield
        return
    # what is ignored stays so: SIGHUP under nohup, SIGINT in the background of a script
    heard = [one for one in NUMBERS if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
