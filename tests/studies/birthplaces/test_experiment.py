"""The birthplaces study: whole and in little, and its sentences from made-up results."""

import dataclasses
import json

import pytest
from experiments.small import says_what_it_trains

from attnlab.experiments.experiment import carry_out
from attnlab.experiments.progress import Progress
from attnlab.experiments.verdicts import Pair
from attnlab.experiments.workspace import Workspace
from attnlab.statistics import mean_interval, student
from attnlab.studies.birthplaces import experiment
from attnlab.studies.birthplaces.experiment import BirthplacesStudy, Size
from attnlab.studies.birthplaces.report import ARMS, difference, findings, verdict

MICRO = Size(people=14, steps=6, wordings=2, width=16, batch=4, seeds=2)


@pytest.fixture(scope="module")
def micro():
    before = dict(experiment.SIZES)
    experiment.SIZES["tiny"] = MICRO
    yield
    experiment.SIZES.update(before)


@pytest.fixture(scope="module")
def done(micro, tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    arms = tuple(ARMS)
    return carry_out(
        "birthplaces",
        BirthplacesStudy(scale="tiny", arms=arms, seeds=1),
        root=root,
        progress=Progress(),
    )


def without_times(value):
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not k.endswith(("seconds", "sha256"))}
        return {k: without_times(v) for k, v in kept.items()}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def test_a_study_leaves_its_reports(done):
    for name in ("report.html", "report.md", "results.json", "settings.json"):
        assert (done.folder / name).stat().st_size > 100
    text = (done.folder / "report.md").read_text()
    for label in ARMS.values():
        assert label in text
    assert json.loads((done.folder / "results.json").read_text()) == done.results


def test_a_pool_is_told_of_every_training(done):
    study = BirthplacesStudy(scale="tiny", arms=tuple(ARMS), seeds=1)
    assert says_what_it_trains(study, done.folder)


def test_every_arm_is_judged(done):
    assert set(done.results["arms"]) == set(ARMS)
    for found in done.results["arms"].values():
        assert len(found["by_seed"]) == 1
        assert found["low"] <= found["accuracy"] <= found["high"]
    assert done.results["baseline"]["questions"] == {"train": 7, "dev": 7, "test": 0}
    assert len(done.results["interviews"]) == 1


def test_interrupted_anywhere_every_part_ends_the_same(done, micro, tmp_path, monkeypatch):
    """Against the same parts of the study that was left in peace."""
    study = BirthplacesStudy(scale="tiny", arms=("none", "rotary"), seeds=1)
    real, count = Workspace._run, [0]

    def dies(self, job):
        count[0] += 1
        if count[0] in (2, 4):
            raise KeyboardInterrupt
        real(self, job)

    monkeypatch.setattr(Workspace, "_run", dies)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            carry_out("birthplaces", study, root=tmp_path, progress=Progress())
    again = carry_out("birthplaces", study, root=tmp_path, progress=Progress())
    parts = list((again.folder / "parts").iterdir())
    assert len(parts) == 5
    for path in parts:
        before = json.loads((done.folder / "parts" / path.name).read_text())
        assert without_times(json.loads(path.read_text())) == without_times(before)


def course(folder):
    """The course's files in little."""
    names = [f"Person{number} Elm" for number in range(12)]
    rows = [f"Where was {name} born?\tRome\n" for name in names]
    wiki = [f"{name}. {name} was born in Rome , long ago ." for name in names]
    # the letters of a question, all of which the course's own text has
    (folder / "wiki.txt").write_text("\n".join([*wiki[:-1], wiki[-1] + " Where?"]))
    (folder / "birth_places_train.tsv").write_text("".join(rows[:6]))
    (folder / "birth_dev.tsv").write_text("".join(rows[6:10]))
    asked = [row.split("\t")[0] + "\n" for row in rows[10:]]
    (folder / "birth_test_inputs.tsv").write_text("".join(asked))
    return str(folder)


@pytest.mark.parametrize("recipe", ["course", "best"])
def test_with_data_it_also_predicts_the_unlabelled(micro, tmp_path, recipe):
    (tmp_path / "data").mkdir()
    study = BirthplacesStudy(
        data=course(tmp_path / "data"), scale="tiny", recipe=recipe, seeds=1, arms=("rotary",)
    )
    done = carry_out("birthplaces", study, root=tmp_path / "runs", progress=Progress())
    predicted = list((done.folder / "predictions").glob("*.txt"))
    assert len(predicted) == 1 and predicted[0].read_text().count("\n") == 2
    found = done.results["arms"]["rotary"]
    assert found["published"].startswith("31.6 (24.4 to 40.4") and len(found["by_seed"]) == 1
    assert done.results["baseline"]["answer"] == "Rome"


def test_the_full_size_is_the_courses(tmp_path):
    study = BirthplacesStudy(data=course(tmp_path))
    stages = study.stages("learned", seed=2, questions=2000)
    assert list(stages) == ["pretrain", "finetune"]
    pretrain, finetune = stages.values()
    assert (pretrain.steps, pretrain.batch, pretrain.optimiser.rate) == (14_950, 128, 6e-3)
    assert (finetune.steps, finetune.batch, finetune.optimiser.rate) == (80, 256, 6e-4)
    assert finetune.evaluate_every == 8 and pretrain.seed == finetune.seed == 2
    assert study.stages("none", 0, 2000)["finetune"].steps == 600
    assert study.chosen() == [arm for arm in ARMS if arm != "one-wording"]


def test_the_best_recipe_has_no_more_parameters_than_the_course(tmp_path):
    study = BirthplacesStudy(data=course(tmp_path), recipe="best")
    (recipe,) = study.stages("rotary", 0, 2000).values()
    model = dataclasses.replace(recipe.model, vocabulary=256).build()
    assert sum(p.numel() for p in model.parameters()) <= 3_330_000


def made_up(none, rotary, baseline=0.05, many=None):
    """Results of three seeds as the jobs would give them."""

    def one(accuracy):
        return {
            "loss": 1.0,
            "steps": 5,
            "parameters": 10,
            "ready_seconds": 1.0,
            "training_seconds": 2.0,
            "answering_seconds": 0.5,
            "accuracy": accuracy,
            "right": round(500 * accuracy),
            "questions": 500,
            "curve": [[1.0, accuracy / 2], [2.0, accuracy]],
        }

    results = {
        "the most frequent answer": {
            "answer": "London",
            "accuracy": baseline,
            "questions": {"train": 2000, "dev": 500, "test": 437},
        }
    }
    for arm, values in {"none": none, "rotary": rotary}.items():
        for seed, accuracy in enumerate(values):
            stage = {k: v for k, v in one(accuracy).items() if k != "answering_seconds"}
            if arm == "rotary":
                results[f"pretrain {arm}, seed {seed}"] = stage
            results[f"finetune {arm}, seed {seed}"] = one(accuracy)
    return results


def study_of(folder, seeds=None, arms=("none", "rotary")):
    return BirthplacesStudy(data=str(folder), arms=arms, seeds=seeds)


def answer_of(found):
    return found.answer.replace("\u00a0", " ").replace("\u2212", "-")


def test_yes_needs_a_lead_over_both(tmp_path):
    found = findings(study_of(tmp_path), made_up([0.01, 0.02, 0.03], [0.3, 0.32, 0.34]))
    said = answer_of(found)
    assert said.startswith("Yes: always answering London gets 5.0 %, no pretraining 2.0 % (0.0 to ")
    assert "32.0 % (27.0 to 37.0)" in said
    assert "The last is 27.0 points (21.2 to 32.8) above the most frequent answer and" in said
    assert "over 3 seeds and the people asked; they are judged together" in said
    assert found.summary["verdict"] == "Yes" and all(found.summary["checks"].values())
    assert found.summary["arms"]["rotary"]["pipeline_seconds"] == [6.5] * 3
    assert found.summary["arms"]["none"]["pipeline_seconds"] == [3.5] * 3


def test_a_lead_over_the_constant_answer_alone_is_no_yes(tmp_path):
    """Without pretraining it does as well, so pretraining need not be what helped."""
    found = findings(study_of(tmp_path), made_up([0.29, 0.33, 0.31], [0.3, 0.32, 0.34]))
    assert found.summary["ahead"]["the most frequent answer"]["low"] > 0
    assert answer_of(found).startswith("Cannot tell: always answering London")


def test_a_lead_over_no_pretraining_alone_is_no_yes(tmp_path):
    found = findings(study_of(tmp_path), made_up([0.01, 0.02, 0.03], [0.3, 0.32, 0.34], 0.31))
    assert found.summary["ahead"]["no pretraining"]["low"] > 0
    assert answer_of(found).startswith("Cannot tell: always answering London gets 31.0 %")


def test_no_is_said_of_what_is_behind(tmp_path):
    found = findings(study_of(tmp_path), made_up([0.01, 0.02, 0.03], [0.1, 0.11, 0.12], 0.3))
    assert answer_of(found).startswith("No: always answering London gets 30.0 %")
    assert "The last is -19.0 points (-2" in answer_of(found)


def test_seeds_that_scatter_cannot_tell(tmp_path):
    found = findings(study_of(tmp_path), made_up([0.06, 0.07, 0.08], [0.01, 0.05, 0.2]))
    assert answer_of(found).startswith("Cannot tell")
    checks = found.summary["checks"]
    assert not checks["mean without pretraining below the most frequent answer"]
    assert not checks["rotary: mean no lower than any published file"]


def test_one_seed_cannot_tell_and_says_what_it_has(tmp_path):
    found = findings(study_of(tmp_path, seeds=1), made_up([0.01], [0.6]))
    said = answer_of(found)
    assert said.startswith("Cannot tell: always answering London gets 5.0 %")
    assert "60.0 % (55.6 to 64.2) of the questions" in said
    assert "55.0 points above the most frequent answer and 59.0 points above no pretrain" in said
    assert "one seed: the interval of each accuracy is over the people asked" in said


def test_without_the_arm_to_compare_with_it_cannot_tell(tmp_path):
    results = made_up([0.01] * 3, [0.6, 0.61, 0.62])
    found = findings(study_of(tmp_path, arms=("rotary",)), results)
    assert answer_of(found).startswith("Cannot tell")
    assert "The arm without pretraining was not run" in answer_of(found)
    nothing = findings(study_of(tmp_path, arms=("none",)), results)
    assert answer_of(nothing).startswith("Cannot tell, nothing was pretrained")


def test_the_arm_is_not_picked_by_its_accuracy(tmp_path):
    results = made_up([0.01, 0.02, 0.03], [0.3, 0.32, 0.34])
    for seed in range(3):
        for stage in ("pretrain", "finetune"):
            better = {**results[f"{stage} rotary, seed {seed}"], "accuracy": 0.9}
            results[f"{stage} learned, seed {seed}"] = better
    found = findings(study_of(tmp_path, arms=("none", "learned", "rotary")), results)
    assert found.summary["compared"] == "rotary" and "90.0 %" not in answer_of(found)


def test_a_difference_counts_seeds_and_people():
    """Wilson's intervals of 9 and 3 of 10 are 0.596 to 0.982 and 0.108 to 0.603."""
    few = difference([0.9] * 3, [0.3] * 3, 10)
    by_people = (((0.9821 - 0.5958) / 2) ** 2 + ((0.6032 - 0.1078) / 2) ** 2) / 1.96**2
    assert few.by_sample.value == pytest.approx(by_people, rel=1e-3)
    assert few.by_seeds.value == pytest.approx(0, abs=1e-30)
    assert few.interval(0.95).high == pytest.approx(0.6 + student(9) * by_people**0.5, rel=1e-3)
    many = difference([0.5, 0.6, 0.9], [0.6, 0.6, 0.6], 10**6)
    over_seeds = mean_interval([-0.1, 0.0, 0.3])
    assert many.interval(0.95).low == pytest.approx(over_seeds.low, rel=1e-3)
    alone = difference([0.5], [0.4], 100)
    assert alone.interval(0.95).low is None and alone.p == 1.0


HIGHER, LOWER, UNKNOWN = "worse", "better", "cannot tell"  # a lower value would be better


@pytest.mark.parametrize(
    ("over_constant", "over_none", "expected"),
    [
        (HIGHER, HIGHER, "Yes"),
        (HIGHER, UNKNOWN, "Cannot tell"),
        (UNKNOWN, HIGHER, "Cannot tell"),
        (UNKNOWN, UNKNOWN, "Cannot tell"),
        (HIGHER, LOWER, "No"),
        (LOWER, HIGHER, "No"),
    ],
)
def test_yes_needs_both_verdicts_and_no_one_of_them(over_constant, over_none, expected):
    def pair(found):
        return Pair(first="", second="", interval=None, p=1.0, verdict=found)

    assert verdict([pair(over_constant), pair(over_none)]) == expected
    assert verdict([pair(HIGHER)]) == "Cannot tell"


def test_the_two_leads_are_judged_together(tmp_path):
    """Each of them leaves out 0 by itself, and together they are not enough."""
    found = findings(study_of(tmp_path), made_up([0.05, 0.06, 0.04], [0.13, 0.21, 0.17], 0.05))
    for lead in found.summary["ahead"].values():
        assert lead["low"] > 0
    assert max(lead["p"] for lead in found.summary["ahead"].values()) > 0.05
    assert answer_of(found).startswith("Cannot tell")


def test_a_curve_is_shown_without_praise_of_its_best_point(tmp_path):
    results = made_up([0.01], [0.3])
    results["finetune rotary, seed 0"]["curve"] = [[1, 0.1], [2, 0.4], [3, 0.3]]
    section = findings(study_of(tmp_path, seeds=1), results).sections[1]
    assert "by heart" not in section.text and "40.0" not in section.text
    assert "picked by these answers" in section.text
    assert section.blocks[0].series[0].y == pytest.approx([10, 40, 30])


def test_seeds_that_agree_leave_the_interval_of_the_people_asked(tmp_path):
    study = BirthplacesStudy(data=str(tmp_path), arms=("none", "rotary"), seeds=2)
    found = findings(study, made_up([0.02] * 2, [0.3] * 2)).summary["arms"]["rotary"]
    assert (found["low"], found["high"]) == pytest.approx((0.2615, 0.3416), abs=1e-3)


def test_one_seed_has_the_interval_of_the_people_asked(tmp_path):
    study = BirthplacesStudy(data=str(tmp_path), arms=("none", "rotary"), seeds=1)
    found = findings(study, made_up([0.02], [0.3]))
    assert found.summary["arms"]["rotary"]["low"] == pytest.approx(0.2615, abs=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": "full"}, "write data=FOLDER"),
        ({"seeds": 0}, r"seeds is 0; use 1 or more, or none for 1 \(3 at full scale\)"),
        ({"people": 3}, "people is 3; some are asked about .*, so use 4 or more, or none"),
        ({"steps": 0}, "steps is 0; use 1 or more, or none"),
        ({"tuning": -1}, "tuning is -1; use 0 or more"),
        ({"first": -1}, "first is -1; seeds count from 0"),
        ({"arms": ("rotery",)}, "arms has 'rotery'; did you mean 'rotary'"),
        ({"data": "somewhere", "arms": ("one-wording",)}, "needs invented people"),
    ],
)
def test_settings_that_make_no_study_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        BirthplacesStudy(**settings)


def test_files_that_cannot_be_used_are_named_before_anything_is_made(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    course(data)
    (data / "birth_dev.tsv").write_text("Where was Ann born?\tRome\nWhere was Bo born?\n")
    for study, message in (
        (BirthplacesStudy(data=str(data)), r"birth_dev\.tsv, line 2 has 1 columns"),
        (BirthplacesStudy(data=str(tmp_path / "no")), "does not exist"),
        (BirthplacesStudy(people=10**9), "each has a name of their own, so use 1 to"),
    ):
        with pytest.raises(ValueError, match=message):
            carry_out("birthplaces", study, root=tmp_path / "runs", progress=Progress())
    assert not (tmp_path / "runs").exists()
