"""What a property is: a name, the field of the contract it is about, and an examination."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from attnlab.audit.contract import Finding, Verdict
from attnlab.audit.probe.probe import Probe


@dataclass(frozen=True)
class Property(ABC):
    name: ClassVar[str]
    field: ClassVar[str | None] = None  # of the contract

    @abstractmethod
    def examine(self, probe: Probe) -> Finding: ...

    def tolerance(self, probe: Probe) -> float:
        """What it calls equal; too coarse a one is no reason to pass."""
        return probe.tolerance

    def finding(self, verdict: Verdict, detail: str, **facts: Any) -> Finding:
        return Finding(name=self.name, verdict=verdict, detail=detail, **facts)

    def declared(self, probe: Probe) -> Any:
        return getattr(probe.contract, self.field) if self.field else None


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


def unsteady(probe: Probe) -> str | None:
    """Why nothing can be said of code that answers differently every time."""
    if probe.steady:
        return None
    return f"two identical calls differ by {probe.noise:.1e}: the code is not deterministic"
