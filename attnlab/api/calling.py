"""A call from Python: its settings as words of the command line, its errors and interrupts as one
line, its progress on the standard error."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attnlab import command, config, stop
from attnlab.errors import MENDABLE, Error, Interrupt, explain
from attnlab.printable import printable

PAUSE = 0.2  # seconds between two lines of progress in a notebook
WIDEST = 100  # letters of such a line


def words_of(given: Sequence[str], named: Mapping[str, Any]) -> list[str]:
    """Settings as the command line takes them; named ones come after the words."""
    for word in given:
        if not isinstance(word, str):
            _refuse_live(word)
            raise Error(f"{word!r} is no setting; write it as 'key=value' or as a named argument")
    return [*given, *config.to_overrides({name: _plain(value) for name, value in named.items()})]


def _refuse_live(value: object) -> None:
    """A class or function of a notebook: a run names the file that its code is in."""
    if callable(value):
        name = getattr(value, "__name__", "Mine")
        raise Error(
            f"{name} is code in memory, and a run must find its code again; write it to a file "
            f"(in a notebook: %%writefile mine.py) and give 'mine.py:{name}'"
        )


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    _refuse_live(value)
    return value


@contextmanager
def calling(words: Sequence[str] = ()) -> Iterator[None]:
    """What a person can mend is raised as an Error, a signal as an Interrupt; both say one line.

    `words` are those of the command that does the same.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # cli/app.py does the same and says why
    try:
        with command.as_if(words):
            yield
    except (Error, Interrupt):
        raise
    except KeyboardInterrupt as stopped:
        notes = getattr(stopped, "__notes__", [])
        raise Interrupt("; ".join([stop.reason(signal.SIGINT), *notes])) from None
    except MENDABLE as error:
        line = explain(error)
        if line is None:
            raise
        raise Error(line) from None


def interrupt(name: str, line: str) -> Interrupt:
    """To be raised after work that a signal has stopped and that was saved.

    A signal that ends processes, as `kill` sends, ends this one now.
    """
    if name != "SIGINT":
        stop.pass_on(name)
    return Interrupt(f"{stop.reason(signal.Signals[name])}; {line}")


def in_notebook() -> bool:
    """Whether the standard error is shown by a kernel of Jupyter."""
    return type(sys.stderr).__module__.startswith("ipykernel")


class Line:
    """One line on the standard error that says what is being done now: each text replaces the
    last. Shown in a notebook and on a terminal, not in a log."""

    def __init__(self) -> None:
        self._shown = in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
        self._last, self._length = -PAUSE, 0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if self._shown and now - self._last >= PAUSE:
            self._last = now
            self._write(printable(text, keep="")[:WIDEST])

    def clear(self) -> None:
        if self._length:
            self._write("")
            sys.stderr.write("\r")

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text}{' ' * (self._length - len(text))}")
        sys.stderr.flush()
        self._length = len(text)


@contextmanager
def ticking() -> Iterator[Callable[[str], None]]:
    """A function to be told what is being done."""
    line = Line()
    try:
        yield line
    finally:
        line.clear()
