"""`attnlab check statistics` counts false verdicts, and would notice if there were too many."""

import io

import numpy as np
import pytest
from rich.console import Console

from attnlab.checks import statistics
from attnlab.checks.statistics import (
    StatisticsCheck,
    Trial,
    paired_test,
    percent_found,
    percent_told_apart,
    pooled_test,
    single,
)
from attnlab.experiments import verdicts
from attnlab.experiments.verdicts import Stretches, pairs
from attnlab.reports.report import format_cell
from attnlab.statistics import neighbour_correlation

QUICK = StatisticsCheck(draws=40, deals=60, seeds=8)


def silent(text):
    pass


def made_up(check, tick):
    """In place of real trainings: a loss for every seed and twin, alike over the text."""
    rng = np.random.default_rng(3)
    losses = 2 + rng.normal(0, 0.02, (check.seeds, 1)) + rng.normal(0, 0.01, (8, check.twins))
    return [[Stretches([loss] * 30, [1.0] * 30) for loss in row] for row in losses]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(statistics, "trainings", made_up)
    return QUICK


@pytest.fixture(scope="module")
def report():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "trainings", made_up)
        return QUICK.run(silent)


def test_the_report_has_errors_and_power_and_a_control_that_fails(report):
    assert report["passed"] and report["control_exceeds_the_level"]
    assert len(report["simulated"]) == 12 and report["real_trainings"] == 48
    for row in report["simulated"]:
        assert row["found_%"] >= row["found_before_%"]
        if row["variants"] == 2:
            assert row["found_%"] == row["found_before_%"]  # then both are the paired_test t test
            assert row["false_%"] == row["false_before_%"]
    assert [row["seeds"] for row in report["real_twins"]] == [3, 4, 5]
    text = [(row["variants"], row["seeds"]) for row in report["text_varies_too"]]
    assert {(2, 2), (2, 3), (2, 4), (4, 4)} <= set(text)
    assert set(report["text_varies_too"][0]["false_%"]) == {
        "neighbours_0",
        "neighbours_0.6",
        "neighbours_0.7",
    }
    power = report["power_of_4_variants"]
    assert {row["spread"] for row in power} == {statistics.SPREAD, statistics.LAB_SPREAD}
    assert {row["text_spread"] for row in power} == {0.0, *statistics.TEXT_SPREADS}


def test_the_report_is_shown_as_tables(report):
    screen = Console(file=io.StringIO(), width=300)
    QUICK.show(report, screen)
    said = screen.file.getvalue()
    for title in statistics.TITLES.values():
        assert title in said
    row = report["one_variant_less_steady"][0]
    assert any(
        " ".join(line.split()) == "variants seeds false % x2 false % x3 false % x5 false % x10"
        for line in said.splitlines()
    )
    cells = [format_cell(cell) for cell in (4, 3, *row["false_%"].values())]
    assert any(line.split() == cells for line in said.splitlines())
    assert "passed: false verdicts may be 5 %" in said


def test_the_check_fails_when_nothing_is_corrected(quick, monkeypatch):
    monkeypatch.setattr(statistics, "pooled_test", single)
    assert not quick.run(silent)["passed"]


def test_the_check_fails_when_stretches_are_taken_for_independent(quick, monkeypatch):
    monkeypatch.setattr(verdicts, "BATCHES", 30)
    monkeypatch.setattr(verdicts, "ALLOWANCE", 1.0)
    assert not quick.run(silent)["passed"]


def test_simulated_text_is_alike_from_stretch_to_stretch():
    fresh = np.random.default_rng(2).normal(size=(3, 20_000))
    for alike in (0.0, 0.6):
        waves = statistics._waves(fresh, alike)
        assert waves.std() == pytest.approx(1, abs=0.02)
        for row in waves:
            assert neighbour_correlation(row) == pytest.approx(alike, abs=0.03)


def test_what_was_before_is_each_pair_alone_with_holms_correction():
    losses = {
        "0": {0: 1.0, 1: 1.1, 2: 1.2},
        "1": {0: 1.5, 1: 1.61, 2: 1.7},
        "2": {0: 1, 1: 2, 2: 3},
    }
    one = Trial(losses)
    alone = single(one)
    assert alone["0", "1"] == pairs({k: losses[k] for k in "01"}, 0.95)[0].p
    assert paired_test(one)["0", "1"] == pytest.approx(3 * alone["0", "1"])
    assert set(pooled_test(one)) == set(alone)
    assert (
        percent_told_apart([one], paired_test) == 100.0
        and percent_found([one], paired_test) == 50.0
    )


def test_twins_share_batches_and_differ_in_their_first_weights(tmp_path):
    check = StatisticsCheck(steps=2)
    recipe = statistics.launch.recipe_for("tiny", [*statistics.SMALL, "steps=2"])
    ends = {
        (twin, again): statistics.train_twin(recipe, twin, tmp_path / f"{twin}{again}")
        for twin, again in ((0, 0), (0, 1), (1, 0))
    }
    assert ends[0, 0] == ends[0, 1] and ends[0, 0].loss != ends[1, 0].loss
    assert ends[0, 0].counts == ends[1, 0].counts and check.twins == 6
    rows = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("00", "01", "10")]
    assert rows[0] == rows[1] != rows[2]


@pytest.mark.parametrize("setting", ["draws", "deals", "steps", "seeds", "twins"])
def test_nonsense_is_refused(setting):
    with pytest.raises(ValueError, match=f"{setting} is 0"):
        StatisticsCheck(**{setting: 0})
