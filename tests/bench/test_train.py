"""The training benchmark: times are taken in turns, and a loss that was never reached is named."""

import dataclasses
import io

import pytest
import torch
from rich.console import Console

from attnlab import stop
from attnlab.bench import train
from attnlab.bench.train import Published, TrainBench, first_below
from attnlab.training import launch, runs

TINY = Published(
    width=16, depth=1, heads=2, context=8, batch=2, steps=3, rate=1e-3, dropout=0.0, loss=9.0
)


@pytest.fixture
def small(monkeypatch, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 60)
    monkeypatch.setitem(train.PEERS, "cpu", TINY)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plain = launch.recipe_for
    words = ["steps=4", "evaluate_every=2", "model.width=16", "model.context=8"]
    monkeypatch.setattr(
        launch, "recipe_for", lambda preset, given, file=None: plain(preset, [*given, *words], file)
    )
    return TrainBench(data=str(path), turns=2, losses=(0.001,), full=True)


def test_a_small_run_reports_both_and_says_what_was_not_reached(small):
    report = small.run(lambda text: None)
    easy, impossible = report["rows"]
    assert easy["step"] == 2 and easy["ratio"] > 0 and easy["reached"] <= 9
    assert impossible["step"] is None and impossible["ratio"] is None
    assert report["peer"]["seconds"] == pytest.approx(3 * report["peer"]["step_ms"]["median"] / 1e3)
    assert report["peer"]["trained_here"]["loss"] > 0
    assert not small.passed(report)
    screen = Console(file=io.StringIO(), width=100)
    small.show(report, screen)
    assert "never" in screen.file.getvalue()


def test_a_training_that_a_signal_has_ended_is_no_result(small, monkeypatch):
    plain = launch.launch

    def stopped(*args, **options):
        run, result = plain(*args, **options)
        return run, dataclasses.replace(result, ending="SIGTERM")

    monkeypatch.setattr(launch, "launch", stopped)
    with pytest.raises(SystemExit) as ending, stop.ending():
        small.run(lambda text: None)
    assert ending.value.code == 143


def test_the_first_evaluation_below_counts(tmp_path):
    run = runs.create(tmp_path, "x")
    for step, loss in ((10, 3.0), (20, 2.0), (30, 2.5)):
        with run.log("eval").open("ab") as file:
            file.write(runs.line({"step": step, "loss": loss}))
        with run.log("speed").open("ab") as file:
            file.write(runs.line({"step": step, "seconds": step * 2.0, "step_seconds": step * 1.0}))
    assert first_below(run, 2.6)["seconds"] == 40.0
    assert first_below(run, 1.0)["step"] is None


def test_no_text_is_told_so():
    with pytest.raises(ValueError, match="data=PATH"):
        TrainBench().run(lambda text: None)
