"""A workspace: every job runs once, whatever happens in between."""

import dataclasses
import signal

import pytest
from experiments.small import InProcess
from training.recipes import final_bits, small

from attnlab import json_files
from attnlab.experiments.pool import Interrupted
from attnlab.experiments.progress import Progress
from attnlab.experiments.workspace import Job, Workspace, open_workspace, slug
from attnlab.training import launch
from attnlab.training.loop import Result


@pytest.fixture
def workspace(tmp_path):
    return open_workspace(tmp_path, "test", "abc", Progress(), again=False)


def counting(name, calls, result=None, seconds=lambda: 1.0):
    def work():
        calls.append(name)
        return {"name": name} if result is None else result

    return Job(name, work, seconds)


def test_a_job_is_done_once_and_its_result_kept(workspace):
    calls = []
    jobs = [counting("one", calls), counting("Two, seed 3", calls)]
    first = workspace.run_jobs(jobs)
    assert first == {"one": {"name": "one"}, "Two, seed 3": {"name": "Two, seed 3"}}
    assert workspace.run_jobs(jobs) == first and calls == ["one", "Two, seed 3"]


def test_what_breaks_is_done_again_and_the_rest_is_not(workspace):
    calls = []

    def broken():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        workspace.run_jobs([counting("one", calls), Job("two", broken)])
    assert workspace.run_jobs([counting("one", calls), counting("two", calls)])["two"] == {
        "name": "two"
    }
    assert calls == ["one", "two"]


class Notes(Progress):
    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


@pytest.mark.parametrize(
    "harm",
    [
        lambda good: b"",
        lambda good: good[: len(good) // 2],
        lambda good: good.replace(b"41", b"42"),  # JSON still, and wrong
        lambda good: good + b" ",
        lambda good: b"[]",
        lambda good: b"[" * 100_000,
        lambda good: b"\xff" + good,
        lambda good: good.replace(b'"sha256"', b'"sha257"'),
        lambda good: b'{"name": "one", "seconds": 1.0, "result": 42}',  # of another version
        lambda good: json_files.sealed_json({"name": "one", "result": 42}),
    ],
)
def test_a_damaged_result_is_said_and_computed_again(tmp_path, harm):
    notes, calls = Notes(), []
    workspace = open_workspace(tmp_path, "test", "abc", notes, again=False)
    jobs = [counting("one", calls, 41), counting("two", calls)]
    first = workspace.run_jobs(jobs)
    part = workspace.folder / "parts" / "one.json"
    part.write_bytes(harm(part.read_bytes()))
    notes.lines.clear()
    assert workspace.seconds() > 0
    assert workspace.run_jobs(jobs) == first and calls == ["one", "two", "one"]
    said = [line for line in notes.lines if str(part) in line]
    assert said and all("computing it again" in line for line in said)
    assert workspace.run_jobs(jobs) == first and len(calls) == 3


def test_a_result_that_is_a_link_is_replaced(workspace, tmp_path):
    elsewhere, calls = tmp_path / "elsewhere", []
    workspace.run_jobs([counting("one", calls)])
    part = workspace.folder / "parts" / "one.json"
    part.rename(elsewhere)
    part.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    workspace.run_jobs([counting("one", calls)])
    assert calls == ["one", "one"] and not part.is_symlink() and elsewhere.read_bytes() == before


def test_a_result_under_the_name_of_another_job_is_not_used(workspace):
    calls = []
    workspace.run_jobs([counting("one", calls), counting("two", calls)])
    parts = workspace.folder / "parts"
    (parts / "one.json").replace(parts / "two.json")
    found = workspace.run_jobs([counting("one", calls), counting("two", calls)])
    assert found == {"one": {"name": "one"}, "two": {"name": "two"}}


def test_what_was_made_of_a_result_that_is_lost_is_made_again(tmp_path):
    """Where that comes out another each time; also if the command is stopped in between."""
    notes, calls, left = Notes(), [], ["stop"]
    workspace = open_workspace(tmp_path, "test", "abc", notes, again=False)

    def after():
        if len(calls) == 4 and left:
            raise RuntimeError(left.pop())
        calls.append("after")

    jobs = [
        counting("before", calls),
        dataclasses.replace(counting("measure", calls), renews=True),
        Job("after", after),
    ]
    workspace.run_jobs(jobs)
    workspace.run_jobs(jobs)
    assert calls == ["before", "measure", "after"], "nothing is done twice"
    (workspace.folder / "parts" / "measure.json").unlink()
    with pytest.raises(RuntimeError, match="stop"):
        workspace.run_jobs(jobs)
    workspace.run_jobs(jobs)
    assert calls == ["before", "measure", "after", "measure", "after"]
    assert "measure is lost, and after was made of it: done again" in notes.lines


def test_time_is_asked_for_only_of_what_is_not_done(workspace):
    def never():
        raise AssertionError("asked")

    workspace.run_jobs([counting("one", [])])
    workspace.run_jobs([counting("one", [], seconds=never)])


def test_seconds_are_those_of_all_parts(workspace):
    assert workspace.seconds() == 0
    workspace.run_jobs([counting("one", [])])
    assert 0 < workspace.seconds() < 5


def test_the_same_study_finds_its_folder_and_again_makes_another(tmp_path):
    def folder(identity, again=False):
        return open_workspace(tmp_path, "x", identity, Progress(), again).folder.name

    assert folder("aa") == folder("aa") == "study-x-aa"
    assert folder("bb") == "study-x-bb"
    assert folder("aa", again=True) == "study-x-aa-2"
    assert folder("aa") == "study-x-aa-2"
    assert folder("aa", again=True) == "study-x-aa-3"


def test_a_place_where_nothing_can_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="no study can be made in"):
        open_workspace(tmp_path / "file", "x", "aa", Progress(), again=False)


def test_names_become_file_names():
    assert slug("Pretrain by-head, seed 0") == "pretrain-by-head-seed-0"
    assert slug("../a/b") == "..-a-b"


def test_two_jobs_of_one_name_are_a_mistake(workspace):
    with pytest.raises(AssertionError, match="share a name"):
        workspace.run_jobs([counting("a b", []), counting("a-b", [])])


def test_a_training_that_was_stopped_goes_on_to_the_same_bits(workspace, tmp_path, monkeypatch):
    whole = Workspace(tmp_path / "whole", Progress())
    want = final_bits(whole.train("t", small()))

    real = launch._train

    def stopped(setup, run, world, report, begin):
        class Raises(type(report)):
            def stepped(self, step, loss, rate):
                if step == 6:
                    signal.raise_signal(signal.SIGTERM)

        return real(setup, run, world, Raises(), begin)

    monkeypatch.setattr(launch, "_train", stopped)
    with pytest.raises(Interrupted, match="SIGTERM"):
        workspace.train("t", small())
    monkeypatch.setattr(launch, "_train", real)
    assert not workspace.run_of("t").finished
    assert final_bits(workspace.train("t", small())) == want


def test_a_training_that_is_finished_is_not_begun(workspace, monkeypatch):
    run = workspace.train("t", small())
    monkeypatch.setattr(launch, "train_in", lambda *a, **k: pytest.fail("trained again"))
    assert workspace.train("t", small()).folder == run.folder


def test_only_a_signal_interrupts(workspace, monkeypatch):
    def early(run, recipe, report):
        return Result("stopped early", 3, 1.0, 1.0, 3, 1.0, 1.0)

    monkeypatch.setattr(launch, "train_in", early)
    workspace.train("t", small())


class Waves(InProcess):
    """Remembers what was trained together."""

    def __init__(self):
        self.waves = []

    def train(self, tasks, log, watch):
        self.waves.append([task.name for task in tasks])
        return super().train(tasks, log, watch)


def chained(workspace, pool):
    """A training, one that starts from it, and one whose length is known after the first job."""
    folder = workspace.run_of("first").folder
    made = {
        "first": small("steps=4"),
        "second": small("steps=4", f"start={folder}"),
        "third": small("steps=4", "seed=3"),
    }

    def trains(name):
        return lambda: [(name, made[name])] if name != "third" or workspace.has("count") else []

    def work(name):
        return lambda: workspace.train(name, made[name]).result()["loss"]

    jobs = [Job("count", lambda: 3)]
    jobs += [Job(name, work(name), trainings=trains(name)) for name in made]
    return dataclasses.replace(workspace, pool=pool).run_jobs(jobs)


def test_a_pool_trains_ahead_and_what_starts_from_a_training_waits(workspace, tmp_path):
    pool = Waves()
    found = chained(workspace, pool)
    assert pool.waves == [["first", "third"], ["second"]]
    assert not (workspace.run_of("first").folder / "held.json").exists()  # nobody asked for it
    alone = open_workspace(tmp_path, "alone", "abc", Progress(), again=False)
    assert chained(alone, None) == found
    for name in ("first", "second", "third"):
        assert final_bits(workspace.run_of(name)) == final_bits(alone.run_of(name))
    assert chained(workspace, pool) == found and len(pool.waves) == 2


def test_a_training_that_fails_in_a_pool_is_one_line_and_the_others_are_kept(workspace):
    class Failing(Waves):
        def train(self, tasks, log, watch):
            endings = super().train(tasks, log, watch)
            return {**endings, "first": {"ending": "failed", "why": "KeyError: ours"}}

    with pytest.raises(ValueError, match=r"first failed: KeyError: ours; .*log\.txt says more"):
        chained(workspace, Failing())
    pool = Waves()
    chained(workspace, pool)
    assert pool.waves == [["second"]]  # the others were finished
