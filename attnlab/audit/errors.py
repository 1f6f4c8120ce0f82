"""Errors of the code under audit, of a person's input, and our own.

| class | raised when | becomes |
|---|---|---|
| SubjectError | the code under audit raised, or gave no outputs | a finding, "incomplete" |
| InputError | a file, an option or a declaration cannot be used | one line, exit code 2 |
| OutOfMemory | memory ran out while the code ran: its limit is ours | no certificate |
| ScriptError | a script has no words for how the code is called | a failure without a script |
| any other | attnlab itself has a mistake | a traceback, exit code 3 |

Whatever calls a person's code does so inside `calling`, which raises the SubjectError. A handler
names these classes, and never a built-in one: a ValueError of ours must not be blamed on a person.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from attnlab.code.places import InputError as InputError
from attnlab.memory import ran_out

LONGEST = 200  # letters of a message in a sentence


class SubjectError(Exception):
    """The code under audit raised, or gave something that cannot be its outputs."""

    def __init__(
        self, message: str, *, kind: str = "", where: str = "", length: int | None = None
    ) -> None:
        self.message = " ".join(message.split())
        self.kind = kind  # the type that was raised; empty if nothing was
        self.where, self.length = where, length
        super().__init__(self.sentence())

    @property
    def reason(self) -> str:
        """What was raised, without where: `KeyError: 'x'`."""
        return f"{self.kind}: {self.message}" if self.kind else self.message

    def sentence(self, during: str = "") -> str:
        """raised KeyError in `forward` at length 23, during positions: 'x'"""
        message = self.message[:LONGEST]
        if not self.kind:
            return f"{message} (during {during})" if during else message
        place = f" in `{self.where}`" if self.where else ""
        place += f" at length {self.length}" if self.length is not None else ""
        place += f", during {during}" if during else ""
        return f"raised {self.kind}{place}: {message}"


class ScriptError(Exception):
    """A script without this package cannot call the code as the audit did."""


class OutOfMemory(MemoryError):
    """Memory ran out while the code ran. How much there is, is our limit and not its fault."""


class AuditError(Exception):
    """A mistake of attnlab itself, not of the code under audit."""


@contextmanager
def calling(where: str, length: int | None = None) -> Iterator[None]:
    """Around a call of the person's code and nothing else."""
    try:
        yield
    except (SubjectError, OutOfMemory):
        raise
    except Exception as error:  # whatever their code raises
        if ran_out(error):
            at = "" if length is None else f" at length {length}"
            raise OutOfMemory(f"in `{where}`{at}: {error}") from error
        kind = type(error).__name__
        raise SubjectError(str(error), kind=kind, where=where, length=length) from error
