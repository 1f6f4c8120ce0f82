"""The window study: exact reach, losses by position that add up, and honest sentences."""

import dataclasses

import numpy as np
import pytest
import torch
from experiments.small import (
    english,
    finished_after,
    random_letters,
    results_by_job,
    says_what_it_trains,
    without,
)

from attnlab import presets
from attnlab.experiments import held
from attnlab.experiments.costs import cache_sizes
from attnlab.experiments.experiment import carry_out
from attnlab.experiments.progress import Progress
from attnlab.experiments.workspace import Workspace
from attnlab.studies import language
from attnlab.studies.window import experiment
from attnlab.studies.window.experiment import FULL, WindowStudy, edges, half_way, reach
from attnlab.studies.window.report import BEYOND, Analysis

MIXED, LOCAL = "3 of 2 + 1 full", "window 2"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    root = tmp_path_factory.mktemp("window")
    study = WindowStudy(data=english(root / "text.txt"), scale="tiny")
    return study, carry_out("window", study, root=root, progress=Progress())


def test_the_study_ends_in_a_report(done):
    _, record = done
    assert (record.folder / "report.html").exists()
    report = (record.folder / "report.md").read_text()
    for words in ("beyond its reach", "ms a step", "MB of cache after 16", "computed by", MIXED):
        assert words in report
    drawn = [path.suffix for path in (record.folder / "pictures").iterdir()]
    assert sorted(drawn) == [".csv", ".csv", ".png", ".png", ".svg", ".svg"]


def test_a_pool_is_told_of_every_training(done):
    study, record = done
    assert says_what_it_trains(study, record.folder)


def test_going_on_gives_what_an_uninterrupted_study_gives(done, tmp_path):
    study, record = done
    jobs = 2 + len(study.patterns())  # all of the first seed
    again = finished_after("window", study, record, tmp_path, jobs)
    timed = ("seconds", "costs", "answer")  # the answer speaks of time
    assert without(again.results, *timed) == without(record.results, *timed)
    assert again.results["costs"] != record.results["costs"]


def test_models_differ_in_nothing_but_their_windows():
    study = WindowStudy(scale="small")
    recipes = study.recipes(50)
    alike = {
        dataclasses.replace(r, model=dataclasses.replace(r.model, window=(None,)))
        for r in recipes.values()
    }
    assert len(alike) == 1
    assert [r.model.window for r in recipes.values()] == list(study.patterns().values())
    assert (8, 8, 8, None) in study.patterns().values()


@pytest.mark.parametrize("pattern", [(1,), (3,), (4,), (2, 5), (3, 3, 3, None), (None, 3, 3, 3)])
def test_a_prediction_depends_on_what_is_in_reach_and_nothing_else(pattern):
    torch.manual_seed(0)
    depth, length = 4, 24
    model = presets.transformer(
        vocabulary=9, context=length, width=16, depth=depth, window=pattern, **presets.MODERN
    )
    model = model.build().double()
    tokens = torch.randint(9, (1, length))
    before = model(tokens)[0, -1]
    far = reach(pattern, depth) or length
    for back in range(1, length + 1):  # 1: the newest
        other = tokens.clone()
        other[0, -back] = (other[0, -back] + 1) % 9
        # float64: what is not seen changes nothing at all
        assert torch.equal(model(other)[0, -1], before) == (back > far), back


def test_segments_end_at_windows_and_reaches():
    found = edges(256, depth=4, windows=[8, 32, 128])
    assert {8, 32, 128, 29, 125, half_way(29, 256), 1, 64, 256} <= set(found)
    assert found == sorted(set(found)) and found[-1] == 256
    assert edges(100, depth=1, windows=[])[-2:] == [64, 100]


def test_segments_add_up_to_whole_samples():
    losses = np.random.default_rng(0).random((5, 16))
    losses[3, 9:] = np.nan  # a shorter sample is left out
    ends = [1, 2, 5, 16]
    found = experiment.in_segments(losses, ends)
    assert found.shape == (4, 4)
    lengths = np.diff([0, *ends])
    assert found @ lengths / 16 == pytest.approx(losses[[0, 1, 2, 4]].mean(axis=1))
    assert found[:, 2] == pytest.approx(losses[[0, 1, 2, 4], 2:5].mean(axis=1))


def test_losses_by_position_are_those_of_the_models(done):
    """From the checkpoint to the table: what is kept of a sample is its losses by position."""
    study, record = done
    saved = language.open_trained(Workspace(record.folder, Progress()), f"{LOCAL}, seed 0")
    _, batches = held.held_out(saved)
    losses = held.position_losses(saved.model, batches)
    assert np.isnan(losses).any()
    logged = results_by_job(record.folder)[f"{LOCAL}, seed 0"]
    # float32 logits; the study keeps five digits
    assert np.nanmean(losses) == pytest.approx(logged["loss"], rel=1e-6)
    one = WindowStudy(data=study.data, scale="tiny", seeds=1)
    analysis = Analysis(one, results_by_job(record.folder))
    whole = losses[~np.isnan(losses).any(axis=1)]
    assert analysis.between(LOCAL, 0, 16) == pytest.approx(whole.mean(axis=1), abs=1e-5)
    assert analysis.between(LOCAL, 4, 8) == pytest.approx(whole[:, 4:8].mean(axis=1), abs=1e-5)


def test_octaves_average_to_the_whole(done):
    _, record = done
    summary = record.results
    lengths = [last - first + 1 for first, last in summary["positions"]]
    assert sum(lengths) == summary["context"] and summary["positions"][:3] == [
        [1, 1],
        [2, 2],
        [3, 4],
    ]
    for name, found in summary["models"].items():
        rows = [results_by_job(record.folder)[f"{name}, seed {seed}"]["rows"] for seed in (0, 1)]
        ends = WindowStudy(scale="tiny").edges()
        whole = np.mean(rows, axis=(0, 1)) @ np.diff([0, *ends]) / 16
        assert np.dot(found["loss_by_position"], lengths) / 16 == pytest.approx(whole)


def test_rings_stay_as_they_are_and_full_caches_grow():
    recipes = WindowStudy(scale="tiny").recipes(20)
    for name, recipe in recipes.items():
        once, twice = cache_sizes(recipe)
        if name.startswith("window"):
            assert once == twice
        elif name == FULL:
            # keys and values of 16 positions, 4 layers, width 16, 4 bytes
            assert once == 2 * 16 * 4 * 16 * 4 and twice == 2 * once
        else:
            assert once < twice < 2 * once


def test_the_way_attention_goes_is_named(done):
    _, record = done
    for name, costs in record.results["costs"].items():
        assert costs["paths"] and costs["step_ms"] > 0, name
        # 2 samples of 16 characters a step
        assert costs["tokens_per_second"] == pytest.approx(32 / costs["step_ms"] * 1e3)
    local, full = (set(record.results["costs"][name]["paths"]) for name in (LOCAL, FULL))
    assert set(record.results["costs"][MIXED]["paths"]) == local | full


@pytest.fixture
def alike(faked):
    """All models have losses around 2, in all of the text and at all positions."""
    results, findings, set_losses = faked
    rows = np.array(results[f"{FULL}, seed 0"]["rows"])
    for name in WindowStudy(scale="tiny").patterns():
        set_losses(name, 2.0)
        for seed in range(4):
            noise = results[f"{name}, seed {seed}"]["loss"] - 2.0
            results[f"{name}, seed {seed}"]["rows"] = (rows + noise).tolist()

    def answer(**settings):
        return findings(**settings).answer

    return results, answer, set_losses


def test_the_answer_follows_the_numbers(alike):
    _, answer, set_losses = alike
    assert f"that of {LOCAL} cannot be told apart from it" in answer()
    set_losses(LOCAL, 1.5)
    assert f"that of {LOCAL} is 0.500 lower" in answer()
    set_losses(LOCAL, 2.5)
    assert f"that of {LOCAL} is 0.500 higher" in answer()
    set_losses(LOCAL, 1.5, spread=0.5)
    assert f"that of {LOCAL} cannot be told apart from it" in answer()
    for name in WindowStudy(scale="tiny").patterns():  # no model is left out of the answer
        assert name == FULL or f"that of {name} " in answer()
    assert "(over 4 seeds)" in answer()
    assert "in one seed, which cannot tell" in answer(seeds=1)


def worse(results, by, positions, text=0.0):
    """The narrowest window's losses by position: by so much worse there, in every seed.

    `text`: and by so much more or less in the two halves of the text.
    """
    for seed in range(4):
        rows = np.array(results[f"{LOCAL}, seed {seed}"]["rows"])
        halves = np.where(np.arange(len(rows)) < len(rows) / 2, text, -text)
        rows[:, positions] += (by + halves)[:, None]
        results[f"{LOCAL}, seed {seed}"]["rows"] = rows.tolist()


def test_where_it_loses_follows_the_losses_by_position(alike):
    results, answer, _ = alike
    study = WindowStudy(scale="tiny", seeds=4)
    far = Analysis(study, results).reach(LOCAL)
    beyond = slice(study.edges().index(far) + 1, None)
    assert far == 5 and "beyond its reach of 5 characters its loss cannot be told" in answer()
    worse(results, 0.3, beyond)
    assert "beyond its reach of 5 characters its loss is 0.300 higher (0.29" in answer()
    assert f"that of {LOCAL} cannot be told apart" in answer()  # whole losses are as before
    gap = Analysis(study, results).gap(LOCAL, 0, far)
    assert gap.mean == pytest.approx(0, abs=2e-3)
    worse(results, -0.6, beyond)
    assert "its loss is 0.300 lower (0.29" in answer()
    family = Analysis(study, results).verdicts.between(BEYOND, FULL).family
    assert family == len(study.patterns())  # every other model, and beyond the reach


def test_another_text_could_have_favoured_the_other(alike):
    """Seeds agree and the text does not: then nothing is told."""
    results, answer, set_losses = alike
    set_losses(LOCAL, 2.1)
    assert f"that of {LOCAL} is 0.100 higher" in answer()
    worse(results, 0.1, slice(None), text=0.5)
    assert f"that of {LOCAL} cannot be told apart from it (" in answer()


def test_costs_are_shares_of_full_attention(faked):
    results, findings, _ = faked

    def answer():
        return findings().answer

    for name, costs in results["costs of a step"].items():
        costs["step_ms"] = costs["fastest_ms"] = costs["slowest_ms"] = 1.0 if name == LOCAL else 4.0
        costs["memory"] = 30 if name == LOCAL else 40
        costs["paths"] = ["sdpa"]
    assert "takes 0.25 of full attention's time a step, 0.75 of its memory in training" in answer()
    assert "computed by the same kernel" in findings().sections[2].text
    results["costs of a step"][LOCAL]["paths"] = ["flex"]
    assert "of full attention's time a step, through another kernel, 0.75 of" in answer()
    text = findings().sections[2].text
    assert f"Not computed as full attention is (last column): {LOCAL}. There" in text
    results["costs of a step"][LOCAL]["paths"] = ["sdpa"]
    results["costs of a step"][LOCAL]["slowest_ms"] = 5.0
    assert "0.25 of full attention's time a step (within the spread of the turns)" in answer()
    results["costs of a step"][LOCAL]["memory"] = 39
    assert "turns), about all of its memory" in answer()
    for costs in results["costs of a step"].values():
        costs["memory"] = None  # where it cannot be read
    assert "memory" not in answer()


def test_a_window_that_reaches_everything_has_nothing_beyond(done):
    _, record = done
    results = results_by_job(record.folder)
    study = WindowStudy(scale="tiny", windows=(2, 4))
    wide = dataclasses.replace(study, windows=(2, 15))
    for seed in (0, 1):
        results[f"window 15, seed {seed}"] = dict(results[f"window 4, seed {seed}"])
    for job in ("caches", "costs of a step"):
        results[job]["window 15"] = results[job]["window 4"]
    columns = len(wide.edges())
    for name in wide.patterns():
        for seed in (0, 1):
            results[f"{name}, seed {seed}"]["rows"] = np.ones((4, columns)).tolist()
    found = wide.findings(results).summary["models"]["window 15"]
    assert found["reach"] == 57 and found["from_full"]["beyond_its_reach"] is None


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"windows has 16; .* so use 1 to 15"):
        WindowStudy(scale="tiny", windows=(4, 16))
    with pytest.raises(ValueError, match="windows has 0"):
        WindowStudy(scale="tiny", windows=(0,))
    with pytest.raises(ValueError, match=r"seeds is -1; .* use 1 or more"):
        WindowStudy(seeds=-1)
    with pytest.raises(ValueError, match="does not exist"):
        WindowStudy(data=str(tmp_path / "none.txt")).text()
    short = random_letters(tmp_path / "short.txt", "abcd", 600)
    with pytest.raises(ValueError, match=r"keeps 60 characters .* needs 65 there"):
        WindowStudy(data=short, scale="tiny").text()
