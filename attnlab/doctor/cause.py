"""What a cause is: a way to propose what makes A do as B does."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from attnlab import registry
from attnlab.doctor.case import Case, Change


class Cause(ABC):
    """One class of difference; it has no settings, and a row under "cause" in the registry.

    `propose` yields changes, the likeliest first, with values measured on A and B. It need not be
    sure: only what makes the outputs equal is named. What A and B have alike it does not propose.
    """

    @abstractmethod
    def propose(self, case: Case) -> Iterator[Change]: ...

    def change(self, a: str, b: str, **more: Any) -> Change:
        return Change(cause=registry.name_of("cause", self), a=a, b=b, **more)


def all_causes() -> list[Cause]:
    """In the order of the registry, in which changes are applied."""
    return [registry.load("cause", one.name)() for one in registry.options("cause")]
