"""What a run remembers besides weights and optimiser, and its clock."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from attnlab import config
from attnlab.config import setting

CENTURY = 3.2e9  # seconds; with more of them, a float cannot tell a step from none
LARGEST_STEP = 10**12  # as in the name of a checkpoint


@dataclass
class State:
    """Saved as state.json of every checkpoint; what it may hold is checked when it is read."""

    step: int = setting(0, low=0, high=LARGEST_STEP, about="updates made")
    evaluated: int = setting(-1, low=-1, about="the step of the last evaluation")
    best_loss: float | None = setting(None, low=0, about="of all evaluations")
    best_step: int | None = setting(None, low=0, about="the step it was found at")
    worse: int = setting(0, low=0, high=LARGEST_STEP, about="evaluations since the best")
    seconds: float = setting(
        0.0, low=0, high=CENTURY, about="since the first step, over all processes of this run"
    )
    step_seconds: float = setting(
        0.0,
        low=0,
        high=CENTURY,
        about="of these, in steps: without evaluating, saving and sampling",
    )
    corpus: str = setting("", about="the fingerprint of the text; empty: of an older attnlab")

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "State":
        """A ConfigError for anything that no training of ours has written."""
        made = config.from_dict(cls, plain, "state")
        for field in fields(cls):
            config.check_value(cls, field.name, getattr(made, field.name))
        for name in ("evaluated", "best_step"):
            found = getattr(made, name)
            if found is not None and found > made.step:
                raise config.ConfigError(f"state.{name} is {found}, above its step {made.step}")
        return made


class Clock:
    """Seconds of a run, and those of them spent in steps."""

    def __init__(self, seconds: float, step_seconds: float) -> None:
        self._began = time.monotonic() - seconds
        self._aside = seconds - step_seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def step_seconds(self) -> float:
        """Never below zero, where rounding could take it."""
        return max(self.seconds - self._aside, 0.0)

    @contextmanager
    def aside(self) -> Iterator[None]:
        before = self.seconds
        try:
            yield
        finally:
            self._aside += self.seconds - before
