"""`attnlab.train` and `attnlab.runs` do what the commands do, and stop without loss."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

import attnlab
from attnlab.api import training as trainings
from attnlab.training import launch


def test_a_training_has_the_bytes_of_the_command_line(small, training, command):
    folder, words = small
    settings = ["steps=5", "evaluate_every=2", "save_every=2"]
    out = command("train", "shakespeare-cpu", *words, *settings, "--runs", folder / "others")
    assert "finished at step 5" in out
    (other,) = (folder / "others").iterdir()
    for name in ("metrics.jsonl", "eval.jsonl", "config.json"):
        assert (other / name).read_bytes() == (training.path / name).read_bytes()
    made = [json.loads((one / "manifest.json").read_text()) for one in (training.path, other)]
    runs = made[0]["command"].replace(f"{folder}/runs", f"{folder}/others")
    assert runs == made[1]["command"], "a manifest names the command that makes the run again"


def test_a_training_shows_its_losses(training):
    assert (training.ending, training.step, training.best_step) == ("finished", 5, 5)
    assert [step for step, _ in training.losses] == [1, 2, 3, 4, 5]
    assert training.loss == training.losses[-1][1]
    assert [step for step, _ in training.evaluations] == [2, 4, 5]
    assert [row["step"] for row in training.rows] == [2, 4, 5]
    assert training.path.name in repr(training) and "finished at step 5" in repr(training)
    shown = training._repr_html_()
    assert "<svg" in shown and "Loss by step" in shown and "<script" not in shown


def test_runs_are_those_of_the_command_line(small, training, command):
    found = attnlab.runs(small[0] / "runs")
    assert list(found) == command("runs", "--runs", small[0] / "runs", "--json")
    assert found[0]["run"] == training.path.name and training.path.name in repr(found)
    empty = attnlab.runs(small[0] / "nowhere")
    assert len(empty) == 0 and "attnlab.train('tiny')" in repr(empty)


@pytest.mark.parametrize(
    "words",
    [
        ["tinny"],
        ["tiny", "model.widht=3"],
        ["tiny", "steps=0"],
        ["shakespeare-cpu", "data=missing.txt"],
    ],
)
def test_an_error_is_the_line_of_the_command_line(words, command, tmp_path):
    with pytest.raises(attnlab.Error) as raised:
        attnlab.train(*words, runs=tmp_path)
    assert str(raised.value) == command("train", *words, "--runs", tmp_path)
    assert raised.value.__cause__ is None and raised.value.__suppress_context__
    assert raised.value._render_traceback_() == [f"Error: {raised.value}"]


def test_settings_are_words_named_arguments_or_dictionaries(monkeypatch, unchecked_shapes):
    given = []

    def refuse(preset, overrides, **others):
        given.append(overrides)
        raise ValueError("seen")

    monkeypatch.setattr(launch, "launch", refuse)
    with pytest.raises(attnlab.Error, match="seen"):
        attnlab.train(
            "tiny", "steps=7", model={"width": 32, "window": [16, None]}, compile=False, start=None
        )
    assert given == [
        ["steps=7", "model.width=32", "model.window=16,none", "compile=false", "start=none"]
    ]
    with pytest.raises(attnlab.Error, match="write it as 'key=value'"):
        attnlab.train("tiny", 7)


def test_a_signal_saves_raises_and_leaves_handlers_as_they_were(small, tmp_path, monkeypatch):
    """As the stop button of a notebook: the kernel lives on, and the call says how to resume."""
    real = launch.train

    def stopped(setup, run, world, report, begin):
        stepped = report.stepped

        def step(number, loss, rate):
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)
            stepped(number, loss, rate)

        report.stepped = step
        return real(setup, run, world, report, begin)

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(launch, "train", stopped)
    with pytest.raises(attnlab.Interrupt, match=r"Ctrl-C; step \d is saved; resume") as raised:
        attnlab.train("shakespeare-cpu", *small[1], steps=7, runs=tmp_path)
    assert isinstance(raised.value, KeyboardInterrupt)
    assert before == {one: signal.getsignal(one) for one in before}
    monkeypatch.undo()
    resumed = attnlab.train("shakespeare-cpu", resume=True, runs=tmp_path)
    assert resumed.step == 7 and len(list(tmp_path.iterdir())) == 1
    assert [step for step, _ in resumed.losses] == [1, 2, 3, 4, 5, 6, 7]


def test_another_thread_trains_and_touches_no_handler(small, tmp_path):
    before, found = signal.getsignal(signal.SIGINT), []

    def work():
        found.append(attnlab.train("shakespeare-cpu", *small[1], steps=2, runs=tmp_path))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0].step == 2 and signal.getsignal(signal.SIGINT) is before


def test_progress_is_on_the_standard_error(small, tmp_path, capsys):
    attnlab.train("shakespeare-cpu", *small[1], steps=2, runs=tmp_path)
    out, err = capsys.readouterr()
    assert out == "" and "parameters" in err


def test_a_run_of_hostile_name_is_shown_as_text(tmp_path):
    evil = "<script>alert(1)</script>"
    found = trainings.Runs(
        tmp_path / evil,
        [
            {"run": f"{evil}\x1b[2J", "state": evil, "step": 1, "steps": 2, "loss": None}
            | {"best_loss": 1.5, "damaged": [evil]}
        ],
    )
    shown = found._repr_html_()
    assert "<script" not in shown and shown.count("&lt;script&gt;") == 4
    assert "\x1b" not in shown + repr(found)


def test_the_package_is_light_until_it_is_used():
    code = (
        "import sys, attnlab\n"
        "dir(attnlab), attnlab.Error, attnlab.train, attnlab.runs, attnlab.Training\n"
        "heavy = {'torch', 'numpy', 'typer', 'rich', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
