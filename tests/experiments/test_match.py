"""Variants are made equal in what was asked for, and in nothing else."""

import dataclasses

import pytest

from attnlab.compare.parse import parse
from attnlab.experiments.match import (
    TOLERANCE,
    count,
    match,
    operations,
    with_nearest_width,
)
from attnlab.models.recurrent import ElmanSettings


def recipes(*words):
    return {variant.label: variant.recipe for variant in parse(words).variants}


LAB = recipes("lab")


def test_parameters_are_matched_by_the_feed_forward_parts_alone():
    found = match("parameters", LAB)
    wanted = count(LAB["learned"].model)
    for label, made in found.items():
        assert abs(count(made.recipe.model) / wanted - 1) < 0.002
        assert made.recipe.model.width == LAB[label].model.width
        assert made.recipe.model.attention == LAB[label].model.attention
        assert made.recipe.steps == LAB[label].steps
    assert found["learned"].change == "" and found["learned"].recipe == LAB["learned"]
    assert found["rotary+gqa"].change.startswith("feed-forward expansion 4 → ")


def test_models_far_apart_are_matched_by_width_and_keep_their_heads():
    both = recipes("wide=tiny:model.width=128", "deep=tiny:model.depth=6,model.width=256")
    made = match("parameters", both)["deep"]
    model = made.recipe.model
    assert abs(count(model) / count(both["wide"].model) - 1) <= TOLERANCE
    assert model.width < 128 and model.width % 8 == 0 and model.attention.heads == 4
    assert made.change.startswith("width 256 → ")


def test_a_recurrent_model_is_matched_by_its_width():
    both = recipes("tiny", "elman", "batch=16", "context=64")
    made = match("parameters", both)["elman"]
    assert abs(count(made.recipe.model) / count(both["tiny"].model) - 1) <= TOLERANCE
    assert made.recipe.model.width != both["elman"].model.width


def test_what_cannot_be_matched_is_refused_with_by_how_much():
    both = recipes(
        "tiny:model.width=16,model.depth=1", "many=tiny:model.attention.heads=60,model.width=120"
    )
    with pytest.raises(
        ValueError, match=r"many cannot be matched: .* [\d.]+% more than the [\d,]+"
    ):
        match("parameters", both)


def test_a_width_that_sections_of_rotations_do_not_go_with_is_no_candidate():
    sections = "model.positions=rotary,model.positions.sections=4,6,6"
    near, far = (
        recipes("tiny", f"m=tiny:{sections}"),
        recipes("a=tiny:model.width=256", f"m=tiny:{sections}"),
    )
    assert match("parameters", near)["m"].recipe == near["m"]
    with pytest.raises(ValueError, match=r"m cannot be matched: the nearest .*% fewer than"):
        match("parameters", far)


def test_equal_operations_scale_the_steps_and_the_schedule():
    found = match("flops", LAB)
    budget = LAB["learned"].steps * operations(LAB["learned"])
    for label, made in found.items():
        spent = made.recipe.steps * operations(made.recipe)
        assert spent == pytest.approx(budget, rel=1 / made.recipe.steps)
        assert made.recipe.model == LAB[label].model
    window = found["rotary+window"].recipe
    assert window.steps > LAB["learned"].steps  # fewer keys, cheaper steps
    times = {label: 1.0 + (label != "learned") for label in LAB}
    halved = match("seconds", LAB, step_ms=times)
    made = halved["rotary"]
    assert made.recipe.steps == 125 and made.recipe.schedule.warmup == 5
    assert made.change == "steps 250 → 125"


def test_equal_seconds_fill_the_budget():
    times = {"learned": 10.0, "rotary": 20.0, "rotary+gqa": 7.0, "rotary+window": 1e9}
    found = match("seconds", LAB, seconds=3, step_ms=times)
    assert [made.recipe.steps for made in found.values()] == [300, 150, 428, 1]


def test_equal_steps_change_nothing():
    for label, made in match("steps", LAB).items():
        assert made.recipe == LAB[label] and made.change == ""


def test_a_width_is_the_nearest_there_is():
    settings = ElmanSettings(vocabulary=50)
    wanted = count(dataclasses.replace(settings, width=77))
    for off in (-20, 0, 20):
        assert with_nearest_width(settings, wanted + off).width == 77
