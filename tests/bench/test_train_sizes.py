"""Steps at several sizes: rows beside the peer's, and none where they would not be comparable."""

import io
import json
import math

import pytest
import torch
from rich.console import Console

from attnlab import config
from attnlab.bench import train_sizes
from attnlab.bench.train import TrainBench
from attnlab.bench.train_sizes import Problem
from attnlab.models.model import parameters

SMALL = Problem(size="tiny", context=8, batch=2, vocabulary=11, device=torch.device("cpu"))


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def silent(text):
    pass


def test_tiny_models_are_timed_beside_the_peer_and_full_sizes_are_said_to_want_a_gpu():
    bench = TrainBench(sizes=("tiny",), turns=2)
    report = json.loads(json.dumps(bench.run(silent)))
    (found,) = report["sizes"]
    peer, *ours = found["rows"]
    assert [row["name"] for row in ours] == ["ours, AdamW", "ours, Muon"]
    assert peer["ratio"] == 1 and all(row["ratio"] > 0 for row in ours)
    assert len({row["parameters"] for row in found["rows"]}) == 1
    for row in found["rows"]:
        first, last = row["losses"]
        assert abs(first - math.log(65)) < 0.5 and math.isfinite(last)
        assert row["step_ms"]["turns"] == 2 and row["utilisation"] > 0
        assert row["peak"] is None or row["peak"] > 0
    assert bench.passed(report)
    screen = Console(file=io.StringIO(), width=120)
    bench.show(report, screen)
    assert "are meant for one" in screen.file.getvalue() and "Muon" in screen.file.getvalue()


def test_full_sizes_are_what_their_names_say():
    with torch.device("meta"):
        for size, millions in (("10M", 10.6), ("85M", 85), ("300M", 302)):
            problem = Problem(
                size=size, context=1024, batch=16, vocabulary=50_304, device=SMALL.device
            )
            model = problem.settings.build()
            tables = model.embed.weight.numel() + 1024 * model.settings.width
            assert (parameters(model) - tables) / 1e6 == pytest.approx(millions, rel=0.01)


def test_another_number_of_parameters_is_refused(monkeypatch):
    monkeypatch.setattr(train_sizes, "SHAPE", ["expansion=2"])
    with pytest.raises(ValueError, match=r"tiny: ours, AdamW has .* parameters and the peer"):
        train_sizes.measure(SMALL, 1, silent)


@pytest.mark.parametrize("name", ["peer", "ours, Muon"])
def test_a_loss_that_is_not_finite_is_refused(monkeypatch, name):
    plain = train_sizes.CANDIDATES[name]

    def broken(problem):
        made = plain(problem)
        with torch.no_grad():
            made.model.embed.weight.fill_(torch.nan)
        return made

    monkeypatch.setitem(train_sizes.CANDIDATES, name, broken)
    with pytest.raises(ValueError, match=f"a loss of {name} is not finite"):
        train_sizes.measure(SMALL, 1, silent)


def test_an_unknown_size_is_refused_and_settings_of_no_size():
    with pytest.raises(ValueError, match="batch is 4; it is of the steps that sizes= names"):
        TrainBench(batch=4)
    for word in ("data=text", "losses=1.5", "full=true", "seed=1"):
        with pytest.raises(ValueError, match=f"{word.split('=')[0]} is .*; with sizes= "):
            config.override(TrainBench(), ["sizes=tiny", word])
    with pytest.raises(ValueError, match=r"did you mean .10M"):
        config.override(TrainBench(), ["sizes=11M"])
