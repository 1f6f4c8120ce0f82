"""A desk: every job is done once, whatever happens in between."""

import io
import signal

import pytest
from rich.console import Console
from training.recipes import final_bits, small

from attnlab.studies import desk as desks
from attnlab.studies.desk import Desk, Interrupted, Job, open_desk, slug, training_seconds
from attnlab.studies.progress import Progress, Terminal
from attnlab.training import launch
from attnlab.training.loop import Result


@pytest.fixture
def desk(tmp_path):
    return open_desk(tmp_path, "test", "abc", Progress(), again=False)


def counting(name, calls, result=None, seconds=lambda: 1.0):
    def work():
        calls.append(name)
        return {"name": name} if result is None else result

    return Job(name, work, seconds)


def test_a_job_is_done_once_and_its_result_kept(desk):
    calls = []
    jobs = [counting("one", calls), counting("Two, seed 3", calls)]
    first = desk.do(jobs)
    assert first == {"one": {"name": "one"}, "Two, seed 3": {"name": "Two, seed 3"}}
    assert desk.do(jobs) == first and calls == ["one", "Two, seed 3"]


def test_what_breaks_is_done_again_and_the_rest_is_not(desk):
    calls = []

    def broken():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        desk.do([counting("one", calls), Job("two", broken)])
    assert desk.do([counting("one", calls), counting("two", calls)])["two"] == {"name": "two"}
    assert calls == ["one", "two"]


def test_time_is_asked_for_only_of_what_is_not_done(desk):
    def never():
        raise AssertionError("asked")

    desk.do([counting("one", [])])
    desk.do([counting("one", [], seconds=never)])


def test_seconds_are_those_of_all_parts(desk):
    assert desk.seconds() == 0
    desk.do([counting("one", [])])
    assert 0 < desk.seconds() < 5


def test_the_same_study_finds_its_folder_and_again_makes_another(tmp_path):
    def folder(identity, again=False):
        return open_desk(tmp_path, "x", identity, Progress(), again).folder.name

    assert folder("aa") == folder("aa") == "study-x-aa"
    assert folder("bb") == "study-x-bb"
    assert folder("aa", again=True) == "study-x-aa-2"
    assert folder("aa") == "study-x-aa-2"
    assert folder("aa", again=True) == "study-x-aa-3"


def test_a_place_where_nothing_can_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="no study can be made in"):
        open_desk(tmp_path / "file", "x", "aa", Progress(), again=False)


def test_names_become_file_names():
    assert slug("Pretrain by-head, seed 0") == "pretrain-by-head-seed-0"
    assert slug("../a/b") == "..-a-b"


def test_two_jobs_of_one_name_are_a_mistake(desk):
    with pytest.raises(AssertionError, match="share a name"):
        desk.do([counting("a b", []), counting("a-b", [])])


def test_a_training_that_was_stopped_goes_on_to_the_same_bits(desk, tmp_path, monkeypatch):
    whole = Desk(tmp_path / "whole", Progress())
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
        desk.train("t", small())
    monkeypatch.setattr(launch, "_train", real)
    assert not desk.run("t").finished
    assert final_bits(desk.train("t", small())) == want


def test_a_training_that_is_finished_is_not_begun(desk, monkeypatch):
    run = desk.train("t", small())
    monkeypatch.setattr(launch, "train_in", lambda *a, **k: pytest.fail("trained again"))
    assert desk.train("t", small()).folder == run.folder


def test_only_a_signal_interrupts(desk, monkeypatch):
    def early(run, recipe, report):
        return Result("stopped early", 3, 1.0, 1.0, 3, 1.0, 1.0)

    monkeypatch.setattr(launch, "train_in", early)
    desk.train("t", small())


def test_seconds_of_a_training_grow_with_its_steps(monkeypatch):
    asked = []
    monkeypatch.setattr(desks, "_step_seconds", lambda recipe: asked.append(recipe) or 0.5)
    assert training_seconds(small(steps=12)) == 6 and training_seconds(small(steps=4)) == 2
    assert asked[0] == asked[1]  # so that one measurement serves all alike


def test_a_step_is_measured_without_any_text():
    assert 0 < desks._step_seconds(small(corpus=None)) < 5


def test_the_terminal_says_how_long_and_what_is_done(tmp_path):
    screen = Console(file=io.StringIO(), width=200)
    table = open_desk(tmp_path, "x", "aa", Terminal(screen), again=False)
    table.do([counting("one", [], seconds=lambda: 200.0), counting("two", [])])
    said = screen.file.getvalue()
    assert "to do: 2 of 2 parts, about 3 min 21 s" in said and "one: " in said and "two: " in said
    table.do([counting("one", []), counting("two", []), counting("three", [])])
    assert "to do: 1 of 3 parts" in screen.file.getvalue()
    table.do([counting("one", [])])
    assert "all of it is done already" in screen.file.getvalue()


def test_a_bar_follows_a_training(tmp_path):
    screen = Console(file=io.StringIO(), width=200, force_terminal=True)
    table = open_desk(tmp_path, "x", "aa", Terminal(screen), again=False)
    table.do([Job("train", lambda: bool(table.train("t", small())))])
    assert "training" in screen.file.getvalue() and "loss" in screen.file.getvalue()
