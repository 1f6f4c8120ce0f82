"""The short version of `attnlab check kill`; the full one is a command."""

import json
import subprocess
import sys

import pytest

from attnlab.checks.kill import KillCheck

# In a process of its own: this one has used its threads, and a fork would inherit them broken.
SCRIPT = """
import json, sys
from attnlab.checks.kill import KillCheck
print(json.dumps(KillCheck(**json.loads(sys.argv[1])).run(lambda text: None)))
"""


def checked(**settings):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_a_killed_run_ends_with_the_same_bits_and_forgetful_ones_do_not():
    report = checked(kills=6, steps=15, control_kills=1)
    assert report["passed"], report
    assert report["kills"] >= 6 and report["kills_inside_a_save"] >= 2
    assert report["broken_checkpoints"] == 0
    for control in ("optimiser", "random", "position"):
        assert report[f"control_without_{control}"].startswith("0 of ")


def test_of_two_processes_one_is_killed_and_the_other_notices():
    report = checked(kills=2, steps=15, control_kills=1, processes=2)
    assert report["passed"], report
    assert report["kills"] >= 2 and report["kills_inside_a_save"] >= 1
    assert report["runs_equal"] == report["runs"] and report["broken_checkpoints"] == 0
    for control in ("optimiser", "random", "position"):
        assert report[f"control_without_{control}"].startswith("0 of ")


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="kills is 0"):
        KillCheck(kills=0)
