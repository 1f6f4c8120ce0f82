"""Running a person's code: whatever it raises becomes one sentence, with its file and line."""

import functools
import inspect
from pathlib import Path
from typing import Any

from attnlab.code.places import InputError
from attnlab.code.siblings import plain_names
from attnlab.memory import ran_out
from attnlab.printable import raised

LONGEST = 300  # letters of what was raised


class running:
    """Around a person's code and nothing else; `files` are those that are theirs.

    A signal that stops the laboratory may come while their code runs, and is no fault of it. No
    generator: one would take a GeneratorExit of theirs for its own end.
    """

    def __init__(self, what: str, files: frozenset[Path]) -> None:
        self._what, self._files = what, files

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, KeyboardInterrupt | MemoryError | InputError):
            return
        if type(error).__module__.partition(".")[0] == "attnlab" or ran_out(error):
            return
        said = " ".join(plain_names(raised(error)).split())
        where = line_of(error, self._files)
        raise InputError(f"{self._what}: {said[:LONGEST]}{where}") from error


def line_of(error: BaseException | None, files: frozenset[Path]) -> str:
    """` (mine.py, line 7)`: the innermost line of theirs that ran when the error came."""
    where, trace = "", error.__traceback__ if error is not None else None
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file in files or file.resolve() in files:
            where = f" ({file.name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return where


def defined_at(code: Any) -> str:
    """` (mine.py, line 7)`: where a function, or the forward of a module, begins."""
    while isinstance(code, functools.partial):
        code = code.func
    function = inspect.unwrap(getattr(type(code), "forward", code))
    made = getattr(function, "__code__", None)
    return "" if made is None else f" ({Path(made.co_filename).name}, line {made.co_firstlineno})"
