"""One training in a process of its own: `python -m attnlab.compare.work`, told what by lines.

A line of JSON on its input is a task, and a line on its output is how it ended. When the input
ends while it trains, whoever asked is gone: it stops as if asked to, and everything is saved.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from attnlab import config, files
from attnlab.compare import held
from attnlab.training import launch, runs
from attnlab.training.loop import NotFinite
from attnlab.training.parallel import place_of
from attnlab.training.recipe import Recipe
from attnlab.training.report import Report

PATIENCE = 60.0  # seconds until a process that was stopped has let go of its run


@dataclass(frozen=True)
class Task:
    """A training, and the folder of its run."""

    name: str
    folder: Path
    recipe: Recipe

    def plain(self) -> dict[str, Any]:
        """For another process, which may stand elsewhere."""
        folder = str(self.folder.absolute())
        return {"folder": folder, "recipe": config.to_dict(self.recipe), "from": str(Path.cwd())}


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Train, or go on; how it ended ("finished", "diverged", "failed", a signal), and why."""
    os.chdir(task["from"])
    run = runs.Run(Path(task["folder"]))
    known = run.folder / "diverged.json"
    if known.exists():
        return dict(files.read_json(known))
    try:
        recipe = config.from_dict(Recipe, task["recipe"])
        if place_of(recipe.device).type == "cpu":
            torch.set_num_threads(1)  # what others do on this machine changes no bit
        _wait_for(run)
        if not run.finished:
            result = launch.train_in(run, recipe, report=Report())
            if result.ending.startswith("SIG"):
                return {"ending": result.ending, "why": ""}
        held.measured(run)
    except NotFinite as error:
        # without what depends on where it was stopped before
        outcome = {"ending": "diverged", "why": str(error).partition(";")[0]}
        files.write_whole(known, files.as_json(outcome))
        return outcome
    except Exception as error:
        why = " ".join(str(error).split())[:300]
        return {"ending": "failed", "why": f"{type(error).__name__}: {why}"}
    return {"ending": "finished", "why": ""}


def _wait_for(run: runs.Run) -> None:
    """The process that had the run before may still be saving."""
    until = time.monotonic() + PATIENCE
    while run.busy and time.monotonic() < until:
        time.sleep(0.1)


def main() -> None:
    """Take tasks until there are none."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints must not be taken for an answer
    tasks: queue.Queue[str | None] = queue.Queue()
    training = threading.Event()
    threading.Thread(target=_listen, args=(sys.stdin, tasks, training), daemon=True).start()
    while (line := tasks.get()) is not None:
        training.set()
        outcome = train(json.loads(line))
        training.clear()
        try:
            print(json.dumps(outcome), file=answers, flush=True)
        except OSError:  # nobody listens any more
            os._exit(1)


def _listen(told: IO[str], tasks: "queue.Queue[str | None]", training: threading.Event) -> None:
    for line in told:
        tasks.put(line)
    tasks.put(None)
    training.wait()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
