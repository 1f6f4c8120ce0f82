"""`attnlab.compare` makes the comparison that the command makes, stops and resumes."""

import json
import signal

import pytest

import attnlab
from attnlab.experiments.pool import Interrupted

VARIANTS = ["rotary=shakespeare-cpu", "learned=shakespeare-cpu:model.positions=learned"]
FEW = {"steps": 3, "seeds": 1, "tune": "none", "turns": 1, "evaluations": 2, "sample": 5}


@pytest.fixture(scope="module")
def comparison(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    return folder, attnlab.compare(*VARIANTS, *small[1], **FEW, runs=folder, processes=1)


def test_the_command_line_finds_it_finished(small, comparison, command):
    """The folder's name is a hash of all settings, and each job runs once."""
    folder, found = comparison
    settings = [f"{name}={value}" for name, value in FEW.items()]
    said = command("compare", *VARIANTS, *small[1], *settings, "--runs", folder, "--json")
    assert said == found.results == json.loads((found.path / "results.json").read_text())
    assert [one.name for one in folder.iterdir()] == [found.path.name]
    assert found.report.command.startswith("attnlab compare rotary=")
    assert found.report.command.endswith(f"--runs {folder}")


def test_a_comparison_shows_table_curves_and_answer(comparison):
    _, found = comparison
    assert found.best in ("rotary", "learned") and found.answer in found._repr_html_()
    assert [row["variant"] for row in found.rows] == ["rotary", "learned"]
    assert found._repr_html_().count("<svg") == 2 and "<script" not in found._repr_html_()
    assert found.to_csv().startswith("variant,held-out loss") and found.table("costs").rows
    assert (found.path / "report.html").is_file() and found.lacking == ""
    with pytest.raises(LookupError, match="there are: 'Results'"):
        found.table("nonsense")


def test_a_stopped_comparison_raises_and_says_how_to_go_on(small, tmp_path, monkeypatch):
    def interrupted(self, tasks, log, watch):
        raise Interrupted("SIGINT")

    monkeypatch.setattr("attnlab.experiments.local.LocalPool.train", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(attnlab.Interrupt, match="the same call resumes it"):
        attnlab.compare(*VARIANTS, *small[1], **FEW, runs=tmp_path)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("words", "named", "same"),
    [
        (["tiny"], {}, ["tiny"]),
        (["tinny", "tiny"], {}, ["tinny", "tiny"]),
        (["tiny", "tiny:model.window=4"], {"sedes": 3}, ["tiny", "tiny:model.window=4", "sedes=3"]),
        (["tiny", "tiny:model.window=4"], {"on": "rai"}, ["tiny", "tiny:model.window=4"]),
    ],
)
def test_an_error_is_the_line_of_the_command_line(words, named, same, command, tmp_path):
    with pytest.raises(attnlab.Error) as raised:
        attnlab.compare(*words, **named, runs=tmp_path)
    options = ["--on", "rai"] if "on" in named else []
    assert str(raised.value) == command("compare", *same, *options, "--runs", tmp_path)
