"""Runs as a list: what `attnlab runs` shows."""

from pathlib import Path
from typing import Any

from attnlab.training import checkpoint, runs


def summaries(root: Path) -> list[dict[str, Any]]:
    """A row for every run, newest first; one that cannot be read says so and stops nothing."""
    return [_summary(run) for run in runs.all_in(root)]


def _summary(run: runs.Run) -> dict[str, Any]:
    metrics, evaluations = run.read("metrics"), run.read("eval")
    best = min(evaluations, key=lambda row: row["loss"], default=None)
    state = "running" if run.busy else "finished" if run.finished else "stopped"
    try:
        steps = run.recipe().steps
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
