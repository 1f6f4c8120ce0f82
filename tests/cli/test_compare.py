"""`attnlab compare` as a person meets it."""

import json

import pytest
from compare.comparisons import FOUR, small_words
from experiments.small import InProcess

from attnlab.experiments import places
from attnlab.experiments.pool import Interrupted


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(places, "pool_of", lambda cluster, processes: InProcess())


def test_a_table_an_answer_and_where_to_read_more(attnlab, here, tmp_path):
    words = small_words(tmp_path, *FOUR[:2], "seeds=1")
    code, out, err = attnlab("compare", *words)
    assert code == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("compare-")
    assert "Which has the lowest held-out loss" in out and "1 seed cannot tell" in out
    assert f"read runs/{folder.name}/report.html" in out
    assert "to do: 5 of 5 parts, about" in err
    page = (folder / "report.html").read_text()
    assert "attnlab compare data=" in page and "for_all=" in page
    code, out, err = attnlab("compare", *words, "--json")
    found = json.loads(out)
    assert code == 0 and "all of it is done already" in err
    assert found["compare"] == folder.name.removeprefix("compare-")
    assert set(found["variants"]) == {"learned", "rotary"} == set(found["measured"])


def test_a_training_that_fails_is_no_result_and_is_tried_again(attnlab, tmp_path, monkeypatch):
    """What failed may be an error of ours: it must not be kept as an answer."""

    class Failing(InProcess):
        def train(self, tasks, log, watch):
            endings = super().train(tasks, log, watch)
            return {**endings, tasks[0].name: {"ending": "failed", "why": "KeyError: ours"}}

    words = small_words(tmp_path, *FOUR[:2], "seeds=1")
    monkeypatch.setattr(places, "pool_of", lambda cluster, processes: Failing())
    code, out, err = attnlab("compare", *words)
    assert code == 1 and "KeyError: ours" in err
    assert "failed: 1 of 2 trainings failed" in err and "the same command tries again" in err
    monkeypatch.setattr(places, "pool_of", lambda cluster, processes: InProcess())
    code, out, err = attnlab("compare", *words)
    assert code == 0 and "to do: 5 of 5 parts" in err and "failed" not in out + err
    assert "all of it is done already" in attnlab("compare", *words)[2]


def test_stopped_it_says_that_the_same_command_goes_on(attnlab, tmp_path, monkeypatch):
    class Stopped(InProcess):
        def train(self, tasks, log, watch):
            raise Interrupted("SIGTERM")

    monkeypatch.setattr(places, "pool_of", lambda cluster, processes: Stopped())
    code, _, err = attnlab("compare", *small_words(tmp_path, *FOUR[:2]))
    assert code == 128 + 15 and "the same command resumes" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiny", "tny"], "did you mean 'tiny'?"),
        (["lab", "sedes=2"], "did you mean 'seeds'?"),
        (["tiny", "same=tiny"], "are the same"),
        (["lab", "data=nowhere"], "nowhere does not exist"),
        (["lab", "--on", "rai"], "did you mean 'ray'?"),
        (["lab", "--address", "auto"], "--on ray"),
        (
            ["tiny:model.width=16,model.depth=1", "tiny:model.attention.heads=60,model.width=120"],
            "cannot be matched",
        ),
        (["lab", "rates=1,1e9"], "optimiser.rate"),
    ],
)
def test_a_slip_is_one_line_and_exit_code_2(attnlab, tmp_path, words, message):
    code, out, err = attnlab("compare", *words)
    assert code == 2 and out == "" and message in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()
