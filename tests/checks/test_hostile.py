"""The hostile check: some payloads of each family, every control, and a check that can fail."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest

from attnlab.checks.hostile import catalogue, check, observe
from attnlab.checks.hostile.check import HostileCheck
from attnlab.checks.hostile.trial import Trial, nothing
from attnlab.stop import Stopped

QUICK = [name for name in catalogue.NAMES if name not in ("code", "caches", "escapes")]


def silent(text):
    pass


def test_there_are_many_payloads_each_with_a_name_and_every_family_has_controls():
    families = [catalogue.family(name) for name in catalogue.NAMES]
    names = [(one.name, trial.name) for one in families for trial in one.trials]
    assert len(set(names)) == len(names)
    assert sum(len(one.payloads) for one in families) >= 120
    assert all(one.controls for one in families if one.trials)  # caches need a compiler


@pytest.mark.parametrize("name", QUICK)
def test_some_payloads_hold_and_every_control_is_caught(name):
    report = HostileCheck(family=name, sample=3).run(silent)
    assert report["passed"], report
    assert report["families"][name]["caught"] == report["families"][name]["controls"]


@pytest.mark.parametrize(
    "name", ["code", pytest.param("caches", marks=pytest.mark.needs_compiler), "escapes"]
)
def test_every_control_of_slow_families_is_caught(name):
    report = HostileCheck(family=name, sample=1).run(silent)
    assert not report["prove_nothing"], report


def row(name, control="", **problems):
    return {"family": "f", "name": name, "control": control, "not_promised": "", "seconds": 0.1,
            "problems": problems, "again": False}  # fmt: skip


def test_where_a_detector_cannot_look_nothing_is_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "OWN_ENVIRONMENT", tmp_path / "proc" / "self" / "environ")
    with pytest.raises(ValueError, match=r"runs on Linux only: .*; run it in a Linux container"):
        HostileCheck(family="paths", sample=1).run(silent)


def test_a_check_that_is_stopped_tells_what_it_found_and_blames_no_control_for_it(monkeypatch):
    @contextmanager
    def stopped_after_one(settings):
        def rows():
            yield {**row("a", leaked="a secret"), "of": 7}
            raise KeyboardInterrupt

        yield rows()

    monkeypatch.setattr(check, "_runner", stopped_after_one)
    with pytest.raises(Stopped) as end:
        HostileCheck().run(silent)
    assert end.value.done == "1 of 7 payloads and controls"
    assert end.value.found == {
        "payloads": 1,
        "held": 0,
        "controls_missed": [],
        "broken": [{"payload": "f: a", "seen": "leaked: a secret"}],
    }


def test_a_family_whose_control_is_not_caught_proves_nothing():
    good = [row("a"), row("b", "executed", executed="yes")]
    assert check.report(good)["passed"]
    blind = check.report([row("a"), row("b", "executed", leaked="no")])
    assert not blind["passed"] and blind["prove_nothing"] == ["f"]
    assert not check.report([row("a")])["passed"]  # no control at all
    assert not check.report([*good, row("c", hung="60 s")])["passed"]


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (lambda place: place.mark.touch(), "executed"),
        (lambda place: place.victim.write_text("other"), "changed"),
        (lambda place: place.victim.unlink(), "changed"),
        (lambda place: place.write("victims/new", ""), "changed"),
        (lambda place: print(place.victim.read_text()), "leaked"),
        (lambda place: print("forged"), "forged"),
        (lambda place: 1 // 0, "traceback"),
        (lambda place: print("error: a\nerror: b") or exit(2), "lines"),
        (lambda place: exit(1), "exit code"),
        (lambda place: place.write("big", b"x" * (100 << 20)), "exhausted"),
    ],
)
def test_a_detector_finds_what_it_is_for_and_nothing_else(tmp_path, act, found):
    trial = Trial(name="t", plant=nothing, act=act, codes=(0, 2), forbidden="forged")
    (seen,) = observe.observe([trial], tmp_path / "none", tmp_path / "room", 1)
    assert found in seen.problems
    assert set(seen.problems) <= {found, "exit code"}


@pytest.mark.skipif(not check.OWN_ENVIRONMENT.exists(), reason="the check runs on Linux only")
def test_memory_of_whoever_started_the_check_is_no_room_for_a_payload():
    ballast = np.ones(50_000_000)  # 400 MB: a child begins with this process's peak
    code = "from attnlab.checks.hostile import observe; print(observe._own_mebibytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < ballast.nbytes / 2**20


def test_what_goes_on_must_say_what_it_stepped_over(tmp_path):
    acts = {"silent": nothing, "": lambda place: print("the checkpoint\ndecides")}
    for found, act in acts.items():
        trial = Trial(name="t", plant=nothing, act=act, codes=(0, 2), said="checkpoint decides")
        (seen,) = observe.observe([trial], tmp_path / "none", tmp_path / f"room{found}", 1)
        assert "".join(seen.problems) == found


def test_what_is_refused_in_one_line_is_no_problem(tmp_path):
    def refuse(place):
        raise ValueError("no\nsuch thing")

    trial = Trial(name="t", plant=lambda place: None, act=refuse)
    (seen,) = observe.observe([trial], tmp_path / "none", tmp_path / "room", 1)
    assert not seen.problems and seen.code == 2 and seen.output == "error: no such thing\n"


@pytest.mark.parametrize(
    ("seconds", "caught", "problems", "again"),
    [
        ([60, 0], "", set(), True),  # slow once, on a busy machine
        ([60, 60], "", {"hung"}, True),  # it does hang
        ([60, 0], "hung", {"hung"}, False),  # a control has one try
    ],
)
def test_what_was_late_is_tried_again_alone(tmp_path, seconds, caught, problems, again):
    def act(place):
        tries = tmp_path / "tries"
        tries.open("a").write(".")
        time.sleep(seconds[len(tries.read_text()) - 1])

    trial = Trial(name="t", plant=nothing, act=act, codes=(0,), patience=1.0, caught=caught)
    (seen,) = observe.observe([trial], tmp_path / "none", tmp_path / "room", 1)
    assert (set(seen.problems), seen.again) == (problems, again)


def test_a_report_is_plain_data():
    found = check.report([row("a"), row("b", "executed", executed="yes")])
    assert json.loads(json.dumps(found)) == found
