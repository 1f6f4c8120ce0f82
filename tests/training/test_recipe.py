"""A recipe refuses nonsense by name, and knows how long a sample is."""

import pytest

from attnlab import config
from attnlab.models.recurrent import ElmanSettings
from attnlab.training.recipe import Recipe


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("batch=0", "batch is 0; use 1 to 1048576"),
        ("batch=2000000", "batch is 2000000; use 1 to 1048576"),
        ("steps=-3", "steps is -3; use 1 or more"),
        ("keep=0", "keep is 0"),
        ("accumulate=0", "accumulate is 0"),
        ("accumulate=3", "batch 32 does not divide into accumulate=3 parts"),
        ("context=0", "context is 0"),
        ("evaluate_every=0", "evaluate_every is 0"),
        ("save_every=-1", "save_every is -1"),
        ("patience=0", "patience is 0"),
        (
            "clip=0",
            "clip is 0.0; it is a norm, so use more than 0, such as 1.0, or none for no limit",
        ),
        ("clip=nan", "clip is 'nan'; it must be a number or none"),
        (
            "average=1",
            "average is 1.0; use more than 0 and less than 1, or none for the last weights",
        ),
        ("dtype=float23", "dtype is 'float23'; did you mean 'float32'?"),
        ("device=gpu", "device is 'gpu'"),
        ("optimiser.rate=nan", "optimiser.rate is 'nan'; it must be a number"),
        ("model.dropout=2", "model.dropout is 2.0; it is a probability, so use 0 to less than 1"),
        ("model.width=1000000000000", "model.width is 1000000000000; use 1 to 1048576"),
        ("model.attention.heads=0", "model.attention.heads is 0; use 1 or more"),
        ("schedule.hold=2", "schedule.hold is 2.0; it is a part of the run, so use 0 to 1"),
        ("optimiser.rate=-1", "optimiser.rate is -1.0; use 0 to less than 100, such as 0.001"),
        ("optimiser.betas=0.9", "optimiser.betas is [0.9]; give 2 values"),
        ("optimiser.betas=0.9,1", "optimiser.betas has 1.0; use 0 to less than 1"),
        ("schedule.wave=5", "schedule.wave is 5; with shape=waves it is a number of steps"),
        ("stpes=3", "stpes: no such setting; did you mean 'steps'?"),
    ],
)
def test_nonsense_is_told_the_rule(word, message):
    with pytest.raises(ValueError) as caught:
        config.override(Recipe(), [word])
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["clip", "average", "evaluate_every", "patience", "save_every"])
def test_none_switches_off(name):
    assert getattr(config.override(Recipe(), [f"{name}=none"]), name) is None


def test_a_sample_is_as_long_as_the_context_else_the_models_else_128():
    assert Recipe().length == Recipe().model.context
    assert config.override(Recipe(), ["context=7"]).length == 7
    assert Recipe(model=ElmanSettings()).length == 128


def test_a_recipe_survives_json():
    recipe = config.override(Recipe(), ["optimiser=muon", "average=0.9", "schedule.warmup=3"])
    assert config.from_dict(Recipe, config.to_dict(recipe)) == recipe
