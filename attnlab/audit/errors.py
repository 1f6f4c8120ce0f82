"""Errors of the code under audit, and our own: only the first are findings.

Whatever calls a person's code does so inside `calling`, which turns what the code raises into a
`SubjectError`. Any other error is a mistake of ours, and ends the audit.
"""

from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 200  # letters of a message in a sentence


class SubjectError(ValueError):
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


class AuditError(Exception):
    """A mistake of attnlab itself, not of the code under audit."""


@contextmanager
def calling(where: str, length: int | None = None) -> Iterator[None]:
    """Around a call of the person's code and nothing else."""
    try:
        yield
    except SubjectError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise SubjectError(str(error), kind=kind, where=where, length=length) from error
