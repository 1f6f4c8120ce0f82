"""The recurrent study: matched sizes, exact continuation, and a leak that is found."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from experiments.small import (
    StopAfter,
    english,
    finished_after,
    random_letters,
    results_by_job,
    says_what_it_trains,
    without,
)

from attnlab import config
from attnlab.data.batches import Batch
from attnlab.evaluate import validation_loss
from attnlab.experiments import held, samples
from attnlab.experiments.experiment import carry_out
from attnlab.experiments.match import count
from attnlab.experiments.progress import Progress
from attnlab.experiments.workspace import Workspace
from attnlab.models.recurrent import BidirectionalSettings
from attnlab.studies import language
from attnlab.studies.recurrent import experiment, report
from attnlab.studies.recurrent.experiment import ALL, HONEST, SCALES, TIMES, RecurrentStudy
from attnlab.studies.recurrent.report import Analysis

FIRST_SEED = 2 + 7  # jobs: the sizes, the times, and all of the first seed


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    root = tmp_path_factory.mktemp("recurrent")
    study = RecurrentStudy(data=english(root / "text.txt"), scale="tiny")
    return study, carry_out("recurrent", study, root=root, progress=Progress())


def test_the_study_ends_in_a_report(done):
    _, record = done
    assert (record.folder / "report.html").exists()
    report = (record.folder / "report.md").read_text()
    for words in ("prefix-BiRNN", "ms a step", "held-out loss, prefixes alone", "What they write"):
        assert words in report
    assert record.results["equal_time"]["steps"]["transformer"] == SCALES["tiny"].steps
    for name, peak in record.results["costs"]["memory"].items():
        assert peak is None or peak > 12 * record.results["sizes"][name]["parameters"]


def test_a_pool_is_told_of_every_training(done):
    study, record = done
    assert says_what_it_trains(study, record.folder)


def test_going_on_gives_what_an_uninterrupted_study_gives(done, tmp_path):
    """Times are its own, but not those that decide how many steps are equal time."""
    study, record = done
    again = finished_after("recurrent", study, record, tmp_path, FIRST_SEED)
    own = ("seconds", "costs")
    assert without(again.results, *own) == without(record.results, *own)
    assert again.results["costs"]["step"] == record.results["costs"]["step"]
    assert again.results["costs"] != record.results["costs"]


def test_what_is_done_is_not_done_again(done):
    study, record = done
    again = carry_out("recurrent", study, root=record.folder.parent, progress=StopAfter(1))
    assert again.results == record.results


@pytest.mark.parametrize("vocabulary", [28, 65, 103])
@pytest.mark.parametrize("scale", SCALES)
def test_parameters_agree_within_three_percent(scale, vocabulary):
    recipes = RecurrentStudy(scale=scale).recipes(vocabulary)
    counts = {name: count(recipe.model) for name, recipe in recipes.items()}
    for name in ALL:
        assert counts[name] == pytest.approx(counts["transformer"], rel=0.03), name


def test_equal_time_is_no_longer_than_the_transformers():
    times = {"transformer": {"step_ms": 10.0}, "elman": {"step_ms": 3.0}, "slow": {"step_ms": 9e9}}
    fits = experiment.steps_that_fit(times, "elman", steps=100)
    assert fits * 3.0 <= 1000 < (fits + 1) * 3.0
    assert experiment.steps_that_fit(times, "slow", steps=100) == 1


def test_every_model_trains_for_the_steps_that_fit(done):
    _, record = done
    results = results_by_job(record.folder)
    for name in HONEST[1:]:
        fits = experiment.steps_that_fit(results[TIMES], name, SCALES["tiny"].steps)
        for seed in (0, 1):
            assert results[f"{name} in equal time, seed {seed}"]["steps"] == fits


def test_what_is_random_is_known_only_by_reading_ahead(tmp_path):
    """Of four letters at random no language model can have less than log 4."""
    data = random_letters(tmp_path / "text.txt", "abcd", 12_000)
    workspace = Workspace(tmp_path, Progress())
    recipes = RecurrentStudy(data=data, scale="tiny").recipes(4)
    losses = {}
    for name in ("elman", "birnn"):
        longer = dataclasses.replace(recipes[name], steps=150, batch=16)
        losses[name] = language.train(workspace, name, longer)["loss"]
    saved = language.open_trained(workspace, "birnn")
    _, batches = held.held_out(saved)
    alone = np.nanmean(held.position_losses(experiment.by_prefixes(saved.model), batches))
    # the share of a held-out letter may be off by chance: 1,200 of them, so 0.01 at most
    least = math.log(4) - 0.01
    assert losses["birnn"] < 0.5 * least
    assert losses["elman"] > least
    assert alone > least


def test_prefixes_at_once_are_prefixes_one_by_one():
    torch.manual_seed(0)
    model = BidirectionalSettings(vocabulary=11, width=9).build().double()
    tokens = torch.randint(11, (3, 7))
    at_once = experiment.by_prefixes(model).double()(tokens)
    for end in range(1, 8):
        alone = model(tokens[:, :end])[:, -1]
        # float64: rounding alone
        assert torch.allclose(at_once[:, end - 1], alone, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_only_the_bidirectional_network_reads_ahead(name):
    model = RecurrentStudy(scale="tiny").recipes(20)[name].model.build()
    tokens = torch.randint(20, (16, 8), generator=torch.Generator().manual_seed(0))
    found = experiment.swap(model, Batch(tokens, tokens), seed=0)
    assert found["changed"] == (1.0 if name == "birnn" else 0.0)


def test_a_network_that_copies_follows_every_swap():
    class Copies(torch.nn.Module):
        settings = BidirectionalSettings(vocabulary=3)

        def forward(self, tokens):
            return torch.nn.functional.one_hot(tokens.roll(-1, 1), 3).float()

    model = Copies()
    model.weight = torch.nn.Parameter(torch.zeros(1))
    tokens = torch.randint(3, (64, 8), generator=torch.Generator().manual_seed(0))
    found = experiment.swap(model, Batch(tokens, tokens), seed=0)
    assert found == {"changed": 1.0, "followed": 1.0}


def test_losses_by_position_average_to_the_held_out_loss(done):
    _, record = done
    workspace = Workspace(record.folder, Progress())
    saved = language.open_trained(workspace, "transformer, seed 0")
    source, batches = held.held_out(saved)
    losses = held.position_losses(saved.model, batches)
    assert np.isnan(losses).any(), "the last sample should be a shorter one"
    total = validation_loss(saved.model, source.validation(7)).loss
    # float32 logits in batches of other sizes
    assert np.nanmean(losses) == pytest.approx(total, rel=1e-6)
    logged = results_by_job(record.folder)["transformer, seed 0"]["loss"]
    assert np.nanmean(losses) == pytest.approx(logged, rel=1e-6)


@pytest.fixture
def alike(faked):
    """All models have losses around 2, and the bidirectional network gains nothing."""
    results, findings, set_losses = faked
    for name in (*ALL, "elman in equal time", "prefix-birnn in equal time"):
        set_losses(name, 2.0)
    set_losses("leak", 2.0, key="by prefixes")

    def answer(**settings):
        return findings(**settings).answer

    return results, answer, set_losses


def test_the_answer_follows_the_numbers(alike):
    _, answer, set_losses = alike
    assert "Elman's cannot be told apart from it" in answer()
    set_losses("elman", 1.5)
    assert "after equally many steps Elman's is 0.500 lower" in answer()
    set_losses("elman", 2.5)
    assert "after equally many steps Elman's is 0.500 higher" in answer()
    set_losses("elman", 1.5, spread=0.5)
    assert "Elman's cannot be told apart from it" in answer()


def test_a_difference_counts_among_all_of_the_study(alike):
    """By itself it would: its interval leaves out 0."""
    results, answer, set_losses = alike
    set_losses("elman", 1.997)
    said = answer()
    assert "Elman's cannot be told apart from it (" in said and "by itself, p = " in said
    assert "of 11)" in said
    judged = Analysis(RecurrentStudy(scale="tiny", seeds=4), results).verdicts
    pair = judged.between("elman", "transformer")
    assert pair.interval.high < 0 and pair.p > 0.05 and pair.family == 11


def test_equal_time_is_answered_by_its_own_trainings(alike):
    _, answer, set_losses = alike
    set_losses("elman in equal time", 1.0)
    assert "in equal time Elman's is 1.000 lower" in answer()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_equal_time_says_what_was_not_equal(faked, monkeypatch, device):
    _, findings, _ = faked
    monkeypatch.setattr(report, "torch_device", lambda name: torch.device(device))
    found = findings()
    assert ("in equal time, its step compiled and theirs not, Elman's" in found.answer) == (
        device == "cuda"
    )
    text = found.sections[1].text
    assert ("compiled or fused recurrent steps were not tried" in text) == (device == "cuda")


def test_one_seed_cannot_tell(alike):
    _, answer, set_losses = alike
    set_losses("elman", 1.0)
    assert "in one seed, which cannot tell" in answer(seeds=1)
    assert "lower (" not in answer(seeds=1) and "higher (" not in answer(seeds=1)


def test_the_leak_is_claimed_only_where_it_is(alike):
    _, answer, set_losses = alike
    assert "whether it gains cannot be told" in answer()
    set_losses("birnn", 0.1)
    set_losses("leak", 3.0, key="by prefixes")
    assert "reaches 0.100, better than every language model here, where" in answer()
    assert "3.000, worse than all three" in answer()
    set_losses("elman", 3.0)  # cannot be told from it
    assert "3.000; whether that is worse than all three cannot be told" in answer()
    set_losses("elman", 0.1)
    assert "reaches 0.100 where each position can read its own answer" in answer()
    set_losses("elman", 2.0)
    set_losses("leak", 1.0, key="by prefixes")
    assert "1.000, not worse than all three" in answer()
    set_losses("leak", 0.05, key="by prefixes")
    assert "it gains nothing" in answer()


def test_the_elman_network_ahead_is_explained_only_then(faked):
    _, findings, set_losses = faked
    for name in HONEST:
        set_losses(name, 2.0)
    set_losses("elman", 1.5)
    assert "two likely reasons" in findings().sections[0].text
    set_losses("elman", 2.5)
    assert "two likely reasons" not in findings().sections[0].text


def test_what_is_written_stays_within_the_trained_length(done):
    _, record = done
    saved = language.open_trained(Workspace(record.folder, Progress()), "prefix-birnn, seed 0")
    lengths = []
    saved.model.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    assert len(samples.write(saved, [0, 1, 2], 21)) == 21
    assert max(lengths) <= saved.recipe.length


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"seeds is 0; .* use 1 or more"):
        RecurrentStudy(seeds=0)
    with pytest.raises(ValueError, match=r"scale is 'smal'; did you mean 'small'\?"):
        config.override(RecurrentStudy(), ["scale=smal"])
    with pytest.raises(ValueError, match="does not exist"):
        RecurrentStudy(data=str(tmp_path / "none.txt")).text()
    short = random_letters(tmp_path / "short.txt", "abcd", 200)
    with pytest.raises(ValueError, match=r"keeps 20 characters .* needs 33 there"):
        RecurrentStudy(data=short, scale="tiny").text()
