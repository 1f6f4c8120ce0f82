"""Where the output goes there is no space left: one line on stderr, exit code 2, nothing lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnlab.training import runs

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def into_full(*words, cwd=None, unbuffered=""):
    """The lines on stderr and the exit code."""
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "attnlab", *map(str, words)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    return done.stderr.strip().splitlines(), done.returncode


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "attention"], "the output could not be written: No space left on device"),
        (["--version"], "the output could not be written: No space left on device"),
        (["runs", "--json"], "the output could not be written (3 bytes): No space left on device"),
    ],
    ids=str,
)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_output_without_room_is_one_line_and_exit_code_2(words, said, unbuffered, tmp_path):
    lines, code = into_full(*words, cwd=tmp_path, unbuffered=unbuffered)
    assert code == 2 and len(lines) == 1 and said in lines[0], lines


def test_a_training_without_room_for_its_output_stops_and_names_its_run(tmp_path):
    words = ("evaluate_every=2", "device=cpu", "steps=2000", "save_every=none")
    lines, code = into_full("train", "tiny", "--runs", tmp_path, *words)
    assert code == 2 and len(lines) == 1, lines
    assert "what a training prints could not be written: No space left on device" in lines[0]
    [run] = runs.all_in(tmp_path)
    assert f"--resume {run.folder}" in lines[0] and not run.finished
