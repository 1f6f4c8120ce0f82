"""Studies and comparisons on the page: how many of their parts are done, and whether one runs."""

import json
from pathlib import Path
from typing import Any

from attnlab.experiments.workspace import JOBS
from attnlab.page.runs import MOST_FILE, plain_content
from attnlab.printable import distinct
from attnlab.training import runs

KINDS = ("compare", "study")
MOST = 500  # experiments, and parts of one


class Experiments:
    """The experiments of a folder, each a folder with runs inside."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def list_all(self) -> list[dict[str, Any]]:
        """The newest first."""
        found = [
            one.parent
            for kind in KINDS
            for one in self.root.glob(f"{kind}-*/parts")
            if not one.is_symlink() and not one.parent.is_symlink()
        ]
        every = sorted(found, key=_changed, reverse=True)
        return [_summary(folder) for folder in every[:MOST]]


def _summary(folder: Path) -> dict[str, Any]:
    jobs = _jobs(folder)
    done = {one.stem for one in (folder / "parts").glob("*.json")}
    return {
        "name": distinct(folder.name),
        "kind": folder.name.partition("-")[0],
        "state": _state(folder),
        "done": len(done if jobs is None else done & {*jobs}),
        "parts": None if jobs is None else len(jobs),
        "next": None if jobs is None else next((one for one in jobs if one not in done), None),
        "report": (folder / "report.html").is_file(),
    }


def _jobs(folder: Path) -> list[str] | None:
    """The names of its parts; None of an experiment that an older attnlab has carried out."""
    content = plain_content(folder / JOBS, MOST_FILE)
    try:
        found = None if content is None else json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        return None
    return [distinct(one)[:80] for one in found[:MOST]]


def _state(folder: Path) -> str:
    try:
        busy = runs.Run(folder).busy
    except OSError:
        return "unreadable"
    return "running" if busy else "finished" if (folder / "report.html").is_file() else "stopped"


def _changed(folder: Path) -> float:
    try:
        return (folder / "parts").stat().st_mtime
    except OSError:
        return 0.0
