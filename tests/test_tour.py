"""The quick tour: says what is wrong when something is."""

import pytest
from rich.console import Console

from attnlab import registry, tour
from attnlab.bench.window import WindowBench


@pytest.fixture
def short_bench(monkeypatch):
    settings = WindowBench(
        lengths=(64, 128), windows=(8,), heads=1, width=16, turns=1, flex=False, device="cpu"
    )
    monkeypatch.setattr(tour.window, "WindowBench", lambda **ignored: settings)


def test_the_tour_ends_well(short_bench, capsys):
    assert tour.walk(Console(width=100))
    shown = capsys.readouterr().out
    for word in (
        "■ ■ ■",
        "native",
        "additive",
        "alibi",
        "dense mask",
        "everything equals its definition",
    ):
        assert word in shown


def test_the_tour_says_what_is_wrong(short_bench, monkeypatch, capsys):
    monkeypatch.setattr(
        tour, "_cache_errors", lambda: (((s, p), 1.0) for s in SCORES for p in SCHEMES)
    )
    assert not tour.walk(Console(width=100))
    assert "something is wrong" in capsys.readouterr().out


SCORES = [option.name for option in registry.options("score")]
SCHEMES = [option.name for option in registry.options("positions")]
