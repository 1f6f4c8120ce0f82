"""Logs: whole lines are rows, damaged ones are counted, a torn last one is nothing unusual."""

import pytest
from training.recipes import begin, go_on, small

from attnlab.training import checkpoint, logs, runs
from attnlab.training.report import Report

ROWS = [{"step": step, "loss": 0.5 * step} for step in range(1, 6)]


class Notes(Report):
    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


@pytest.mark.parametrize(
    "wrong",
    [
        b"{",
        b"[]",
        b'{"step": -1, "loss": 1.0}',
        b'{"step": 1}',
        b'{"step": 1, "loss": 1e999}',
        b'{"step": 1, "loss": NaN}',
        b'{"step": 1, "loss": -2.0}',
        b'{"step": 1, "loss": 1.0, "x": ' + b"[" * 900 + b"]" * 900 + b"}",
        b"\x00" * 50,
    ],
)
def test_a_damaged_line_in_the_middle_is_counted(tmp_path, wrong):
    path = tmp_path / "metrics.jsonl"
    lines = [logs.line(row) for row in ROWS]
    path.write_bytes(b"".join([*lines[:2], wrong + b"\n", *lines[2:]]))
    found = logs.read(path)
    assert found.rows == ROWS and found.damaged == 1 and not found.torn
    assert found.complaint() == f"{path}: 1 line is damaged and left out"


def test_a_torn_last_line_is_no_damage_and_one_that_lacks_its_newline_counts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = b"".join(map(logs.line, ROWS))
    path.write_bytes(whole[:-12])
    torn = logs.read(path)
    assert (torn.rows, torn.damaged, torn.torn) == (ROWS[:-1], 0, True)
    path.write_bytes(whole[:-1])
    assert logs.read(path).rows == ROWS and logs.read(path).lines[-1] == logs.line(ROWS[-1])


def test_resuming_says_how_many_lines_are_damaged_and_appends_after_a_torn_one(tmp_path):
    words = ["save_every=4", "evaluate_every=none"]
    run, _ = begin(tmp_path, small("steps=4", *words))
    content = run.log("metrics").read_bytes()
    first, rest = content.split(b"\n", 1)
    run.log("metrics").write_bytes(b"damaged\n" + first + b"\n" + rest + b'{"step": 5, "lo')
    notes, newest = Notes(), checkpoint.newest_good(run.checkpoints)[0]
    go_on(run, small("steps=8", *words), newest, report=notes)
    assert f"{run.log('metrics')}: 1 line is damaged and left out" in notes.lines
    after = logs.read(run.log("metrics"))
    assert [row["step"] for row in after.rows] == list(range(1, 9))
    assert not after.damaged and not after.torn and run.log("metrics").read_bytes()[:1] == b"{"
    assert not run.complaints()


def test_steps_whose_lines_were_damaged_are_missed_after_resuming(tmp_path):
    words = ["save_every=4", "evaluate_every=none"]
    run, _ = begin(tmp_path, small("steps=4", *words))
    lines = run.log("metrics").read_bytes().splitlines(keepends=True)
    run.log("metrics").write_bytes(lines[0] + lines[1][:9] + b"\n" + b"".join(lines[2:]))
    assert run.complaints() == [f"{run.log('metrics')}: 1 line is damaged and left out"]
    go_on(run, small("steps=8", *words), checkpoint.newest_good(run.checkpoints)[0])
    assert run.complaints() == [f"{run.log('metrics')}: 1 of 8 steps are missing"]


def test_a_log_that_cannot_be_read_is_a_complaint_and_no_error(tmp_path):
    run = runs.Run(tmp_path)
    (tmp_path / "elsewhere").write_bytes(logs.line(ROWS[0]))
    run.log("metrics").symlink_to(tmp_path / "elsewhere")
    [said] = run.complaints()
    assert said.startswith(f"{run.log('metrics')} cannot be read: ") and "is a link" in said
