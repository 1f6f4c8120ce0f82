"""What a person sees while an experiment runs."""

import io

from rich.console import Console
from training.recipes import small

from attnlab.experiments.progress import Terminal
from attnlab.experiments.workspace import Job, open_workspace


def job(name, seconds=1.0):
    return Job(name, lambda: name, lambda: seconds)


def test_the_terminal_says_how_long_and_what_is_done(tmp_path):
    screen = Console(file=io.StringIO(), width=200)
    there = open_workspace(tmp_path, "x", "aa", Terminal(screen), again=False)
    there.run_jobs([job("one", 200.0), job("two")])
    said = screen.file.getvalue()
    assert "to do: 2 of 2 parts, about 3 min 21 s" in said and "one: " in said and "two: " in said
    there.run_jobs([job("one"), job("two"), job("three")])
    assert "to do: 1 of 3 parts" in screen.file.getvalue()
    there.run_jobs([job("one")])
    assert "all of it is done already" in screen.file.getvalue()


def test_a_bar_follows_a_training(tmp_path):
    screen = Console(file=io.StringIO(), width=200, force_terminal=True)
    there = open_workspace(tmp_path, "x", "aa", Terminal(screen), again=False)
    there.run_jobs([Job("train", lambda: bool(there.train("t", small())))])
    assert "training" in screen.file.getvalue() and "loss" in screen.file.getvalue()


def test_where_no_bar_is_shown_lines_say_how_far_it_is(tmp_path):
    screen = Console(file=io.StringIO(), width=200)
    there = open_workspace(tmp_path, "x", "aa", Terminal(screen, silence=0), again=False)
    there.run_jobs([Job("train", lambda: bool(there.train("t", small())))])
    said = screen.file.getvalue()
    assert "1 of 1: train · about" in said and "training: step 2 of" in said
    with there.progress.counting("trainings", 8) as count:
        count(2, "two of them")
    assert "trainings: 25% · two of them" in screen.file.getvalue()
    quiet = Console(file=io.StringIO(), width=200)
    with Terminal(quiet, silence=1e9).counting("trainings", 8) as count:
        count(2, "two of them")
    assert not quiet.file.getvalue()
