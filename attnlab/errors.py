"""What goes wrong and a person can mend, as one line: said by commands, raised to Python code.

A notebook shows the line alone: these exceptions ask IPython for no traceback.
"""

from attnlab.memory import ran_out
from attnlab.printable import one_line, printable

MENDABLE = (ValueError, OSError, MemoryError, RuntimeError)  # what `explain` may have a line for
MEMORY = "memory ran out; use a smaller batch, context or model, or a larger accumulate"


class _OneLine:
    def _render_traceback_(self) -> list[str]:
        """What IPython shows of an exception that has this method."""
        lines = [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", [])]
        return [printable(line) for line in lines]


class Error(_OneLine, Exception):
    """What a call of this package cannot do, in the words of the command line."""


class Interrupt(_OneLine, KeyboardInterrupt):
    """A call was stopped by Ctrl-C, or by the stop button of a notebook; says how to go on."""


def explain(error: BaseException) -> str | None:
    """The line for an error that a person can mend; None for any other, which is ours."""
    if isinstance(error, ValueError | OSError):
        return one_line(error)
    return MEMORY if isinstance(error, MemoryError | RuntimeError) and ran_out(error) else None
