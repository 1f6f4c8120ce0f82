"""Runs as a list: what `attnlab runs` shows."""

import math
from pathlib import Path
from typing import Any

from attnlab.training import checkpoint, runs


def summaries(root: Path) -> list[dict[str, Any]]:
    """A row for every run, newest first; one that cannot be read says so and stops nothing."""
    return [_summary(run) for run in runs.all_in(root)]


def _summary(run: runs.Run) -> dict[str, Any]:
    metrics, evaluations = _with_loss(run, "metrics"), _with_loss(run, "eval")
    best = min(evaluations, key=lambda row: row["loss"], default=None)
    try:
        state, steps = run.state, run.recipe().steps
    except (ValueError, OSError):
        steps, state = 0, "unreadable"
    return {
        "run": run.folder.name,
        "state": state,
        "step": metrics[-1]["step"] if metrics else 0,
        "steps": steps,
        "loss": metrics[-1]["loss"] if metrics else None,
        "best_loss": best["loss"] if best else None,
        "best_step": best["step"] if best else None,
        "checkpoints": [folder.name for folder in checkpoint.all_in(run.checkpoints)],
    }


def _with_loss(run: runs.Run, name: str) -> list[dict[str, Any]]:
    """Rows as we write them; a log may have been edited, or be another program's."""
    try:
        rows = run.read(name)
    except OSError:
        return []
    return [row for row in rows if type(row.get("loss")) is float and math.isfinite(row["loss"])]
