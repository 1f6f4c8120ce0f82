"""The tour runs the commands it shows, in order, and says how to go on."""

import dataclasses
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnlab.cli import app, tour


@pytest.fixture
def stops(monkeypatch):
    """Stops that only say that somebody came by, and where to put things."""
    seen = []
    short = tuple(
        dataclasses.replace(stop, work=lambda root, stop=stop: seen.append((stop.words, root.name)))
        for stop in tour.STOPS
    )
    monkeypatch.setattr(tour, "STOPS", short)
    return seen


def test_the_tour_visits_every_stop_in_order_and_ends_at_the_page(stops, tmp_path):
    result = CliRunner().invoke(app, ["tour", "--runs", str(tmp_path)])
    assert result.exit_code == 0
    assert stops == [(stop.words, tmp_path.name) for stop in tour.STOPS]
    assert "minutes" in result.output.splitlines()[0] + result.output.splitlines()[1]
    assert "attnlab page --runs" in result.output.replace("\n", "")


def test_a_stop_that_fails_ends_the_tour(stops, monkeypatch, tmp_path):
    def broken(root):
        raise ValueError("nothing works")

    first, *others = tour.STOPS
    monkeypatch.setattr(tour, "STOPS", (dataclasses.replace(first, work=broken), *others))
    result = CliRunner().invoke(app, ["tour", "--runs", str(tmp_path)])
    assert isinstance(result.exception, ValueError)
    assert stops == []


@pytest.mark.parametrize("stop", tour.STOPS, ids=lambda stop: stop.words)
def test_the_words_shown_are_those_of_a_command(stop):
    verb = stop.words.split()[0]
    assert CliRunner().invoke(app, [verb, "--help"]).exit_code == 0


@pytest.mark.parametrize("stop", tour.STOPS[1:], ids=lambda stop: stop.words)
def test_a_report_that_the_tour_makes_names_the_command_of_its_stop(stop, monkeypatch, tmp_path):
    """`attnlab tour` would do all the rest again."""
    named = []

    class Enough(Exception):
        pass

    def noted(*given, command, **more):
        named.append(" ".join(command))
        raise Enough

    monkeypatch.setattr(sys, "argv", ["attnlab", "tour"])
    monkeypatch.setattr("attnlab.experiments.experiment.carry_out", noted)
    for root in (Path("runs"), tmp_path):
        with pytest.raises(Enough):
            stop.work(root)
    assert named == [stop.words, stop.words]
