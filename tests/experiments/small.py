"""What the tests of experiments share: texts, interruptions, a pool, results without times."""

import random
import shutil
from contextlib import contextmanager, nullcontext

import pytest
import torch

from attnlab import json_files
from attnlab.experiments import costs, worker
from attnlab.experiments.experiment import carry_out
from attnlab.experiments.progress import Progress
from attnlab.experiments.workspace import Workspace, slug


@contextmanager
def quickly():
    """Models this small wait for a second thread longer than it helps; one reading of the memory
    will do, since each searches all of Python for garbage."""
    threads, peaks = torch.get_num_threads(), costs.PEAKS
    torch.set_num_threads(1)
    costs.PEAKS = 1
    yield
    torch.set_num_threads(threads)
    costs.PEAKS = peaks


class Stop(Exception):
    pass


class InProcess:
    """A pool that trains one after another in this process, which takes no seconds to start."""

    def concurrency(self, tasks):
        return 1

    def lasting(self):
        return nullcontext()

    def train(self, tasks, log, watch):
        return {task.name: worker.train(task.message()) for task in tasks}


class StopAfter(Progress):
    """Ends a study as a power cut would, after so many jobs."""

    def __init__(self, jobs):
        self.left = jobs

    def finished(self, job, seconds):
        self.left -= 1
        if self.left == 0:
            raise Stop


def english(path):
    """5,003 characters: the last sample of the held-out tenth is a shorter one."""
    words = ["the", "cat", "sat", "on", "a", "mat", "when", "it", "rains", "in", "spring"]
    path.write_text(" ".join(random.Random(0).choices(words, k=2000))[:5003])
    return str(path)


def random_letters(path, letters, count):
    path.write_text("".join(random.Random(0).choices(letters, k=count)))
    return str(path)


def finished_after(name, study, outcome, root, jobs):
    """The study as if it had ended after so many jobs, and again after one more; then finished."""
    folder = root / outcome.folder.name
    shutil.copytree(outcome.folder, folder)
    in_order = [job.name for job in study.jobs(Workspace(folder, Progress()))]
    for job in in_order[jobs:]:
        (folder / "parts" / f"{slug(job)}.json").unlink()
        shutil.rmtree(folder / "runs" / slug(job), ignore_errors=True)
    with pytest.raises(Stop):
        carry_out(name, study, root=root, progress=StopAfter(1))
    assert len(list((folder / "parts").iterdir())) == jobs + 1
    return carry_out(name, study, root=root, progress=Progress())


def results_by_job(folder):
    parts = [json_files.read_json(path) for path in (folder / "parts").glob("*.json")]
    return {part["name"]: part["result"] for part in parts}


def says_what_it_trains(study, folder):
    """Whether the jobs name every training that the finished study has made, and no other."""
    workspace = Workspace(folder, Progress())
    said = {slug(name) for job in study.jobs(workspace) for name, _ in job.trainings()}
    return said == {path.parent.name for path in folder.glob("runs/*/config.json")}


def without(results, *keys):
    return {key: value for key, value in results.items() if key not in keys}
