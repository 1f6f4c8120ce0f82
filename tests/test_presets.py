"""Presets: each builds what it says, survives JSON, and can be found."""

import pytest
import torch

from attnlab import config, registry
from attnlab.data.corpora import PythonDocs
from attnlab.models.model import parameters
from attnlab.training.loop import train
from attnlab.training.recipe import Recipe

PRESETS = [option.name for option in registry.options("preset")]


def recipe_of(name):
    return registry.load("preset", name)()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_a_model_that_reads_a_sample(name):
    recipe = recipe_of(name)
    model = recipe.model.build()
    length = min(recipe.length, 9)
    logits = model(torch.zeros(1, length, dtype=torch.long))
    assert logits.shape == (1, length, recipe.model.vocabulary)
    assert recipe.optimiser.build(model).parts


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json(name):
    recipe = recipe_of(name)
    assert config.from_dict(Recipe, config.to_dict(recipe)) == recipe


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_what_it_is(name):
    option = registry.find("preset", name)
    assert len(option.summary) > 10
    assert registry.load("preset", name).__doc__


def test_presets_are_not_all_the_same():
    assert len({str(config.to_dict(recipe_of(name))) for name in PRESETS}) == len(PRESETS)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("birthplaces-pretrain-learned", 3_323_392),
        ("birthplaces-finetune-learned", 3_323_392),
        ("birthplaces-pretrain", 3_290_624),
        ("birthplaces-finetune", 3_290_624),
        ("birthplaces-none", 3_290_624),
    ],
)
def test_birthplaces_models_have_the_parameters_of_the_course(name, count):
    recipe = config.override(recipe_of(name), ["model.vocabulary=256"])
    assert parameters(recipe.model.build()) == count


def test_finetuning_takes_the_model_that_was_pretrained():
    for learned in ("", "-learned"):
        before, after = (recipe_of(f"birthplaces-{k}{learned}") for k in ("pretrain", "finetune"))
        assert before.model == after.model


@pytest.mark.parametrize("name", [n for n in PRESETS if n.startswith(("rope", "shake", "birth"))])
def test_presets_without_a_text_of_their_own_ask_for_one(name):
    with pytest.raises(ValueError, match="write data=PATH"):
        recipe_of(name).corpus.load()


def test_grouped_presets_share_key_value_heads():
    for name in ("rope-gqa-grouped", "rope-gqa-both"):
        attention = recipe_of(name).model.attention
        assert (attention.heads, attention.kv_heads) == (6, 2)


@pytest.mark.parametrize("name", ["tiny", "elman"])
def test_a_preset_runs_from_text_to_checkpoint(tmp_path, monkeypatch, name):
    from training.recipes import HERE

    from attnlab.data.corpora import TextCorpus
    from attnlab.training import runs
    from attnlab.training.report import Report
    from attnlab.training.setup import prepare

    text = "def attention(q, k, v): ...\n" * 60
    short = TextCorpus("short", lambda: iter([text]))
    monkeypatch.setattr(PythonDocs, "load", lambda self: short)
    recipe = config.override(recipe_of(name), ["steps=2", "batch=2", "device=cpu"])
    run = runs.create(tmp_path, name)
    result = train(prepare(recipe, tmp_path), run, HERE, Report())
    assert (result.ending, result.step) == ("finished", 2)
    assert (run.checkpoints / "step_000002").is_dir()
