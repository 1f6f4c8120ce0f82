"""The sweep: every target has its row, and rows are kept as they come."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit.workers import talkative, unlucky

from attnlab.audit import rows, sweep
from attnlab.audit.contract import Contract
from attnlab.audit.errors import InputError
from attnlab.audit.rows import RowFile
from attnlab.audit.sandbox import Limits, Request
from attnlab.audit.sweep import Job, jobs_of

LIMITS = Limits(seconds=5.0)
MODULE = """
import os
import time
from pathlib import Path

from torch import nn

class Tall(nn.Linear):
    def __init__(self, width=4):
        super().__init__(width, width)

class Hangs(Tall):
    def __init__(self):
        Path("pid").write_text(str(os.getpid()))
        time.sleep(60)
"""


def jobs(*targets: str) -> list[Job]:
    return [Job(request=Request(target=target)) for target in targets]


def listed(tmp_path: Path, text: str, **declared: Any) -> list[Job]:
    path = tmp_path / "targets.txt"
    path.write_text(text)
    return jobs_of(Request(target=f"@{path}", contract=Contract(**declared)))


def test_a_list_has_a_target_a_line_as_on_the_command_line(tmp_path: Path) -> None:
    text = (
        "# mine\n\na.py:A width=32 heads=4 --declare causal=true --declare=window=8  # a comment\n"
    )
    first, second = listed(tmp_path, text + "hf:llama 'name=a b'\n", causal=False, cache=True)
    assert (first.request.target, first.request.options) == ("a.py:A", ("width=32", "heads=4"))
    assert first.request.contract == Contract(causal=True, window=8, cache=True)
    assert second.request.options == ("name=a b",)
    assert second.request.contract == Contract(causal=False, cache=True)
    line = "a.py:A width=32 heads=4 --declare cache=true --declare causal=true --declare window=8"
    assert first.line == line
    assert listed(tmp_path, line)[0] == first  # a row can be pasted


def test_a_list_is_audited_on_the_device_that_was_named(tmp_path: Path) -> None:
    path = tmp_path / "targets.txt"
    path.write_text("a.py:A\nb.py:B --device cpu\n")
    first, second = jobs_of(Request(target=f"@{path}", device="cuda"))
    assert (first.request.device, second.request.device) == ("cuda", "cpu")
    assert (first.line, second.line) == ("a.py:A --device cuda", "b.py:B")  # rows of their own
    path.write_text(first.line)
    assert jobs_of(Request(target=f"@{path}")) == [first]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a.py:A\nb.py:B --wrong", "line 2: '--wrong' is neither key=value nor --declare"),
        ("a.py:A --declare nothing=1", "line 1: .*nothing"),
        ("a.py:A 'open", "line 1: "),
        ("@other.txt", "line 1: @other.txt stands in a list itself"),
        ("# nothing", "names no target"),
    ],
)
def test_a_list_that_cannot_be_read_says_which_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        listed(tmp_path, text)
    with pytest.raises(InputError, match="cannot be read"):
        jobs_of(Request(target="@no/such/file"))


def test_globs_stand_for_models_and_names_for_themselves() -> None:
    pytest.importorskip("transformers")
    assert [sweep.is_sweep(one) for one in ("hf:all", "hf:causal/*", "@list", "hf:t[5]")] == [
        True
    ] * 4
    assert not any(map(sweep.is_sweep, ("hf:llama", "a.py:A", "hf:causal/bert", "a*.py:A")))
    found = [job.request.target for job in jobs_of(Request(target="hf:*/t5"))]
    assert found == ["hf:seq2seq/t5", "hf:encoder/t5"]
    every = [job.family for job in jobs_of(Request(target="hf:all"))]
    assert {one: every.count(one) > 30 for one in every} == dict.fromkeys(
        ("causal", "seq2seq", "encoder"), True
    )
    with pytest.raises(InputError, match="matches no model"):
        jobs_of(Request(target="hf:nothing*"))


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["pass", "pass", "pass"], 0),
        (["pass", "incomplete", "pass"], 2),
        (["pass", "not built", "pass"], 2),
        (["incomplete", "fail", "not built"], 1),
        (["pass", "fail", "error"], 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst_row(verdicts: list[str], code: int) -> None:
    assert rows.exit_code({"verdict": verdict} for verdict in verdicts) == code


def test_backends_that_agree_are_counted_and_those_that_differ() -> None:
    def row(verdict: str, detail: str, name: str = "backends") -> dict[str, Any]:
        return {"checks": [{"name": name, "verdict": verdict, "detail": detail}]}

    every = [
        row("pass", "sdpa, eager, attnlab agree, whole and in pieces: off by 3.1e-15"),
        row("pass", "eager, attnlab agree, whole and in pieces: off by 3.1e-15; more"),
        row("fail", "attnlab differs from sdpa by 0.1 at output 3 of 7"),
        row("not applicable", "attention is computed in one way only"),
        row("pass", "sdpa, eager agree", "encoder backends"),
        {"detail": "not built"},
    ]
    assert sweep.by_backend(every) == {
        "attnlab": "2 agree, 1 differ",
        "eager": "2 agree",
        "sdpa": "1 agree",
    }


def test_counts_are_by_family_and_of_all() -> None:
    every = [{"family": "a", "verdict": "pass"}, {"family": "b", "verdict": "fail"}]
    assert rows.by_family(every) == {"a": "1 pass", "b": "1 fail", "all": "1 pass, 1 fail"}
    assert rows.by_family(every[:1]) == {"a": "1 pass"}


def test_models_and_files_have_their_rows_in_order(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "code.py").write_text(MODULE)
    targets = ["hf:gpt2", "hf:gemma4_assistant", "hf:no_such", f"{tmp_path}/code.py:Tall"]
    found = sweep.sweep(jobs(*targets), workers=1).rows
    assert [row["target"] for row in found] == targets
    assert [row["verdict"] for row in found] == ["pass", "not built", "not built", "pass"]
    assert [row["family"] for row in found] == ["causal", "causal", "hf", "code"]
    assert all("seconds" in row for row in found)


def test_only_what_the_library_refuses_is_called_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    models = pytest.importorskip("attnlab.audit.hf.models")
    request = Request(target="hf:gpt2")

    def refused(*given: Any, **named: Any) -> None:
        raise InputError("no such model")

    monkeypatch.setattr(models, "audit_hf", refused)
    assert sweep.row_of(request, LIMITS)["verdict"] == "not built"
    for kind in (KeyError, ValueError, OSError):

        def broken(*given: Any, kind: type[Exception] = kind, **named: Any) -> None:
            raise kind("ours")

        monkeypatch.setattr(models, "audit_hf", broken)
        found = sweep.row_of(request, LIMITS)
        assert found["verdict"] == "error" and "raise kind" in found["traceback"], kind


def test_a_worker_that_dies_or_hangs_costs_its_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_work", unlucky)
    targets = ["hf:dies", "hf:works", "hf:hangs"]
    monkeypatch.setattr(sweep.Request, "plain", lambda self: {"target": self.target[3:]})
    found = sweep.sweep(jobs(*targets), workers=1, limits=LIMITS).rows
    assert [row["verdict"] for row in found] == ["incomplete", "pass", "incomplete"]
    assert "code 7" in found[0]["detail"] and "ran out after 5 s" in found[2]["detail"]


def test_a_worker_that_dies_or_hangs_leaves_what_it_had_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep, "_work", talkative)
    monkeypatch.setattr(sweep.Request, "plain", lambda self: {"target": self.target[3:]})
    # they import nothing, so no time is allowed for that
    found = sweep.sweep(jobs("hf:dies", "hf:fails"), workers=1, limits=LIMITS, start=0.0).rows
    assert [row["verdict"] for row in found] == ["incomplete", "fail"]
    first, second = (
        {one["name"]: (one["verdict"], one["detail"]) for one in row["checks"]} for row in found
    )
    assert first["finite"] == ("pass", "as it should be")
    assert first["window"] == ("cannot tell", "the process ended with code 7")
    assert second["window"] == ("cannot tell", "time ran out after 5 s")
    assert "allow more with --timeout 60" in found[1]["reason"]
    assert [row["target"] for row in found] == ["hf:dies", "hf:fails"]


def test_rows_are_kept_as_they_come_and_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_work", unlucky)
    path = tmp_path / "rows.jsonl"
    ticks: list[tuple[int, int]] = []

    def run(names: list[str], resume: bool) -> list[rows.Row]:
        file = RowFile(path, resume)
        ticks.clear()
        with file.writing():
            return sweep.sweep(
                jobs(*names), lambda done, total, row, left: ticks.append((done, total)), out=file
            ).rows

    run(["a", "b"], False)
    assert sorted(json.loads(line)["line"] for line in path.read_text().splitlines()) == ["a", "b"]
    with pytest.raises(InputError, match="has rows already; add --resume"):
        RowFile(path, False)
    with path.open("a") as file:
        file.write('{"line": "c", "verd')  # torn off
    found = run(["b", "c", "a"], True)
    assert [row["line"] for row in found] == ["b", "c", "a"] and ticks == [(3, 3)]
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 3
    run(["b", "c", "a"], True)
    assert ticks == []


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    with pytest.raises(InputError, match="line 1 is no row of a sweep"):
        RowFile(path, True)
    assert path.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)]
)
def test_a_signal_stops_with_the_rows_that_are_there(
    tmp_path: Path, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    """As a terminal sends Ctrl-C, to every process of the group; as `kill` does, to one."""
    (tmp_path / "code.py").write_text(MODULE)
    (tmp_path / "list").write_text("code.py:Tall\ncode.py:Tall width=5\ncode.py:Hangs\n")
    command = [sys.executable, "-m", "attnlab", "audit", "@list", "--out", "rows.jsonl"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    kept = tmp_path / "rows.jsonl"
    while process.poll() is None and not (kept.exists() and kept.read_text().count("\n") == 2):
        time.sleep(0.05)
    send(process.pid, number)
    out, progress = process.communicate()
    assert process.returncode == 128 + number, progress
    assert out.split() == ["code", "2", "pass"]
    assert "stopped with 1 of 3 left" in progress and "--out rows.jsonl --resume" in progress
    assert "2/3 code.py:Tall" in progress and "Traceback" not in progress
    if (tmp_path / "pid").exists():  # the child that hangs, if it got as far
        with pytest.raises(ProcessLookupError):
            for _ in range(100):
                os.kill(int((tmp_path / "pid").read_text()), 0)
                time.sleep(0.1)


def test_rows_of_other_code_and_of_none_are_made_again(tmp_path: Path) -> None:
    code, path = tmp_path / "code.py", tmp_path / "rows.jsonl"
    (job,) = jobs(f"{code}:Code")
    known = {"line": job.line, "family": "code"}
    path.write_text(json.dumps({**known, "verdict": "incomplete", "code": ""}) + "\n")
    assert job.row_in(RowFile(path, True)) is None, "it was not audited"
    for more in ({"checks": []}, {"checks": [{}], "unfinished": "time ran out"}):
        row = {**known, "verdict": "incomplete", "code": "", **more}
        path.write_text(json.dumps(row) + "\n")
        assert job.row_in(RowFile(path, True)) is None, "it was not audited, or not all of it"
    row = {**known, "verdict": "pass", "checks": [{}], "code": ""}
    path.write_text(json.dumps(row) + "\n")
    assert job.row_in(RowFile(path, True)) is None, "there is no such file"
    code.write_text("first")
    (job,) = jobs(f"{code}:Code")
    path.write_text(json.dumps({**row, "checks": [], "code": job.code}) + "\n")
    assert job.row_in(RowFile(path, True)) is None, "a pass without a check is none"
    row |= {"code": job.code}
    path.write_text(json.dumps({**row, "unfinished": "time ran out"}) + "\n")
    assert job.row_in(RowFile(path, True)) is None, "not all of it was audited"
    path.write_text(json.dumps(row) + "\n")
    assert job.row_in(RowFile(path, True)) == row
    code.write_text("second")
    (job,) = jobs(f"{code}:Code")
    assert job.row_in(RowFile(path, True)) is None, "it has changed"


def test_code_behind_a_link_is_known_by_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text("code")
    (tmp_path / "link.py").symlink_to(tmp_path / "real.py")
    real, link = jobs(f"{tmp_path / 'real.py'}:Code", f"{tmp_path / 'link.py'}:Code")
    assert link.code == real.code != ""
