"""Worker processes: lost ones are replaced, and one that keeps dying stops no other."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from training.recipes import final_bits, small

from attnlab import json_files
from attnlab.experiments import local, pool, worker
from attnlab.experiments.local import LocalPool, WorkerProcess
from attnlab.experiments.pool import Interrupted, Task, steps_taken
from attnlab.training.runs import Run


def tasks(folder, count, *words):
    return [Task(f"t {n}", folder / f"t{n}", small(*words, f"seed={n}")) for n in range(count)]


def killed_once(folder, at):
    """Kills the process that trains there when it has taken so many steps."""
    run = Run(folder)
    while len(run.read("metrics")) < at:
        time.sleep(0.005)
    os.kill(json_files.read_json(folder / "manifest.json")["pid"], signal.SIGKILL)


def test_a_lost_process_is_replaced_and_its_training_goes_on(tmp_path):
    (task,) = tasks(tmp_path / "runs", 1, "steps=150", "save_every=25", "evaluate_every=150")
    threading.Thread(target=killed_once, args=(task.folder, 30), daemon=True).start()
    seen = []
    found = LocalPool(1).train(
        [task], tmp_path / "log.txt", lambda done, said: seen.append((done, said))
    )
    assert found == {"t 0": {"ending": "finished", "why": ""}}
    whole = Task("whole", tmp_path / "whole", task.recipe)
    worker.train(whole.message())
    assert final_bits(Run(task.folder)) == final_bits(Run(whole.folder))
    assert seen[0][1] == "0 of 1 trainings done" and max(done for done, _ in seen) > 0
    assert steps_taken([task]) == 150


class Dies(WorkerProcess):
    """A process that ends as soon as it is asked for anything."""

    def _start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", "input(); import os; os.kill(os.getpid(), 9)"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


def test_one_that_keeps_dying_is_given_up_and_the_rest_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "WorkerProcess", Dies)
    found = LocalPool(2).train(tasks(tmp_path, 3), tmp_path / "log.txt", lambda done, said: None)
    said = {"ending": "failed", "why": "its process ended by SIGKILL, 2 times"}
    assert found == {f"t {n}": said for n in range(3)}


class Waits(WorkerProcess):
    """A process that trains for ever, and ends when it is asked to."""

    def _start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


def test_a_signal_ends_all_of_them(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(local, "WorkerProcess", lambda log: made.append(Waits(log)) or made[-1])

    def watch(done, said):
        if all(one.process is not None for one in made):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(pool, "POLL", 0.01)
    with pytest.raises(Interrupted, match="SIGINT"):
        LocalPool(2).train(tasks(tmp_path, 3), tmp_path / "log.txt", watch)
    assert len(made) == 2 and all(one.process.poll() is not None for one in made)


def test_as_many_processes_as_cores_and_never_more_than_trainings():
    cores = len(os.sched_getaffinity(0))
    assert LocalPool().concurrency(1000) == cores and LocalPool().concurrency(1) == 1
    assert LocalPool(3).concurrency(1000) == 3 and LocalPool(3).concurrency(2) == 2


def test_a_gpu_has_one_training_at_a_time_unless_more_are_asked_for(monkeypatch):
    monkeypatch.setattr("attnlab.experiments.local.torch_device", lambda name: torch.device("cuda"))
    assert LocalPool().concurrency(1000) == 1
    assert LocalPool(12).concurrency(1000) == 12 and LocalPool(12).concurrency(2) == 2
