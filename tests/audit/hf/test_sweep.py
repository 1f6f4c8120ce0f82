"""The sweep: every architecture has its row, and the worst row decides the exit code."""

import pytest
from audit.workers import unlucky

from attnlab.audit.errors import InputError
from attnlab.audit.hf import sweep


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
    assert sweep.exit_code({"verdict": verdict} for verdict in verdicts) == code


def test_a_sweep_gives_every_architecture_a_row_in_order() -> None:
    pytest.importorskip("transformers")
    rows = sweep.sweep(["gpt2", "gemma4_assistant", "no_such"], workers=1)
    assert [row["target"] for row in rows] == ["gpt2", "gemma4_assistant", "no_such"]
    assert [row["verdict"] for row in rows] == ["pass", "not built", "not built"]
    assert all("seconds" in row for row in rows)


def test_only_what_the_library_refuses_is_called_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    models = pytest.importorskip("attnlab.audit.hf.models")

    def refused(name: str) -> None:
        raise InputError("no such model")

    monkeypatch.setattr(models, "audit_hf", refused)
    assert sweep.row("gpt2")["verdict"] == "not built"
    for kind in (KeyError, ValueError, OSError):

        def broken(name: str, kind: type[Exception] = kind) -> None:
            raise kind("ours")

        monkeypatch.setattr(models, "audit_hf", broken)
        found = sweep.row("gpt2")
        assert found["verdict"] == "error" and "raise kind" in found["traceback"], kind


def test_a_worker_that_dies_or_hangs_costs_its_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_work", unlucky)
    rows = sweep.sweep(["dies", "works", "hangs"], workers=1, seconds=5.0)
    assert [row["verdict"] for row in rows] == ["incomplete", "pass", "incomplete"]
    assert "code 7" in rows[0]["detail"] and "more than 5 s" in rows[2]["detail"]
