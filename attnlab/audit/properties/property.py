"""What a property is: a name, the field of the contract it is about, and an examination."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from attnlab.audit.bench import Bench
from attnlab.audit.contract import Finding, Verdict


@dataclass(frozen=True)
class Property(ABC):
    name: ClassVar[str]
    field: ClassVar[str | None] = None  # of the contract

    @abstractmethod
    def examine(self, bench: Bench) -> Finding: ...

    def tolerance(self, bench: Bench) -> float:
        """What it calls equal; too coarse a one is no reason to pass."""
        return bench.tolerance

    def finding(self, verdict: Verdict, detail: str, **facts: Any) -> Finding:
        return Finding(name=self.name, verdict=verdict, detail=detail, **facts)

    def declared(self, bench: Bench) -> Any:
        return getattr(bench.contract, self.field) if self.field else None


@dataclass(frozen=True)
class Moved:
    """An output that moved when it should not have, or differs from what it should be."""

    length: int
    output: int
    inputs: tuple[int, ...]  # that were changed
    size: float

    def plain(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "output": self.output,
            "inputs": list(self.inputs),
            "size": self.size if self.size < float("inf") else None,
        }


def unsteady(bench: Bench) -> str | None:
    """Why nothing can be said of code that answers differently every time."""
    if bench.steady:
        return None
    return f"two identical calls differ by {bench.noise:.1e}: the code is not deterministic"
