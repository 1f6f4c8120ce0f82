"""Trainings as tasks: what each asks for, and what becomes of one that was warned of its end.

On a real cluster: tests/test_cluster.py.
"""

from pathlib import Path

import pytest
import torch
from training.recipes import small

from attnlab.cluster import RETRIES, Calls, Lost, Session
from attnlab.experiments import on_ray
from attnlab.experiments.pool import Task


class Machines(Session):
    """What a cluster has."""

    def __init__(self, **resources):
        self.resources = resources

    def total(self, resource):
        return self.resources.get(resource, 0)

    def require(self, resource):
        assert self.total(resource)


def tasks(*words, count=3):
    return [Task(f"t {n}", Path("nowhere"), small(*words, f"seed={n}")) for n in range(count)]


@pytest.mark.parametrize(("processes", "share"), [(None, 1.0), (1, 1.0), (4, 0.25)])
def test_trainings_share_a_gpu_only_if_more_at_a_time_are_asked_for(monkeypatch, processes, share):
    monkeypatch.setattr(on_ray, "torch_device", lambda name: torch.device("cuda"))
    assert on_ray._share_of_gpu(Machines(GPU=8), tasks(), processes) == share


def test_gpus_of_a_cluster_are_not_passed_over_in_silence():
    """Here there is none, so that times in the report would be of another device."""
    assert on_ray._share_of_gpu(Machines(CPU=8), tasks("device=auto"), None) == 0
    assert on_ray._share_of_gpu(Machines(GPU=8), tasks("device=cpu"), None) == 0
    with pytest.raises(ValueError, match=r"start the command where there is one, or .*device=cpu"):
        on_ray._share_of_gpu(Machines(GPU=8), tasks("device=auto"), None)


class Answers(Calls):
    """Calls that are answered one after another, as is written down for each task."""

    def __init__(self, **by_name):
        self.by_name, self.given, self.most = by_name, [], 0

    @property
    def under_way(self):
        return len(self.given)

    def give(self, task, message):
        self.given.append(task)
        self.most = max(self.most, self.under_way)

    def ended(self, timeout=0.0):
        task = self.given.pop(0)
        yield task, self.by_name[task.name[-1:]].pop(0)


FINISHED = {"ending": "finished", "why": ""}


def test_a_training_that_was_warned_and_saved_is_given_to_another_worker():
    warned = {"ending": "SIGTERM", "why": ""}
    calls = Answers(
        **{
            "0": [warned, FINISHED],
            "1": [Lost("WorkerCrashedError: gone")],
            "2": [warned] * (RETRIES + 1),
        }
    )
    said = []
    endings = on_ray._train(calls, tasks(), 2, lambda steps, words: said.append(words))
    assert endings == {
        "t 0": FINISHED,
        "t 1": {"ending": "failed", "why": "WorkerCrashedError: gone"},
        "t 2": warned,
    }
    assert calls.most == 2 and said[-1] == "3 of 3 trainings done"
