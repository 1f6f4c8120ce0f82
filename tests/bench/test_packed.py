"""The benchmark of packed documents: random lengths, checks first, then medians of ratios."""

import io
import json

import pytest
import torch
from rich.console import Console

from attnlab.bench import packed
from attnlab.bench.packed import PackedBench, Way, definition, fault, ways_of

SMALL = PackedBench(tokens=97, means=(5, 30), heads=4, kv_heads=2, width=16, turns=3)


def inputs(lengths=(1, 7, 3)):
    return [[torch.randn(1, 2, t, 8) for t in lengths] for _ in range(4)]


def test_a_small_run_reports_every_way():
    report = SMALL.run()
    assert SMALL.passed(json.loads(json.dumps(report)))
    names = ["packed", "one by one", "padded"]
    assert [(row["mean"], row["name"]) for row in report["rows"]] == [
        (mean, name) for mean in (5, 30) for name in names
    ]
    for row in report["rows"]:
        for what in ("forward", "both"):
            assert row[what]["ms"] > 0
            assert (row[what]["ratio"] is None) == (row["name"] == "packed")
    screen = Console(file=io.StringIO(), width=100)
    SMALL.show(report, screen)
    assert screen.file.getvalue().count("one by one") == 2


def test_a_ratio_is_the_median_of_the_turns(monkeypatch):
    """Each turn's own ratio: a turn in which everything was slow counts as any other."""
    seconds = {"packed": [1.0, 30.0, 2.0], "one by one": [2.0, 10.0, 8.0], "padded": [4.0] * 3}
    monkeypatch.setattr(packed, "seconds_in_turns", lambda *given, **more: seconds)
    rows = {row["name"]: row["forward"] for row in SMALL.run()["rows"]}
    assert rows["one by one"] == {"ms": 8000, "ratio": 0.5, "ratios": [0.5, 3.0, 0.25]}
    assert rows["packed"]["ratio"] is None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lengths_are_random_fill_the_row_and_have_the_mean(seed):
    lengths = PackedBench(tokens=16384, seed=seed).lengths(64)
    assert sum(lengths) == 16384 and min(lengths) >= 1
    # 256 documents, whose lengths deviate by about their mean: four standard errors
    assert 48 < 16384 / len(lengths) < 86
    assert lengths != PackedBench(tokens=16384, seed=seed + 1).lengths(64)
    assert PackedBench(tokens=1).lengths(64) == [1]


def test_all_ways_give_what_the_definition_gives():
    given = inputs()
    true = definition(*given)
    assert [fault(way, true) for way in ways_of(*given)] == [None] * 3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda q, k, v, one: one["segments"].clamp(max=1), "output off by"),
        (lambda q, k, v, one: one["segments"].clamp(min=1), "output off by"),
    ],
)
def test_a_row_whose_documents_are_told_apart_wrongly_is_named_and_not_timed(
    monkeypatch, wrong, says
):
    right = packed.attention

    def other(q, k, v, **options):
        if "segments" in options:
            options["segments"] = wrong(q, k, v, options)
        return right(q, k, v, **options)

    monkeypatch.setattr(packed, "attention", other)
    report = SMALL.run()
    rows = {row["name"]: row for row in report["rows"]}
    assert says in rows["packed"]["wrong"] and "forward" not in rows["packed"]
    assert rows["padded"]["wrong"] is None and rows["padded"]["forward"]["ratio"] is None
    assert not SMALL.passed(report)
    screen = Console(file=io.StringIO(), width=100)
    SMALL.show(report, screen)
    assert "wrong: output off" in screen.file.getvalue()


def test_a_wrong_gradient_is_found():
    given = inputs()
    row = ways_of(*given)[0]
    off = Way(row.name, lambda q, k, v: row.attend(q, k, v.detach() + 0 * v), row.calls, row.split)
    assert "gradient of v off by" in fault(off, definition(*given))


def test_the_threads_asked_for_are_taken_and_given_back():
    before = torch.get_num_threads()
    for wanted in (1, 2):
        small = PackedBench(tokens=20, means=(5,), heads=1, width=8, turns=1, threads=wanted)
        assert small.run()["threads"] == wanted and torch.get_num_threads() == before
