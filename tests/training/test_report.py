"""What a person sees of a run: lines on the terminal, numbers in TensorBoard."""

import errno
import importlib.util
import io
import sys

import pytest
from rich.console import Console
from training.recipes import begin, small

from attnlab.training import checkpoint, runs
from attnlab.training.report import Opening, Report, TensorBoard, Terminal, duration, scaled

OPENING = Opening(
    run="runs/x[/red]",
    parameters=3_323_392,
    tokens=1_000_000,
    epochs=2.5,
    flops=2e13,
    steps=40,
    ready_seconds=0.1,
    expected_seconds=61.0,
    step_seconds=2.0,
    matrix_rate=1e12,
)


def shown(act, terminal=False):
    file = io.StringIO()
    report = Terminal(Console(file=file, width=100, force_terminal=terminal))
    with report.training(OPENING, 0, 100):
        act(report)
    return file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_the_terminal_says_what_will_be_and_what_was_evaluated(terminal):
    def act(report):
        report.stepped(1, 3.25, 0.5)
        with report.waiting("evaluating", 10) as advance:
            advance(5)
        report.evaluated(1_000, 1.23456, True, 12.0, None)
        report.evaluated(2_000, 1.5, False, 24.0, 0.256)

    text = shown(act, terminal)
    assert "run runs/x[/red]" in text, "markup in a name is text"
    for part in ("3,323,392 parameters", "1,000,000 tokens (2.5 epochs)", "20 TFLOP", "61 s"):
        assert part in text
    assert "MFU 25 %" in text, "0.25 TFLOP a second of 1"
    assert "step 1,000: validation loss 1.2346 after 12 s (best so far)" in text
    second = "step 2,000: validation loss 1.5000, 25.6 % of the answers right after 24 s\n"
    assert second in text.replace("\x1b[0m", "")


def test_a_sample_is_shown_as_it_is():
    text = shown(lambda report: report.sampled(5, "[bold]", "[/] [red]x"))
    assert "[bold][/] [red]x" in text


def test_a_plain_report_is_silent(capsys):
    report = Report()
    report.note("x")
    with report.training(OPENING, 0, 1), report.waiting("x", 3) as advance:
        advance(1)
        report.stepped(1, 1.0, 1.0)
        report.evaluated(1, 1.0, True, 1.0, None)
        report.sampled(1, "a", "b")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "0.0123 s"),
        (99.4, "99.4 s"),
        (100, "1 min 40 s"),
        (3599.6, "1 h 00 min"),
        (7260, "2 h 01 min"),
    ],
)
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 "), (999, "999 "), (1234, "1.23 k"), (1.5e6, "1.5 M"), (2e15, "2 P"), (3e9, "3 G")],
)
def test_large_numbers_read_well(number, text):
    assert scaled(number) == text


@pytest.mark.skipif(
    not importlib.util.find_spec("tensorboard"), reason="tensorboard is not installed"
)
def test_tensorboard_gets_every_number_and_the_report_behind_it_too(tmp_path):
    heard = []

    class Hearing(Report):
        def stepped(self, *args):
            heard.append(args)

        def evaluated(self, *args):
            heard.append(args)

    report = TensorBoard(tmp_path / "board", Hearing())
    assert not (tmp_path / "board").exists(), "nothing before training begins"
    with report.training(OPENING, 0, 1):
        report.stepped(1, 2.5, 0.1)
        report.evaluated(1, 2.25, True, 1.0, 0.5)
        report.sampled(1, "a", "b")
    assert heard == [(1, 2.5, 0.1), (1, 2.25, True, 1.0, 0.5)]
    (events,) = (tmp_path / "board").iterdir()
    content = events.read_bytes()
    names = (b"loss/train", b"loss/validation", b"accuracy/validation", b"schedule", b"sample")
    for name in names:
        assert name in content


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'attnlab\[track\]'"):
        TensorBoard(tmp_path, Report())


class FullAt(Report):
    """What it prints goes to a disk that is full from a step on."""

    def __init__(self, step):
        self.step = step

    def stepped(self, step, loss, rate):
        if step >= self.step:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_training_whose_output_has_no_room_is_saved_before_it_ends(tmp_path):
    words = ("steps=9", "save_every=none", "evaluate_every=none")
    with pytest.raises(OSError, match=r"prints could not be written: No space left .*step 4") as at:
        begin(tmp_path, small(*words), report=FullAt(4))
    [run] = runs.all_in(tmp_path)
    assert str(at.value).endswith(f"To go on: --resume {run.folder}")
    newest, broken = checkpoint.newest_good(run.checkpoints)
    assert newest.name == "step_000004" and not broken
