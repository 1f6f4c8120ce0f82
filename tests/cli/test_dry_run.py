"""--dry-run: what would run, and nothing is written."""

import pytest
from compare.comparisons import FOUR, small_words
from experiments.small import InProcess

TINY = ("steps=7", "batch=2", "model.width=16", "model.depth=1", "context=32", "seed=5")


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr("attnlab.experiments.places.pool_of", lambda *asked: InProcess())


def test_a_training_is_shown_with_its_recipe_size_and_time(attnlab, tmp_path):
    code, out, err = attnlab("train", "tiny", *TINY, "--dry-run")
    assert code == 0, err
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["steps"] == ["7"] and rows["batch"] == ["2"] and rows["seed"] == ["5"]
    assert rows["model.width"] == ["16"] and rows["optimiser"] == ["muon"]
    assert int(rows["model.vocabulary"][0]) > 50, "that of the text"
    assert int(rows["parameters"][0].replace(",", "")) > 1000
    assert "448 tokens" in " ".join(rows["training"])
    assert "checkpoint" in rows["memory"] and rows["time"][0] == "about"
    assert "nothing was written" in out and not list(tmp_path.iterdir())


def test_a_comparison_and_a_study_are_shown_with_their_parts(attnlab, tmp_path):
    words = small_words(tmp_path, *FOUR[:2], "seeds=1")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = attnlab("compare", *words, "--dry-run")
    assert code == 0 and "5 of 5 parts to do, about" in out, err
    assert "matched by parameters" in out and "rotary" in out
    code, out, err = attnlab("study", "window", "scale=tiny", "seeds=1", "--dry-run")
    assert code == 0 and "nothing was written" in out, err
    assert "full attention, seed 0" in out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "tiny", "--dry-run", "--resume"], "leave out --resume"),
        (["train", "tiny", "--dry-run", "stepps=3"], "did you mean 'steps'?"),
        (["train", "shakespeare-cpu", "--dry-run"], "data="),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(attnlab, tmp_path, words, message):
    code, _, err = attnlab(*words)
    assert code == 2 and message in err and len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
