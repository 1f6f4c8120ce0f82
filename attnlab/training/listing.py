"""Runs as a list: what `attnlab runs` shows. Needs no torch, which would take longer to import."""

from pathlib import Path
from typing import Any

from attnlab import json_files
from attnlab.training import checkpoint, logs, runs


def summaries(root: Path) -> list[dict[str, Any]]:
    """A row for every run, newest first; one that cannot be read says so and stops nothing."""
    return [_summary(run) for run in runs.all_in(root)]


def _summary(run: runs.Run) -> dict[str, Any]:
    metrics, evaluations = _read(run, "metrics"), _read(run, "eval")
    best = min(evaluations.rows, key=lambda row: row["loss"], default=None)
    last = metrics.rows[-1] if metrics.rows else None
    try:
        state, steps = run.state, _steps(run)
    except (ValueError, OSError):
        steps, state = 0, "unreadable"
    return {
        "run": run.folder.name,
        "state": state,
        "step": last["step"] if last else 0,
        "steps": steps,
        "loss": last["loss"] if last else None,
        "best_loss": best["loss"] if best else None,
        "best_step": best["step"] if best else None,
        "checkpoints": [folder.name for folder in checkpoint.all_in(run.checkpoints)],
        "damaged": [said for log in (metrics, evaluations) if (said := log.complaint())],
    }


def _steps(run: runs.Run) -> int:
    plain, path = run.settings()
    found: int = json_files.in_shape(plain, {"steps": int}, path)["steps"]
    return found


def _read(run: runs.Run, name: str) -> logs.Log:
    path = run.log(name)
    try:
        return logs.read(path)
    except OSError:
        return logs.Log(path, [], [])
