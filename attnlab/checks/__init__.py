"""Promises proved the hard way: commands that try to break what the laboratory says."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Tick = Callable[[str], None]  # hears what is being done


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
