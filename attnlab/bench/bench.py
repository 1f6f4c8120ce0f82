"""What a benchmark is: settings that measure, show what they found, and judge it."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from rich.console import Console


@runtime_checkable
class Bench(Protocol):
    """What `bench` in the registry names. A report is plain JSON."""

    def run(self, tick: Callable[[str], None] = ...) -> dict[str, Any]:
        """Measure; `tick(what)` says what is being measured."""
        ...

    def show(self, report: dict[str, Any], screen: Console) -> None: ...
    def passed(self, report: dict[str, Any]) -> bool:
        """Whether the numbers were right; how fast they came decides nothing."""
        ...
