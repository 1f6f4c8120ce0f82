"""The command that is being carried out, as a person would type it: in a manifest, under a report.

That of this process, unless Python code does what a command does (`attnlab/api/`).
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_words: ContextVar[Sequence[str] | None] = ContextVar("words", default=None)


def line(words: Sequence[str] = ()) -> str:
    """The command of these words; without any, the one that is being carried out."""
    return shlex.join(["attnlab", *(words or _words.get() or sys.argv[1:])])


@contextmanager
def as_if(words: Sequence[str]) -> Iterator[None]:
    """What is done in here is said to be done by the command of these words."""
    before = _words.set(words)
    try:
        yield
    finally:
        _words.reset(before)
