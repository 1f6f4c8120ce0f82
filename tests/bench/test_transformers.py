"""The benchmark of models of `transformers`: checks first, then ratios, and who is left out."""

import io
import json
from typing import Any

import pytest
import torch
from rich.console import Console

pytest.importorskip("transformers")

from attnlab.bench import transformers as bench
from attnlab.bench.transformers import Case, TransformersBench, definition, fault

SMALL = TransformersBench(
    lengths=(37,), steps=(19,), window=7, layers=2, width=32, heads=4, feedforward=24, turns=3
)
WAYS = ["attnlab", "sdpa", "eager"]


def test_a_small_run_reports_every_way_and_its_memory():
    report = json.loads(json.dumps(SMALL.run()))
    assert SMALL.passed(report) and not report["left_out"]
    assert [(row["what"], row["window"], row["name"]) for row in report["rows"]] == [
        (what, window, name)
        for what in ("prefill", "step")
        for window in (7, None)
        for name in WAYS
    ]
    for row in report["rows"]:
        assert row["ms"] >= row["fastest"] > 0 and "memory" in row
        assert (row["ratio"] is None) == (row["name"] == "attnlab")
    screen = Console(file=io.StringIO(), width=120)
    SMALL.show(report, screen)
    assert screen.file.getvalue().count("sdpa") == 4


@pytest.mark.parametrize("window", [7, None])
@pytest.mark.parametrize("what", ["prefill", "step"])
def test_all_ways_give_what_the_definition_gives(what, window):
    case = Case(what=what, length=37, window=window)
    true = definition(SMALL.model(window, "eager"), case, SMALL.tokens(37))
    ways = SMALL.ways(case)
    assert list(ways) == WAYS
    assert [fault(way.results(), true) for way in ways.values()] == [None] * 3


def test_the_definition_reads_in_pieces(monkeypatch):
    case = Case(what="prefill", length=37, window=7)
    whole = definition(SMALL.model(7, "eager"), case, SMALL.tokens(37))["states"]
    monkeypatch.setattr(bench, "PIECE", 5)
    pieces = definition(SMALL.model(7, "eager"), case, SMALL.tokens(37))["states"]
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-5)


def test_what_is_wrong_gets_no_time(monkeypatch):
    """The negative control: a model with another window."""
    usual = TransformersBench.model

    def other(self: Any, window: int | None, name: str) -> Any:
        return usual(self, None if window is None else window + (name == "attnlab"), name)

    monkeypatch.setattr(TransformersBench, "model", other)
    report = SMALL.run()
    assert not SMALL.passed(report)
    wrong = [row for row in report["rows"] if row["wrong"]]
    assert [(row["name"], row["window"]) for row in wrong] == [("attnlab", 7)] * 2
    assert all("ms" not in row and "off by" in row["wrong"] for row in wrong)
    screen = Console(file=io.StringIO(), width=120)
    SMALL.show(report, screen)
    assert "wrong: states off by" in screen.file.getvalue()


def test_a_peer_without_memory_is_left_out_with_the_reason():
    small = TransformersBench(lengths=(37,), steps=(19,), window=7, width=32, memory=1e-5, turns=1)
    case = Case(what="prefill", length=37, window=7)
    report: dict[str, Any] = {"left_out": []}
    assert list(small.ways(case, report)) == ["attnlab"]
    assert [one["name"] for one in report["left_out"]] == ["sdpa", "eager"]
    assert "more than memory=1e-05" in report["left_out"][0]["reason"]


def test_the_model_without_a_window_may_be_left_out():
    shapes = [(case.what, case.window) for case in TransformersBench(full=False).cases()]
    assert set(shapes) == {("prefill", 512), ("step", 512)}


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"kv_heads is 3; it must divide heads = 8"):
        TransformersBench(kv_heads=3)
    with pytest.raises(ValueError, match="width is 24"):
        TransformersBench(width=24)
