"""One training in a worker process: `python -m attnlab.experiments.worker`.

A line of JSON on stdin is a task, and a line on stdout says how it ended. When stdin closes during
a training, the parent is gone: the worker stops as after SIGTERM, with everything saved.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO

import torch

from attnlab import config, files, json_files
from attnlab.code import consent
from attnlab.code.own import own_parts
from attnlab.experiments import held, reuse
from attnlab.experiments.pool import Ending, Message
from attnlab.printable import one_line
from attnlab.training import launch, runs
from attnlab.training.checkpoint import NotFinite
from attnlab.training.parallel import torch_device
from attnlab.training.recipe import Recipe
from attnlab.training.report import Report

PATIENCE = 60.0  # seconds until a stopped process has released its run


def train(message: Message) -> Ending:
    """Train or resume; how it ended ("finished", "diverged", "failed", a signal), and why."""
    run, text = runs.Run(Path(message["folder"])), message.get("text", "")
    by_stretch = message.get("held", True)
    diverged = run.folder / "diverged.json"
    mended = list[str]()

    def mend(line: str) -> None:
        mended.append(line)
        _note(line)

    try:
        recipe = config.from_dict(Recipe, message["recipe"])
        for one in own_parts(recipe):
            consent.allow(one.code)  # a task is from the person's own process
        if torch_device(recipe.device).type == "cpu":
            torch.set_num_threads(1)  # results do not depend on how many trainings share the cores
        _wait_for(run)
        reuse.set_aside_other(run, recipe, text, mend)
        known = _read(diverged)
        if known is not None:
            return known
        if not reuse.is_done(run, mend):
            report = held.Recorder(run) if by_stretch else Report()
            result = launch.train_in(run, recipe, report=report, text=text)
            held.forget(run)  # measured on weights that are others by now
            if result.ending.startswith("SIG"):
                return {"ending": result.ending, "why": ""}
        if by_stretch:
            held.measure(run, _note)
    except NotFinite as error:
        # without the part that depends on where it was stopped before
        ending: Ending = {"ending": "diverged", "why": str(error).partition(";")[0]}
        files.write_whole(diverged, json_files.sealed_json({**ending}))
        return ending
    except Exception as error:  # the report names it, the others continue
        traceback.print_exc()  # stderr is the log of this training
        return {"ending": "failed", "why": f"{type(error).__name__}: {one_line(error, 300)}"}
    return {"ending": "finished", "why": "; ".join(mended)}


def _read(path: Path) -> Ending | None:
    """How a training ended that has diverged; None if it has not, or the file is damaged."""
    try:
        kept = json_files.in_shape(json_files.read_sealed(path), {"ending": str, "why": str}, path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _note(f"{getattr(error, 'strerror', None) or error}; training it again")
        return None
    return {"ending": kept["ending"], "why": kept["why"]}


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # the log of this training


def _wait_for(run: runs.Run) -> None:
    """The process that had the run before may still be saving."""
    until = time.monotonic() + PATIENCE
    while run.busy and time.monotonic() < until:
        time.sleep(0.1)


def main() -> None:
    """Run tasks until stdin closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed must not look like an answer
    tasks: queue.Queue[str | None] = queue.Queue()
    training = threading.Event()
    threading.Thread(target=_listen, args=(sys.stdin, tasks, training), daemon=True).start()
    while (line := tasks.get()) is not None:
        training.set()
        ending = train(json.loads(line))
        training.clear()
        try:
            print(json.dumps(ending), file=answers, flush=True)
        except OSError:  # the parent is gone
            os._exit(1)


def _listen(lines: IO[str], tasks: "queue.Queue[str | None]", training: threading.Event) -> None:
    for line in lines:
        tasks.put(line)
    tasks.put(None)
    training.wait()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
