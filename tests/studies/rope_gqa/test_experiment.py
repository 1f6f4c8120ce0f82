"""The rope-gqa study from the text to the report, at its smallest."""

import copy
import json
from statistics import fmean

import pytest
import torch
from experiments.small import says_what_it_trains
from training.recipes import small

from attnlab import config, json_files, presets
from attnlab.data.corpora import PythonDocs
from attnlab.experiments import verdicts
from attnlab.experiments.experiment import carry_out
from attnlab.experiments.progress import Progress
from attnlab.experiments.workspace import Workspace
from attnlab.statistics import mean_interval
from attnlab.studies.rope_gqa import experiment
from attnlab.studies.rope_gqa.experiment import VARIANTS, RopeGqaStudy, training_name
from attnlab.studies.rope_gqa.report import PAIRS
from attnlab.training import checkpoint
from attnlab.training.runs import Run

SEEDS = [3407, 3408]
STOPPED_AT = 5  # of 24 jobs: between the two stages of a model


class Watching(Progress):
    """Remembers what was begun, and stops the study before the job of a number."""

    def __init__(self, stop=None):
        self.started_jobs, self.stop = [], stop

    def started(self, job):
        if len(self.started_jobs) == self.stop:
            raise KeyboardInterrupt
        self.started_jobs.append(job)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("to be or not to be,\nthat is the question.\n" * 60)
    return path


@pytest.fixture(scope="module")
def study(text):
    return RopeGqaStudy(data=str(text), scale="tiny")


@pytest.fixture(scope="module")
def stopped_and_done(study, tmp_path_factory):
    """A study that was stopped once: what it began before and after, and what came of it."""
    root, before, after = tmp_path_factory.mktemp("stopped"), Watching(STOPPED_AT), Watching()
    with pytest.raises(KeyboardInterrupt):
        carry_out("rope-gqa", study, root=root, progress=before)
    outcome = carry_out("rope-gqa", study, root=root, progress=after)
    return before.started_jobs, after.started_jobs, outcome


@pytest.fixture(scope="module")
def done(stopped_and_done):
    return stopped_and_done[-1]


@pytest.fixture(scope="module")
def parts(done):
    found = [json_files.read_json(path) for path in (done.folder / "parts").glob("*.json")]
    return {part["name"]: part["result"] for part in found}


def run_of(done, variant, block, seed=3407):
    return Run(done.folder / "runs" / f"train-{variant}-seed-{seed}-block-{block}")


def test_a_pool_is_told_of_every_training(study, done):
    assert says_what_it_trains(study, done.folder)


def test_the_report_and_its_numbers_are_written(done):
    for name in ("report.html", "report.md", "results.json"):
        assert (done.folder / name).exists()
    written = json.loads((done.folder / "results.json").read_text())
    assert written["seeds"] == SEEDS and list(written["variants"]) == list(VARIANTS)
    assert [row["kv_heads"] for row in written["sweep"]["rows"]] == [1, 2, 3, 6]
    assert written["flawed"]["together"]["six"] > 0
    assert all(len(text) == 200 for text in written["samples"]["texts"].values())
    report = (done.folder / "report.md").read_text()
    assert "of the 32 learned vectors only 8 have been trained" in report
    assert "was not measured" in report
    for variant in VARIANTS:
        assert f"| {variant} |" in report


def test_losses_are_those_of_the_logs(done):
    for variant in VARIANTS:
        for stage, block in zip(done.results["variants"][variant]["stages"], (8, 32), strict=True):
            logged = [run_of(done, variant, block, seed) for seed in SEEDS]
            training = [[row["loss"] for row in run.read("metrics")] for run in logged]
            held_out = [run.read("eval")[-1]["loss"] for run in logged]
            assert stage["training"]["seeds"] == [fmean(losses) for losses in training]
            assert stage["last"]["seeds"] == [losses[-1] for losses in training]
            assert stage["held_out"]["seeds"] == held_out
            interval = mean_interval(held_out)
            assert stage["held_out"]["low"] == interval.low < interval.mean
            assert all(len(run.read("eval")) == 4 for run in logged)


def test_the_second_stage_goes_on_from_the_last_weights_not_the_best(done):
    first, second = run_of(done, "both", 8), run_of(done, "both", 32)
    last = first.checkpoints / checkpoint.name_of(4)
    assert second.recipe().start == str(last)
    assert second.recipe().length == 32 and first.recipe().length == 8
    assert last.is_dir()


def test_differences_are_those_of_comparisons_of_the_held_out_losses(done):
    """Seed by seed, with the noise of all four models, judged together."""
    held_out = {
        v: dict(enumerate(done.results["variants"][v]["stages"][1]["held_out"]["seeds"]))
        for v in VARIANTS
    }
    judged = [row for row in done.results["differences"] if row["verdict"] is not None]
    assert [(row["first"], row["second"]) for row in judged] == list(PAIRS)
    wanted = verdicts.judge(verdicts.differences(held_out, among=PAIRS))
    for row in judged:
        pair = wanted.between(row["first"], row["second"])
        assert (row["block"], row["loss"]) == (32, "held_out")
        assert (row["mean"], row["low"], row["high"], row["p"], row["verdict"]) == (
            pair.interval.mean,
            pair.interval.low,
            pair.interval.high,
            pair.p,
            pair.direction,
        )
    assert len(done.results["differences"]) == 2 * 3 * len(PAIRS)


def of_first_seed(results):
    """What must not depend on the clock, on other seeds, nor on when a study was stopped."""
    losses = {
        (variant, stage["block"], measure): stage[measure]["seeds"][0]
        for variant, found in results["variants"].items()
        for stage in found["stages"]
        for measure in ("training", "last", "held_out")
    }
    counted = ("kv_heads", "cache_bytes_per_token", "cache_formula")
    cache = [[row[name] for name in counted] for row in results["sweep"]["rows"]]
    return losses, results["samples"], cache


def test_a_stopped_study_goes_on_and_ends_the_same(stopped_and_done, text, tmp_path):
    before, after, outcome = stopped_and_done
    assert len(before) == STOPPED_AT and len(before) + len(after) == 24
    assert not set(before) & set(after)
    never_stopped = RopeGqaStudy(data=str(text), scale="tiny", seeds=1)
    whole = carry_out("rope-gqa", never_stopped, root=tmp_path, progress=Progress())
    assert of_first_seed(outcome.results) == of_first_seed(whole.results)


def shifted(parts, variant, by):
    """The results with losses after both stages that are alike, but for one variant's."""
    changed = copy.deepcopy(parts)
    for number, (seed, more) in enumerate(zip(SEEDS, by, strict=True)):
        for place, name in enumerate(VARIANTS):
            loss = 3.0 + 0.1 * number + 0.0008 * (number * place) + (more if name == variant else 0)
            for measure in ("training", "last", "held_out"):
                changed[training_name(name, seed, 32)][measure] = loss
    return changed


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ((-0.30, -0.31), "the held-out loss is lower, rotary − absolute = -0.305"),
        ((0.30, 0.31), "the held-out loss is higher, rotary − absolute = +0.305"),
        ((-0.30, 0.31), "2 seeds cannot tell whether the held-out loss changes"),
    ],
)
def test_the_answer_follows_the_losses(study, parts, by, said):
    found = study.findings(shifted(parts, "rotary", by))
    assert found.answer.startswith(f"Rotary instead of learned positions: {said}")
    assert "24 are untrained when the blocks of 32 begin" in found.answer


def test_one_seed_cannot_tell(text, parts):
    study = RopeGqaStudy(data=str(text), scale="tiny", seeds=1)
    found = study.findings(shifted(parts, "rotary", (-3.0, -3.0)))
    assert "1 seed cannot tell whether the held-out loss changes" in found.answer
    assert {row["verdict"] for row in found.summary["differences"]} == {"cannot tell", None}
    assert all(row["low"] is None for row in found.summary["differences"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["scale=full"], "scale is 'full'; it needs a text, so write data=FILE"),
        (["seeds=0"], "seeds is 0; it counts repeated trainings, so use 1 or more, or none for 2"),
        (["scale=smal"], "did you mean 'small'"),
        (["seed=3"], "did you mean 'seeds'"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, said):
    with pytest.raises(ValueError, match=said) as refused:
        config.override(RopeGqaStudy(), settings)
    assert "\n" not in str(refused.value)


def test_a_missing_or_short_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.txt does not exist"):
        RopeGqaStudy(data=str(tmp_path / "nowhere.txt")).text()
    short = tmp_path / "short.txt"
    short.write_text("too short " * 20)
    with pytest.raises(ValueError, match=r"short\.txt keeps 20 characters .* needs 257"):
        RopeGqaStudy(data=str(short), scale="small").text()


@pytest.mark.parametrize(
    ("data", "cuda", "scale", "seeds"),
    [
        ("", False, "small", 2),
        ("", True, "small", 2),
        ("text.txt", False, "small", 2),
        ("text.txt", True, "full", 3),
    ],
)
def test_the_scale_is_full_with_a_text_and_a_gpu(monkeypatch, data, cuda, scale, seeds):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    study = RopeGqaStudy(data=data)
    assert study.chosen_scale == scale
    assert study.seed_numbers == list(range(3407, 3407 + seeds))


@pytest.mark.parametrize("variant", VARIANTS)
def test_at_full_scale_the_recipe_is_the_courses(monkeypatch, variant):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    study = RopeGqaStudy(data="text.txt", scale="full")
    ours = config.to_dict(study.recipe(variant, 3407, 16, study.corpus))
    theirs = config.to_dict(getattr(presets, f"rope_gqa_{variant}")())
    different = {name for name in ours if ours[name] != theirs[name]}
    assert different == {"corpus", "save_every", "evaluate_every", "keep", "compile"}
    assert ours["dtype"] == "float32" and ours["compile"]


def test_a_small_study_holds_out_no_more_than_it_can_look_at():
    whole = PythonDocs().load()
    study = RopeGqaStudy(scale="small")
    held = study.corpus.load().characters("validation")
    assert held < whole.characters("validation") and abs(held - 20_000) <= 1


@pytest.mark.parametrize("log", ["eval", "metrics"])
def test_an_earlier_loss_is_never_reported_as_the_last(tmp_path, log):
    workspace = Workspace(tmp_path, Progress())
    whole = experiment._train(workspace, "one", small())
    run = workspace.run_of("one")
    lines = run.log(log).read_bytes().splitlines(keepends=True)
    run.log(log).write_bytes(b"".join(lines[1:]))
    again = experiment._train(workspace, "one", small())
    assert (again["last"], again["held_out"]) == (whole["last"], whole["held_out"])
    run.log(log).write_bytes(b"".join(lines[:-1]))
    with pytest.raises(ValueError, match=rf"{log}\.jsonl has lost its last step; remove "):
        experiment._train(workspace, "one", small())
