"""The claims that train, in little: what they do with answers, and that their trainings learn.

No verdict of a reduced training is asserted: chance decides it, and differently on every machine.
`attnlab claims` runs the claims whole; what it found is in docs/theory/outcomes.json.
"""

import json
import math
from pathlib import Path
from statistics import fmean, stdev

import pytest

from attnlab.evaluate import Answer
from attnlab.experiments.progress import Progress
from attnlab.statistics import student
from attnlab.studies.birthplaces import experiment
from attnlab.studies.birthplaces.experiment import Size
from attnlab.theory import interviews
from attnlab.theory.claim import Measure
from attnlab.theory.knowledge import (
    LEVEL,
    MadeUpAnswers,
    PretrainingCarriesFacts,
    resemblance,
)
from attnlab.training.runs import Run

SMALL = Size(people=12, steps=1, wordings=4, width=32, batch=24)
STEPS, LAST = 250, 25
# Mean loss of the last 25 of 250 steps with SMALL and seeds 0 to 11, on an AMD EPYC (AVX-512), by
# `python tests/theory/test_knowledge.py`. Another CPU rounds otherwise and trains another model:
# what must agree is the distribution they come from.
RECORDED = [0.998, 0.970, 0.972, 0.991, 0.956, 0.996, 0.979, 0.959, 0.977, 0.994, 0.978, 0.941]
OUTCOMES = Path(__file__).parents[2] / "docs" / "theory" / "outcomes.json"


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(experiment.SIZES, "tiny", SMALL)
    monkeypatch.setattr(interviews, "UNREAD", 20)
    monkeypatch.setattr(interviews, "RECOMBINED", 20)


def last_loss(folder):
    return fmean(row["loss"] for row in Run(folder).read("metrics")[-LAST:])


def predicted(values, value, level=1 - 1e-6):
    """Whether another value of the same distribution would be expected here."""
    half = student(len(values) - 1, level) * stdev(values) * math.sqrt(1 + 1 / len(values))
    return abs(value - fmean(values)) <= half


def test_a_training_in_little_ends_where_others_did(small, tmp_path):
    """That it learns as it did; which positions it has, for one, does not show in so little."""
    interviews.interviews("rotary", [100], STEPS, root=tmp_path, progress=Progress())
    (folder,) = tmp_path.glob("claims-knowledge-*/runs/rotary-*")
    assert predicted(RECORDED, last_loss(folder)), (last_loss(folder), RECORDED)
    losses = [row["loss"] for row in Run(folder).read("metrics")]
    half = fmean(losses[STEPS // 2 - LAST : STEPS // 2])
    assert not predicted(RECORDED, half)  # half a training is told apart


def test_other_questions_are_another_interview_of_the_same_training(small, tmp_path, monkeypatch):
    (first,) = interviews.interviews("none", [0], 2, root=tmp_path, progress=Progress())
    monkeypatch.setattr(interviews, "UNREAD", 30)
    (second,) = interviews.interviews("none", [0], 2, root=tmp_path, progress=Progress())
    assert len(second["unread"]) > len(first["unread"])
    assert len(list(tmp_path.glob("claims-knowledge-*/runs/*"))) == 1


def test_the_trainings_are_kept_and_both_claims_use_the_same(small, tmp_path):
    facts = PretrainingCarriesFacts(draws=2, steps=4, runs=tmp_path, seed=3)
    facts.prepare(Progress())
    kept = sorted(tmp_path.glob("claims-knowledge-*/runs/*"))
    assert len(kept) == 4 and all("seed-3" in path.name or "seed-4" in path.name for path in kept)
    times = [path.stat().st_mtime_ns for path in kept]
    made_up = MadeUpAnswers(draws=2, steps=4, runs=tmp_path, seed=3)
    for claim in (facts.with_knob(), made_up, made_up.with_knob()):
        claim.prepare(Progress())
    assert sorted(tmp_path.glob("claims-knowledge-*/runs/*")) == kept
    assert [path.stat().st_mtime_ns for path in kept] == times
    for found in (facts.run(), made_up.run()):
        assert found.kind == "trained" and found.picture.series
        assert all(len(one.draws) == 2 for one in found.measures)
        # four steps teach nothing: the same code that says "holds" must not say it here
        assert found.verdict != "holds"


def test_every_seed_draws_other_people_and_the_unread_are_from_the_same_generator(small):
    first, second = (interviews.questions(seed) for seed in (0, 1))
    assert {one.text for one in first["read"]}.isdisjoint(one.text for one in second["read"])
    known = {one.text for group in ("asked", "read") for one in first[group]}
    for group in ("unread", "recombined"):
        assert known.isdisjoint(one.text for one in first[group])
    assert all(one.answer for one in first["unread"])
    assert {one.text for one in interviews.questions(0)["unread"]} == {
        one.text for one in first["unread"]
    }


def test_a_recipe_that_changes_is_another_training(small, tmp_path):
    for steps in (1, 2):
        interviews.interviews("rotary", [0], steps, root=tmp_path, progress=Progress())
    assert len(list(tmp_path.glob("claims-knowledge-*/runs/*"))) == 2


def test_one_draw_cannot_show_that_pretraining_helps():
    with pytest.raises(ValueError, match="draws is 1; use 2 to 50"):
        PretrainingCarriesFacts(draws=1)


def answers(*pairs):
    return [
        Answer(question=f"Where was {name} born?", expected=None, given=place, confidence=0.5)
        for name, place in pairs
    ]


def test_resemblance_is_counted_against_answers_dealt_out_to_other_names():
    near = {"Ann Ash": {"Rome"}, "Bea Bar": {"Oslo"}, "Cid Cal": {"Lima"}}.get

    def asked(question):
        return near(question.removeprefix("Where was ").removesuffix(" born?"))

    follows = answers(("Ann Ash", "Rome"), ("Bea Bar", "Oslo"), ("Cid Cal", "Lima"))
    assert resemblance(follows, asked) == (1.0, 0.0)
    always = answers(("Ann Ash", "Rome"), ("Bea Bar", "Rome"), ("Cid Cal", "Rome"))
    share, chance = resemblance(always, asked)  # one answer for all follows nobody
    assert share == pytest.approx(chance) == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["pretraining-carries-facts", "made-up-answers"])
def test_the_recorded_verdict_follows_from_the_recorded_draws(name):
    recorded = {one["name"]: one for one in json.loads(OUTCOMES.read_text())["outcomes"]}[name]
    found = [
        Measure.mean(one["what"], one["draws"], one["rule"], one["bound"], LEVEL)
        for one in recorded["measures"]
    ]
    for one, kept in zip(found, recorded["measures"], strict=True):
        assert len(one.draws) == recorded["settings"]["draws"] == 10
        for end in ("value", "low", "high"):
            assert getattr(one, end) == pytest.approx(kept[end], abs=1e-9)
    assert all(one.met for one in found) and recorded["verdict"] == "holds"
    assert recorded["error_rates"]["power"] > 0.999


def record():
    experiment.SIZES["tiny"] = SMALL
    interviews.UNREAD = interviews.RECOMBINED = 20
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        interviews.interviews("rotary", range(12), STEPS, root=root, progress=Progress())
        folders = sorted(root.glob("claims-knowledge-*/runs/rotary-*"))
        print([round(last_loss(folder), 3) for folder in folders])


if __name__ == "__main__":
    record()
