"""The decoding benchmark: checked first, timed in turns, reported as ratios to SDPA."""

import dataclasses
import io
import json

import pytest
import torch
from rich.console import Console

from attnlab.bench import decode
from attnlab.bench.decode import APPEND, PEER, DecodeBench

SMALL = DecodeBench(keys=19, window=5, batch=2, heads=4, kv_heads=2, width=16, calls=3, turns=2)
NAMES = [PEER, "a layer's step", "attention()", APPEND]


def test_a_small_run_reports_every_case():
    report = SMALL.run()
    assert [(row["case"], row["name"]) for row in report["rows"]] == [
        (case, name) for case in ("all keys", "window", "padding") for name in NAMES
    ]
    assert SMALL.passed(json.loads(json.dumps(report)))
    for row in report["rows"]:
        assert row["us"] > 0 and (row["ratio"] == 1) == (row["name"] == PEER)
    screen = Console(file=io.StringIO(), width=100)
    SMALL.show(report, screen)
    assert screen.file.getvalue().count("a layer's step") == 3


def test_the_threads_asked_for_are_taken_and_given_back():
    before = torch.get_num_threads()
    for wanted in (1, 2):
        assert dataclasses.replace(SMALL, threads=wanted).run()["threads"] == wanted
        assert torch.get_num_threads() == before


def test_all_but_append_compute_the_same():
    for case in SMALL.cases():
        peer, step, function, _ = (work() for work in case.works().values())
        torch.testing.assert_close(step, peer)
        torch.testing.assert_close(function, peer)
    assert len(SMALL.cases()) == 3


def test_a_wrong_result_is_named_and_not_timed(monkeypatch):
    plain = decode.attention

    def off(*args, path="auto", **options):
        return plain(*args, path=path, **options) + (0 if path == "reference" else 1e-3)

    monkeypatch.setattr(decode, "attention", off)
    report = SMALL.run()
    wrong = [row for row in report["rows"] if row["wrong"]]
    assert {row["name"] for row in wrong} == {"attention()"} and len(wrong) == 3
    assert all("off by 1.0e-03" in row["wrong"] and "us" not in row for row in wrong)
    assert not SMALL.passed(report)
    screen = Console(file=io.StringIO(), width=100)
    SMALL.show(report, screen)
    assert screen.file.getvalue().count("wrong: off by") == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"calls": 0}, "calls is 0; use 1 or more"),
        ({"threads": 0}, "threads is 0; use 1 or more, or none"),
        ({"window": 129}, "window is 129; use at most keys = 128"),
        ({"kv_heads": 3}, "kv_heads is 3; it must divide heads = 4"),
    ],
)
def test_nonsense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        DecodeBench(**wrong)
