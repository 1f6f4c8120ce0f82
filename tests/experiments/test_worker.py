"""One training in a worker: how it ended is said in words, and nothing is done twice."""

import dataclasses
import fcntl
import threading

import pytest
from training.recipes import final_bits, small

from attnlab import files, json_files
from attnlab.experiments import worker
from attnlab.experiments.pool import Task
from attnlab.training import launch
from attnlab.training.checkpoint import NotFinite
from attnlab.training.report import Report
from attnlab.training.runs import Run


@pytest.fixture
def task(tmp_path):
    return Task("t", tmp_path / "runs" / "t", small())


def test_a_task_trains_to_the_same_bits_as_a_run(task, tmp_path):
    assert worker.train(task.message()) == {"ending": "finished", "why": ""}
    alone = Run(tmp_path / "alone")
    launch.train_in(alone, task.recipe, report=Report())
    assert final_bits(Run(task.folder)) == final_bits(alone)


def test_what_is_finished_or_has_diverged_is_not_trained_again(task, tmp_path, monkeypatch):
    worker.train(task.message())
    monkeypatch.setattr(launch, "train_in", lambda *a, **k: pytest.fail("trained again"))
    assert worker.train(task.message())["ending"] == "finished"
    other = dataclasses.replace(task, folder=tmp_path / "other")
    other.folder.mkdir()
    said = {"ending": "diverged", "why": "step 3"}
    files.write_whole(other.folder / "diverged.json", json_files.sealed_json(said))
    assert worker.train(other.message()) == said


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"ending": "diverged", "why": "step 3"}', json_files.sealed_json({})]
)
def test_an_ending_that_is_damaged_is_said_and_the_training_goes_on(task, capsys, content):
    task.folder.mkdir(parents=True)
    (task.folder / "diverged.json").write_bytes(content)
    assert worker.train(task.message()) == {"ending": "finished", "why": ""}
    said = [line for line in capsys.readouterr().err.splitlines() if "diverged.json" in line]
    assert len(said) == 1 and said[0].endswith("; training it again")


def test_what_diverges_is_kept_with_a_hash(task, monkeypatch):
    def diverging(*args, **options):
        raise NotFinite("step 3: loss nan; stopped")

    task.folder.mkdir(parents=True)
    monkeypatch.setattr(launch, "train_in", diverging)
    first = worker.train(task.message())
    assert first == {"ending": "diverged", "why": "step 3: loss nan"}
    monkeypatch.setattr(launch, "train_in", lambda *a, **k: pytest.fail("trained again"))
    assert worker.train(task.message()) == first


def test_what_cannot_be_trained_has_failed_with_a_reason(task, monkeypatch, capsys):
    def broken(*args, **options):
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr(launch, "train_in", broken)
    found = worker.train(task.message())
    assert found == {"ending": "failed", "why": "RuntimeError: out of luck"}
    assert "Traceback" in capsys.readouterr().err, "the log of the training says where"


def test_it_waits_for_a_process_that_still_has_the_run(task):
    task.folder.mkdir(parents=True)
    held = (task.folder / "lock").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    threading.Timer(0.3, held.close).start()
    assert worker.train(task.message())["ending"] == "finished"
