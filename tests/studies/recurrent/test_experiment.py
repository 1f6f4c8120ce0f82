"""The recurrent study: matched sizes, exact continuation, and a leak that is found."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from studies.languages import (
    StopAfter,
    english,
    finished_after,
    random_letters,
    results_by_job,
    without,
)

from attnlab import config
from attnlab.bench.measure import Timing
from attnlab.data.batches import Batch
from attnlab.evaluate import validation_loss
from attnlab.models.recurrent import BidirectionalSettings, ElmanSettings
from attnlab.statistics import Interval
from attnlab.studies import language
from attnlab.studies.desk import Desk
from attnlab.studies.progress import Progress
from attnlab.studies.recurrent import experiment, findings
from attnlab.studies.recurrent.experiment import SCALES, RecurrentStudy
from attnlab.studies.recurrent.findings import ALL, HONEST, TIMES
from attnlab.studies.study import carry_out
from attnlab.training.optim import AdamW

FIRST_SEED = 2 + 7  # jobs: the sizes, the times, and all of the first seed


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    root = tmp_path_factory.mktemp("recurrent")
    study = RecurrentStudy(data=english(root / "text.txt"), scale="tiny")
    return study, carry_out("recurrent", study, root=root, progress=Progress())


def test_the_study_ends_in_a_report(done):
    _, outcome = done
    assert (outcome.folder / "report.html").exists()
    report = (outcome.folder / "report.md").read_text()
    for words in ("prefix-BiRNN", "ms a step", "held-out loss, prefixes alone", "What they write"):
        assert words in report
    assert outcome.results["equal_time"]["steps"]["transformer"] == SCALES["tiny"].steps
    for name, peak in outcome.results["costs"]["memory"].items():
        assert peak is None or peak > 12 * outcome.results["sizes"][name]["parameters"]


def test_going_on_gives_what_an_uninterrupted_study_gives(done, tmp_path):
    """Times are its own, but not those that decide how many steps are equal time."""
    study, outcome = done
    again = finished_after("recurrent", study, outcome, tmp_path, FIRST_SEED)
    own = ("seconds", "costs")
    assert without(again.results, *own) == without(outcome.results, *own)
    assert again.results["costs"]["step"] == outcome.results["costs"]["step"]
    assert again.results["costs"] != outcome.results["costs"]


def test_what_is_done_is_not_done_again(done):
    study, outcome = done
    again = carry_out("recurrent", study, root=outcome.folder.parent, progress=StopAfter(1))
    assert again.results == outcome.results


@pytest.mark.parametrize("vocabulary", [28, 65, 103])
@pytest.mark.parametrize("scale", SCALES)
def test_parameters_agree_within_three_percent(scale, vocabulary):
    recipes = RecurrentStudy(scale=scale).recipes(vocabulary)
    counts = {name: language.count(recipe.model) for name, recipe in recipes.items()}
    for name in ALL:
        assert counts[name] == pytest.approx(counts["transformer"], rel=0.03), name


def test_a_width_is_the_nearest_there_is():
    settings = ElmanSettings(vocabulary=50)
    wanted = language.count(dataclasses.replace(settings, width=77))
    for off in (-20, 0, 20):
        assert language.matched(settings, wanted + off).width == 77


def test_equal_time_is_no_longer_than_the_transformers():
    times = {"transformer": {"step_ms": 10.0}, "elman": {"step_ms": 3.0}, "slow": {"step_ms": 9e9}}
    fits = experiment.steps_that_fit(times, "elman", steps=100)
    assert fits * 3.0 <= 1000 < (fits + 1) * 3.0
    assert experiment.steps_that_fit(times, "slow", steps=100) == 1


def test_every_model_trains_for_the_steps_that_fit(done):
    _, outcome = done
    results = results_by_job(outcome.folder)
    for name in HONEST[1:]:
        fits = experiment.steps_that_fit(results[TIMES], name, SCALES["tiny"].steps)
        for seed in (0, 1):
            assert results[f"{name} in equal time, seed {seed}"]["steps"] == fits


def test_what_is_random_is_known_only_by_reading_ahead(tmp_path):
    """Of four letters at random no language model can have less than log 4."""
    data = random_letters(tmp_path / "text.txt", "abcd", 12_000)
    desk = Desk(tmp_path, Progress())
    recipes = RecurrentStudy(data=data, scale="tiny").recipes(4)
    losses = {}
    for name in ("elman", "birnn"):
        longer = dataclasses.replace(recipes[name], steps=150, batch=16)
        losses[name] = language.train(desk, name, longer)["loss"]
    saved = language.opened(desk, "birnn")
    _, batches = language.held_out(saved)
    alone = np.nanmean(language.position_losses(experiment.by_prefixes(saved.model), batches))
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


def test_memory_holds_weights_gradients_and_state(done, monkeypatch):
    study, _ = done
    monkeypatch.setattr(language, "peak_memory", lambda run, device: 1000)
    vocabulary, _ = study.measures()
    recipe = dataclasses.replace(study.recipes(vocabulary)["elman"], optimiser=AdamW())
    tensors = list(recipe.model.build().parameters())
    numbers = sum(tensor.numel() for tensor in tensors)
    # a weight, its gradient and two averages; and a count of steps for each tensor
    assert language.step_memory({"elman": recipe})["elman"] == 1000 + 4 * (
        4 * numbers + len(tensors)
    )


def test_memory_that_cannot_be_read_is_none(done, monkeypatch):
    study, _ = done
    monkeypatch.setattr(language, "peak_memory", lambda run, device: None)
    assert language.step_memory({"elman": study.recipes(20)["elman"]}) == {"elman": None}


def test_the_time_of_a_step_is_not_that_of_a_turn(done, monkeypatch):
    study, _ = done
    turn = Timing(median=40.0, fastest=20.0, slowest=80.0, turns=1)
    monkeypatch.setattr(language, "take_turns", lambda takes, *_: dict.fromkeys(takes, turn))
    monkeypatch.setattr(language, "STEPS_A_TURN", 5)
    costs = language.step_costs({"elman": study.recipes(20)["elman"]}, turns=1)["elman"]
    assert (costs["step_ms"], costs["fastest_ms"], costs["slowest_ms"]) == (8, 4, 16)
    assert costs["tokens_per_second"] == pytest.approx(4 * 8 / 8e-3)  # batch, context, seconds


def test_losses_by_position_average_to_the_held_out_loss(done):
    _, outcome = done
    desk = Desk(outcome.folder, Progress())
    saved = language.opened(desk, "transformer, seed 0")
    source, batches = language.held_out(saved)
    losses = language.position_losses(saved.model, batches)
    assert np.isnan(losses).any(), "the last sample should be a shorter one"
    total = validation_loss(saved.model, source.validation(7)).loss
    # float32 logits in batches of other sizes
    assert np.nanmean(losses) == pytest.approx(total, rel=1e-6)
    logged = results_by_job(outcome.folder)["transformer, seed 0"]["loss"]
    assert np.nanmean(losses) == pytest.approx(logged, rel=1e-6)


def test_the_answer_follows_the_numbers(faked):
    _, answer, set_losses = faked
    set_losses("transformer", 2.0, 2.01)
    set_losses("elman", 1.5, 1.51)
    assert "Elman's is 0.500 lower" in answer()
    set_losses("elman", 2.5, 2.51)
    assert "Elman's is 0.500 higher" in answer()
    set_losses("elman", 1.5, 2.51)
    assert "Elman's cannot be told apart from it" in answer()


def test_equal_time_is_answered_by_its_own_trainings(faked):
    _, answer, set_losses = faked
    set_losses("transformer", 2.0, 2.01)
    set_losses("elman in equal time", 1.0, 1.01)
    assert "in equal time Elman's is 1.000 lower" in answer()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_equal_time_says_what_was_not_equal(faked, monkeypatch, device):
    results, answer, _ = faked
    monkeypatch.setattr(findings, "place_of", lambda name: torch.device(device))
    text = RecurrentStudy(scale="tiny").findings(results).sections[1].text
    assert ("in equal time, its step compiled and theirs not, Elman's" in answer()) == (
        device == "cuda"
    )
    assert ("compiled or fused recurrent steps were not tried" in text) == (device == "cuda")


def test_one_seed_cannot_tell(faked):
    _, answer, set_losses = faked
    set_losses("elman", 1.0, 1.01)
    assert "in one seed, which cannot tell" in answer(seeds=1)
    assert "lower (" not in answer(seeds=1) and "higher (" not in answer(seeds=1)


def test_the_leak_is_claimed_only_where_it_is(faked):
    results, answer, set_losses = faked
    for name in HONEST:
        set_losses(name, 2.0, 2.01)
    set_losses("birnn", 0.1, 0.11)

    def set_alone(*losses):
        for seed, loss in enumerate(losses):
            results[f"leak, seed {seed}"]["by prefixes"] = loss

    set_alone(3.0, 3.01)
    assert "reaches 0.105, better than every language model here, where" in answer()
    assert "3.005, worse than all three" in answer()
    set_losses("elman", 2.0, 4.1)  # scatters: on the mean still between the two
    assert "3.005; whether that is worse than all three cannot be told" in answer()
    set_losses("elman", 0.1, 1.9)
    assert "reaches 0.105 where each position can read its own answer" in answer()
    set_losses("elman", 2.0, 2.01)
    set_alone(1.0, 1.01)
    assert "1.005, not worse than all three" in answer()
    set_alone(0.1, 0.12)
    assert "whether it gains cannot be told" in answer()
    set_alone(0.05, 0.06)
    assert "it gains nothing" in answer()


def test_the_elman_network_ahead_is_explained_only_then(faked):
    results, _, set_losses = faked
    study = RecurrentStudy(scale="tiny")
    set_losses("transformer", 2.0, 2.01)
    set_losses("elman", 1.5, 1.51)
    assert "two likely reasons" in study.findings(results).sections[0].text
    set_losses("elman", 2.5, 2.51)
    assert "two likely reasons" not in study.findings(results).sections[0].text


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (Interval(-0.5, -0.6, -0.4, 2), "lower"),
        (Interval(0.5, 0.4, 0.6, 2), "higher"),
        (Interval(0.5, -0.1, 1.1, 2), "cannot tell"),
        (Interval(0.5, 0.0, 1.0, 2), "cannot tell"),
        (Interval(0.5, None, None, 1), "cannot tell"),
    ],
)
def test_a_verdict_needs_an_interval_without_zero(interval, expected):
    assert language.verdict(interval) == expected


def test_what_is_written_stays_within_the_trained_length(done):
    _, outcome = done
    saved = language.opened(Desk(outcome.folder, Progress()), "prefix-birnn, seed 0")
    lengths = []
    saved.model.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    assert len(language.written(saved, [0, 1, 2], 21)) == 21
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
