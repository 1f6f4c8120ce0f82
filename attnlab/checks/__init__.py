"""Promises proved the hard way: commands that try to break what the laboratory says."""

from collections.abc import Callable

Tick = Callable[[str], None]  # hears what is being done
