"""The window benchmark: checks first, then takes turns, and reports ratios."""

import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from attnlab.bench import peers, window
from attnlab.bench.measure import exponent, peak_memory, take_turns
from attnlab.bench.table import show
from attnlab.bench.window import Candidate, WindowBench, check
from attnlab.kernels import Request, attention, rotation

SMALL = WindowBench(
    lengths=(96, 192), windows=(8, 32), heads=2, width=16, turns=2, flex=False, device="cpu"
)


def test_a_small_run_reports_everything():
    report = window.run(SMALL)
    names = {row["name"] for row in report["rows"]}
    assert {"attnlab", "dense mask"} <= names
    assert ("local-attention" in names) == bool(importlib.util.find_spec("local_attention"))
    assert not any(row["wrong"] for row in report["rows"])
    assert {(p["length"], p["window"]) for p in report["ratios"]} == {(96, 32), (192, 32), (192, 8)}
    for place in report["ratios"]:
        assert ("dense mask" in place["forward"]) == (place["window"] == 32)  # the middle one
        if "local-attention" in names:
            assert place["forward + backward"]["local-attention"] > 0
    for axis in ("length", "window"):
        assert isinstance(report["exponents"][axis]["forward"], float)


def test_the_table_shows_every_row(capsys):
    from rich.console import Console

    report = window.run(SMALL)
    show(report, Console(width=100))
    shown = capsys.readouterr().out
    assert shown.count("dense mask") == 2 and "to the power" in shown
    assert "attnlab: path" in shown


def inputs():
    q = torch.randn(1, 2, 200, 16)
    return q, torch.randn_like(q), torch.randn_like(q)


def test_a_window_of_one_key_too_many_is_found_wrong():
    right = Candidate("right", window._path("tiled"))
    assert check(right, inputs(), 20) is None
    wide = Candidate("wide", lambda w: window._path("tiled")(w + 1))
    assert "output off by" in check(wide, inputs(), 20)


def test_a_wrong_gradient_is_found():
    def make(w):
        def function(q, k, v):
            out = attention(q, k, v, window=w)
            return out + (v - v.detach()).sum() * 1e-2

        return function

    assert "gradient of v off by" in check(Candidate("wrong", make), inputs(), 20)
    assert check(Candidate("wrong", make, backward=False), inputs(), 20) is None


def test_a_wrong_candidate_gets_no_times(monkeypatch):
    wide = Candidate("wide", lambda w: window._path("tiled")(w + 1))
    monkeypatch.setattr(window, "_candidates", lambda *args: iter([wide]))
    rows = window.run(SMALL)["rows"]
    assert all(row["wrong"] and row["forward"] is None for row in rows)


def test_turns_alternate_and_patience_ends():
    order = []
    timings = take_turns(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        torch.device("cpu"),
        turns=3,
        patience=9,
    )
    assert timings["a"].turns == timings["b"].turns == 3
    assert all(set(order[turn : turn + 2]) == {"a", "b"} for turn in (0, 2, 4, 6))
    order.clear()
    take_turns({"a": lambda: order.append("a")}, torch.device("cpu"), turns=50, patience=1e-9)
    assert len(order) == 2  # one to warm up, one that counts


def test_exponent_of_a_power_law():
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert exponent([4], [1]) is None


def test_peak_memory_sees_what_is_freed_again():
    peak = peak_memory(lambda: torch.ones(10_000_000).sum(), torch.device("cpu"))
    if peak is None:
        pytest.skip("this system does not tell a process its peak memory")
    assert 35e6 < peak < 60e6


@pytest.mark.parametrize(
    ("changes", "installed", "peer", "reason"),
    [
        ({"flex": False}, True, "FlexAttention", "flex=false"),
        ({"width": 17}, True, "FlexAttention", "head widths (17, 17) are not powers of two"),
        ({"kv_heads": 1}, True, "local-attention", "it has a key/value head for every query head"),
        ({}, False, "local-attention", "this peer needs local-attention: pip install "),
        ({"windows": (64,)}, True, "local-attention", "its window must be shorter than the text"),
    ],
)
def test_a_peer_that_is_left_out_has_its_reason(monkeypatch, changes, installed, peer, reason):
    util = SimpleNamespace(find_spec=lambda name: object() if installed else None)
    monkeypatch.setattr(window, "importlib", SimpleNamespace(util=util))
    usual = {"lengths": (64,), "windows": (8,), "heads": 2, "width": 16, "device": "cpu"}
    bench = WindowBench(**{**usual, **changes})
    inputs = window._inputs(bench, 64, torch.device("cpu"), torch.float32)
    (keys,) = bench.windows
    measured = [one.name for one in window._candidates(bench, inputs, keys)]
    absent = window.left_out(bench, inputs, keys)
    assert absent[peer].startswith(reason)
    peers = {"FlexAttention", "local-attention", "dense mask" if keys < 64 else "SDPA, causal"}
    ours = {"attnlab", "attnlab, no compiler"}
    assert {*measured} - ours | {*absent} == peers and not {*measured} & {*absent}


def test_the_dense_mask_stops_where_it_is_told_and_the_table_says_who_is_left_out(capsys):
    few = WindowBench(
        lengths=(64, 96),
        windows=(8,),
        heads=2,
        kv_heads=1,
        width=16,
        turns=1,
        flex=False,
        dense_up_to=64,
        device="cpu",
    )
    report = window.run(few)
    measured = [row["length"] for row in report["rows"] if row["name"] == "dense mask"]
    absent = [one["length"] for one in report["left_out"] if one["name"] == "dense mask"]
    assert measured == [64] and absent == [96]
    show(report, Console(width=300))
    lines = [line for line in capsys.readouterr().out.splitlines() if "is left out" in line]
    assert [line.partition(": ")[0] for line in lines] == [
        "FlexAttention is left out",
        "local-attention is left out",
        "dense mask is left out at length × window 96 × 8",
    ]
    assert lines[-1].endswith("96 tokens are more than dense_up_to=64")


def test_rotary_positions_are_part_of_everybodys_work():
    turned = replace(SMALL, lengths=(96,), windows=(8,), rotary=True)
    report = window.run(turned)
    assert {"attnlab", "dense mask"} <= {row["name"] for row in report["rows"]}
    assert not any(row["wrong"] for row in report["rows"])
    (place,) = report["ratios"]
    theirs = [place["forward"][name] for name in place["forward"] if not name.startswith("attnlab")]
    assert place["best"]["forward"] == max(theirs)


def test_a_candidate_that_turns_nothing_is_found_wrong():
    by = rotation(torch.arange(200)[None], 8)
    right = Candidate("right", window._path("tiled"))
    assert check(right, inputs(), 20, by) is None
    straight = window.Ours("straight", lambda w: lambda q, k, v, rotary: attention(q, k, v))
    assert "output off by" in check(straight, inputs(), 20, by)


def test_rates_count_the_pairs_that_are_attended_to():
    row = window.Row(10, 4, "", window.Timing(1.0, 1, 1, 1), window.Timing(2.0, 1, 1, 1))
    pairs = sum(min(i + 1, 4) for i in range(10))
    rates = window._rates(replace(SMALL, heads=3, width=16), row)
    assert rates["forward"] == pytest.approx(3 * pairs * 2 * 2 * 16 / 1e-3 / 1e12)
    assert rates["forward + backward"] == pytest.approx(3 * pairs * 7 * 2 * 16 / 2e-3 / 1e12)


def test_varlen_is_left_out_with_a_reason(monkeypatch):
    q = torch.randn(1, 4, 20, 16)
    asked = Request(q=q, k=q[:, :2], v=q[:, :2])
    monkeypatch.setattr(peers, "_options_of_varlen", lambda: frozenset())
    assert "has none with windows" in peers.why_not_varlen(asked)
    monkeypatch.setattr(peers, "_options_of_varlen", lambda: frozenset({"window_size"}))
    assert peers.why_not_varlen(asked) == "it does not run in torch.float32"
    half = Request(q=q.half(), k=q[:, :2].half(), v=q[:, :2].half())
    assert "has none with key/value heads for groups" in peers.why_not_varlen(half)


def test_tuning_says_where_it_cannot():
    with pytest.raises(ValueError, match="nothing to tune: the kernels run on CUDA, not on cpu"):
        window.run(replace(SMALL, tune=True))


def test_a_window_of_everything_is_held_against_causal_attention():
    full = WindowBench(
        lengths=(64,), windows=(64,), heads=1, width=16, turns=1, flex=False, device="cpu"
    )
    names = [row["name"] for row in window.run(full)["rows"]]
    assert "SDPA, causal" in names and "dense mask" not in names and "local-attention" not in names
