"""A task for another process: its paths mean the same there."""

from pathlib import Path

import pytest
from experiments.small import english
from training.recipes import small, text_recipe

from attnlab.experiments import worker
from attnlab.experiments.pool import Task, steps_taken, with_absolute_paths
from attnlab.training.runs import Run


def test_a_worker_in_another_folder_finds_text_and_run(tmp_path, monkeypatch):
    english(tmp_path / "text.txt")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    task = Task("t", Path("runs/t"), text_recipe("text.txt", "steps=3"))
    message = task.message()
    monkeypatch.chdir(elsewhere)
    assert worker.train(message) == {"ending": "finished", "why": ""}
    assert Path.cwd() == elsewhere and not list(elsewhere.iterdir())
    run = Run(tmp_path / "runs" / "t")
    assert run.finished and run.recipe().corpus.path == str(tmp_path / "text.txt")
    monkeypatch.chdir(tmp_path)
    assert steps_taken([task]) == 3


def test_only_what_is_a_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    assert with_absolute_paths(small()) == small()  # people who are invented have no file
    started = with_absolute_paths(small(start="run"))
    assert started.start == str(tmp_path / "run")
    assert with_absolute_paths(small(start="20260101-name")).start == "20260101-name"
    monkeypatch.setenv("HOME", str(tmp_path))
    home = with_absolute_paths(text_recipe("~/text.txt"))
    assert home.corpus.path == str(tmp_path / "text.txt")


@pytest.mark.parametrize("words", [[], ["steps=7"]])
def test_a_recipe_arrives_as_it_was_sent(tmp_path, words):
    from attnlab import config
    from attnlab.training.recipe import Recipe

    message = Task("t", tmp_path / "t", small(*words)).message()
    assert config.from_dict(Recipe, message["recipe"]) == small(*words)
