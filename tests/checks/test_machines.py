"""`attnlab check machines`: the short form passes here, and a verdict that changes is found."""

import copy
import json
import math
import platform
import sys

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from attnlab.checks.machines import child, imitate, table
from attnlab.checks.machines.check import MachinesCheck, judge
from attnlab.checks.machines.imitate import BASELINE, Machine
from attnlab.cli import app
from attnlab.theory.claim import Measure

# a claim that anybody may have written: its verdict depends on where and how it is run
FAKE = """
from dataclasses import dataclass
from typing import ClassVar

import torch

from attnlab.theory.claim import About, Claim, Evidence, Knob, Measure
from attnlab.reports.report import Picture


@dataclass(frozen=True, kw_only=True)
class Fickle(Claim):
    about: ClassVar[About] = About(
        statement="It is small.", formula="x", derivation="x", expected="holds",
        knob=Knob("turned", {"on": True}),
    )
    on: bool = False

    def run(self) -> Evidence:
        plain = torch.backends.cpu.get_cpu_capability() == "DEFAULT"
        value = {WHEN} + self.on
        return Evidence(
            kind="construction", trials=1, measures=[Measure("size", value, "≤", 1e-12)],
            picture=Picture(title="x", rows=[[1.0]], x="x", y="y"),
        )
"""


def silent(text):
    pass


@pytest.fixture
def fickle(tmp_path, monkeypatch):
    """Makes the claim and says how to name it; the child finds it on its path."""

    def make(when):
        (tmp_path / "fickle.py").write_text(FAKE.replace("{WHEN}", when))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(p for p in sys.path if p)}")
        return "fickle:Fickle"

    return make


@pytest.mark.timeout(600)  # some 40 s on two idle cores; other tests share them
def test_the_short_form_passes_on_this_machine(tmp_path):
    report = MachinesCheck(short=True, docs=tmp_path).run(silent)
    assert report["passed"], table.complaints(report)
    first, *_, last = report["machines"]
    assert first["machine"] == "as it is" and last["machine"] == "seed-1"
    assert first["kernels"]["cases"] > 10 and first["decoding"]["cases"] > 10
    assert first["documents"]["compared"] > 28 and first["numbers"] > 20
    assert last["moved"] > 0  # another seed draws other numbers
    names = {row["machine"] for row in report["machines"]} | set(report["not_imitated"])
    assert {"default", "no-compiler"} <= names  # each imitated, or said why not
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert "| as it is | 0 |" in (tmp_path / "machines.md").read_text()


def test_a_verdict_that_changes_with_the_seed_ends_with_exit_code_1(fickle):
    words = ["check", "machines", "machines=1-thread", "parts=claims", "seeds=2"]
    done = CliRunner().invoke(app, [*words, f"claims={fickle('1.0 * (self.seed == 1)')}"])
    assert done.exit_code == 1, done.output
    assert "seed-1: fickle, verdict: holds → refuted" in done.output


def test_a_verdict_that_changes_with_the_instructions_is_found(fickle, monkeypatch):
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    claim = fickle("1.0 * plain")
    check = MachinesCheck(machines=("default",), parts=("claims",), seeds=1, claims=(claim,))
    report = check.run(silent)
    if report["not_imitated"]:
        pytest.skip("this CPU has nothing to be capped")
    assert not report["passed"]
    assert [row["passed"] for row in report["machines"]] == [True, False]
    (change,) = report["machines"][1]["verdicts_changed"]
    assert change == "fickle, verdict: holds → refuted"


def test_a_claim_that_does_not_run_is_a_finding(monkeypatch):
    monkeypatch.setattr(child, "run_claim", lambda name, claim: [][1])
    found = child.claims({"claims": ["copy"], "seed": 0}, silent)
    assert found["copy"]["verdict"] == "IndexError: list index out of range"
    (row,) = judge([BASELINE], {"as it is": child_result(claims=found)}, {})["machines"]
    assert not row["passed"] and "IndexError" in row["verdicts_changed"][0]


def measured(value, rule="≤", bound=1.0, margin=0.5):
    one = {"what": "size", "value": value, "rule": rule, "bound": bound, "met": True}
    return {**one, "margin": margin}


def child_result(**changes):
    claims = {"one": {"verdict": "holds", "expected": "holds", "knob_verdict": "refuted"}}
    claims["one"]["measures"] = [measured(0.5)]
    found = {
        "claims": claims,
        "kernels": {"odd, tiled, float32": 0.4, "odd, tiled, float64": 0.1},
        "decoding": {"errors": {"rotary": 1e-6}, "texts": {"rotary": [[1, 2]]}},
        "documents": {"different": [], "compared": 2},
        "seconds": 1.0,
    }
    return {**copy.deepcopy(found), **changes}


def outcome_of(there):
    other = Machine("other", {"X": "1"})
    found = {"as it is": child_result(), "other": there}
    return judge([BASELINE, other], found, {})


def test_the_same_everywhere_passes():
    report = outcome_of(child_result())
    assert report["passed"] and report["verdicts_changed"] == 0
    assert report["machines"][1]["moved"] == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kernels": {"odd, tiled, float32": 1.5}}, "kernels, odd, tiled, float32: 1.5 of"),
        ({"kernels": {"odd, tiled, float32": math.inf}}, "1e+300 of the limit"),
        ({"decoding": {"errors": {"rotary": 2.0}, "texts": {}}}, "decoding, rotary: 2 of"),
        ({"decoding": {"errors": {}, "texts": {"rotary": [[1, 3]]}}}, "another greedy text"),
        ({"documents": {"different": ["theory.md"], "compared": 2}}, "other: theory.md"),
        ({"error": "ended by SIGILL", "claims": {}}, "other: ended by SIGILL"),
    ],
)
def test_whatever_is_wrong_fails_and_is_named(changes, said):
    report = outcome_of(child_result(**changes))
    assert not report["passed"]
    assert [row["passed"] for row in report["machines"]] == [True, False]
    screen = Console(record=True, width=200)
    table.show(report, screen)
    assert said in screen.export_text()
    assert said.split(":")[-1].strip() in table.document(report)


def test_the_knob_must_break_it_everywhere():
    there = child_result()
    there["claims"]["one"]["knob_verdict"] = "holds"
    (change,) = outcome_of(there)["machines"][1]["verdicts_changed"]
    assert change == "one, knob verdict: refuted → holds"


def test_a_number_that_moves_is_listed_with_its_margin():
    there = child_result()
    there["claims"]["one"]["measures"] = [measured(0.5000001, margin=0.49)]
    report = outcome_of(there)
    assert report["passed"]  # moving is no fault
    assert report["machines"][1]["smallest_margin"][0]["margin"] == 0.49
    assert report["largest_moves"][0]["machine"] == "other"
    assert report["largest_moves"][0]["part"] == pytest.approx(2e-7)


def test_nothing_examined_and_nothing_compared_is_no_pass():
    report = outcome_of({"seconds": 1.0})
    assert not report["passed"] and [row["passed"] for row in report["machines"]] == [True, False]
    assert table.complaints(report) == ["other: nothing was examined; choose other parts or claims"]
    alone = judge([BASELINE], {"as it is": child_result()}, {"other": "is what this machine does"})
    assert not alone["passed"] and "nothing was compared" in table.complaints(alone)[0]
    assert "there is no answer" in table.answer(alone)


def test_a_recorded_number_may_move_in_its_last_digits_only(monkeypatch):
    from attnlab.checks.machines import check

    old = {"name": "one", "measures": [measured(0.5)], "outside": [], "knob_measures": []}
    for now, off in ((0.5 * (1 + 1e-9), 0), (0.5 * (1 + 1e-3), 1), (0.5, 0)):
        monkeypatch.setattr(check, "read_record", lambda: {"outcomes": [old]})
        there = child_result()
        there["claims"]["one"]["measures"] = [measured(now)]
        row = outcome_of(there)["machines"][1]
        assert len(row["documents"]["off"]) == off and row["passed"] == (off == 0)
        assert row["documents"]["compared"] == 3


@pytest.mark.parametrize(
    ("value", "rule", "bound", "margin"),
    [
        (0.99, "≤", 1.0, 0.01),
        (0.5, "≥", 0.25, 0.5),
        (1e-14, "≤", 1e-12, 0.99),
        (1e-3, "≤", 1e-12, 1 - 1e-9),
        (1.0, "≤", 1.0, 0.0),
        (0.0, "≤", 1e-12, 1.0),
        (-0.2, "<", 1.0, 1.0),
        (0.3, ">", 0.0, 1.0),
        (math.inf, "≤", 1.0, 1.0),
        (math.nan, "≤", 1.0, 0.0),
        (3.0, "=", 3.0, None),
    ],
)
def test_a_margin_has_no_scale(value, rule, bound, margin):
    assert child.margin(Measure("size", value, rule, bound)) == pytest.approx(margin)


def test_of_an_interval_the_nearer_end_counts():
    measure = Measure("size", 0.5, "<", 1.0, low=0.1, high=0.9)
    assert child.margin(measure) == pytest.approx(0.1)


def test_the_imitation_without_a_compiler_finds_none():
    machine = next(one for one in imitate.MACHINES if one.name == "no-compiler")
    assert imitate.probe(machine)["compiler"] == "no"


def test_a_cap_takes_effect():
    machine = next(one for one in imitate.MACHINES if one.name == "default")
    assert imitate.probe(machine)["ATen"] == "DEFAULT"


@pytest.mark.needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86")
def test_the_compiled_path_obeys_the_cap_and_is_missing_without_a_compiler():
    found = {
        one.name: imitate.run(one, {"parts": []}, 300, silent)["hardware"]["compiled"]
        for one in imitate.MACHINES
        if one.name in ("default", "no-compiler")
    }
    assert found["default"] == "4 lanes of float32"  # SSE2, which every such CPU has
    assert found["no-compiler"].startswith("no C compiler")


def test_a_child_that_takes_too_long_or_dies_says_so(monkeypatch, tmp_path):
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    (tmp_path / "dead.py").write_text("import os; os.kill(os.getpid(), 4)")
    (tmp_path / "wrong.py").write_text("raise SystemExit('no such thing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name, patience, said in (
        ("slow", 0.5, "not done after 0.5 s"),
        ("dead", 60, "ended by SIGILL"),
        ("wrong", 60, "exit 1: no such thing"),
    ):
        monkeypatch.setattr(imitate, "CHILD", name)
        with pytest.raises(imitate.Failed, match=said):
            imitate.run(BASELINE, {}, patience, silent)


def test_every_path_that_serves_is_in_the_grid():
    found = child.kernels({"short": True}, silent)
    for path in ("sdpa", "tiled"):
        assert any(path in case for case in found)
    assert all(0 <= part <= 1 for part in found.values())


def test_a_wrong_kernel_is_over_its_limit(monkeypatch):
    plain = child.solve

    def wrong(problem, path, dtype=torch.float64):
        found = plain(problem, path, dtype)
        return found if path != "tiled" else [one * (1 + 1e-6) for one in found]

    monkeypatch.setattr(child, "solve", wrong)
    found = child.kernels({"short": True}, silent)
    assert max(part for case, part in found.items() if "tiled" in case) > 1
    assert max(part for case, part in found.items() if "sdpa" in case) <= 1


def test_a_wrong_cache_is_over_its_limit(monkeypatch):
    from attnlab.attention.cache import FullCache

    plain = FullCache.append

    def forgetful(self, k, v, hidden):
        found = plain(self, k, v, hidden)
        return found._replace(v=found.v * (1 + 1e-6))

    monkeypatch.setattr(FullCache, "append", forgetful)
    found = child.decoding({"short": True}, silent)["errors"]
    assert all((part > 1) == ("ring" not in case) for case, part in found.items())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"machines": ("avx22",)}, "machines has 'avx22'; did you mean 'avx2'"),
        ({"parts": ("claim",)}, "parts has 'claim'; did you mean 'claims'"),
        ({"parts": ()}, "parts is empty; choose from claims, kernels"),
        ({"seeds": 0}, "seeds is 0"),
        ({"patience": 0.0}, "patience is 0.0; it is in seconds, so use more than 0"),
    ],
)
def test_nonsense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        MachinesCheck(**wrong)
