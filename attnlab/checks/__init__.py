"""Promises proved the hard way: commands that try to break what the laboratory says."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Tick = Callable[[str], None]  # hears what is being done


class Stopped(KeyboardInterrupt):
    """A person has stopped a check or a benchmark: how far it was, and what it had found."""

    def __init__(self, done: str, found: Mapping[str, Any]) -> None:
        super().__init__(done)
        self.done, self.found = done, found


@contextmanager
def stoppable(done: Callable[[], str], found: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Work that a person may stop: what was found until then goes along with the interrupt.

    Of one within another, the outer one tells.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(done(), found()) from None


def lines(report: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A report as a table: what there are several of, one below the other."""
    widest = max((len(key) for key in report), default=0)
    for key, value in report.items():
        name = f"{indent}{key.replace('_', ' '):{widest}}"
        if isinstance(value, dict) and value:
            yield name.rstrip()
            yield from lines(value, f"{indent}  ")
        elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
            yield name.rstrip()
            for one in value:
                yield from lines(one, f"{indent}  ")
        elif isinstance(value, list | dict):
            yield f"{name}  {', '.join(map(str, value)) or 'none'}"
        else:
            yield f"{name}  {f'{value:.4g}' if isinstance(value, float) else value}"
