"""`attnlab study` as a person meets it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnlab import registry
from attnlab.experiments.experiment import Experiment, Findings
from attnlab.experiments.pool import Interrupted
from attnlab.experiments.workspace import Job
from attnlab.reports.report import Section


class Pocket(Experiment):
    """A study of nothing, with settings of its own."""


@pytest.fixture
def pocket(monkeypatch):
    """Registers a study that only counts."""
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class PocketStudy(Pocket):
        number: int = 3
        stop: bool = False

        def text(self):
            return "no text"

        def jobs(self, workspace):
            def work():
                if self.stop:
                    raise Interrupted("SIGTERM")
                return self.number

            return [Job("count", work)]

        def findings(self, results):
            return Findings(
                title="Pocket",
                question="How many?",
                answer=f"It is [{results['count']}].",
                sections=[Section(heading="One", text="Counted.")],
                summary={"count": results["count"]},
            )

    load = registry.load
    option = registry.Option("study", "pocket", "nowhere:PocketStudy", "counts")
    monkeypatch.setattr(registry, "_OPTIONS", [*registry._OPTIONS, option])
    monkeypatch.setattr(
        registry,
        "load",
        lambda kind, name: PocketStudy if name == "pocket" else load(kind, name),
    )


def test_the_answer_and_where_to_read_more(attnlab, pocket, tmp_path):
    code, out, err = attnlab("study", "pocket", "number=5")
    assert code == 0 and "How many?" in out and "It is [5]." in out
    assert "to do: 1 of 1 parts, about 1 s" in err
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"read runs/{folder.name}/report.html" in out
    page = (folder / "report.html").read_text()
    assert "attnlab study pocket number=5" in page and "It is [5]." in page


def test_json_is_all_that_stdout_has(attnlab, pocket):
    code, out, _ = attnlab("study", "pocket", "--json")
    found = json.loads(out)
    assert code == 0 and (found["study"], found["count"], found["answer"]) == (
        "pocket",
        3,
        "It is [3].",
    )
    assert found["settings"] == {"number": 3, "stop": False}


def test_the_same_command_repeats_nothing_and_again_does(attnlab, pocket, tmp_path):
    for words in ([], [], ["--again"], ["number=4"]):
        assert attnlab("study", "pocket", *words)[0] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_stopped_it_says_how_to_go_on(attnlab, pocket):
    code, _, err = attnlab("study", "pocket", "stop=true")
    assert code == 128 + 15 and "the same command resumes it" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["birthplace"], "did you mean 'birthplaces'?"),
        (["birthplaces", "scale=huge"], "scale is 'huge'"),
        (["birthplaces", "scale=full"], "write data=FOLDER"),
        (["birthplaces", "data=nowhere"], "nowhere does not exist"),
        (["birthplaces", "seeds=0"], "seeds is 0"),
        (["birthplaces", "people=0"], "people is 0"),
        (["birthplaces", "colour=red"], "colour"),
        (["rope-gqa", "scale=full"], "data=FILE"),
        (["rope-gqa", "data=nowhere"], "nowhere does not exist"),
        (["recurrent", "data=nowhere"], "nowhere does not exist"),
        (["window", "seeds=-1"], "seeds is -1"),
    ],
)
def test_a_slip_is_one_line_and_exit_code_2(attnlab, tmp_path, words, message):
    code, out, err = attnlab("study", *words)
    assert code == 2 and out == "" and message in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_killed_study_goes_on(tmp_path):
    """The real thing, ended by SIGTERM while it trains."""
    words = ["study", "birthplaces", "scale=tiny", "people=12", "arms=none"]
    command = [sys.executable, "-m", "attnlab", *words]
    env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    started = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE)
    parts = tmp_path / "runs"
    limit = time.monotonic() + 100
    while not list(parts.glob("*/runs/*/manifest.json")) and time.monotonic() < limit:
        time.sleep(0.02)
    started.send_signal(signal.SIGTERM)
    _, err = started.communicate(timeout=100)
    if started.returncode != 0:  # it may have been finished already
        assert started.returncode == 128 + 15 and b"the same command resumes" in err
    done = subprocess.run([*command, "--json"], cwd=tmp_path, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["arms"]["none"]["by_seed"]
