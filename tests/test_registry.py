"""The registry: found by name, loaded late."""

import dataclasses

import pytest

from attnlab import registry


@pytest.mark.parametrize(
    "option",
    # presets are functions; tests/test_presets.py runs over them
    [o for kind in registry.kinds() if kind != "preset" for o in registry.options(kind)],
    ids=str,
)
def test_every_line_names_a_frozen_settings_class_with_defaults(option):
    settings = registry.load(option.kind, option.name)()
    assert dataclasses.is_dataclass(settings)
    assert type(settings).__dataclass_params__.frozen
    assert registry.name_of(option.kind, settings) == option.name


def test_names_take_underscores():
    assert registry.find("attention", "multi_head").name == "multi-head"


def test_a_wrong_name_is_told_the_nearest():
    with pytest.raises(ValueError, match="no score called 'aditive'; did you mean 'additive'"):
        registry.load("score", "aditive")
    with pytest.raises(ValueError, match="no options of kind 'scores'; did you mean 'score'"):
        registry.options("scores")


def test_an_option_of_ones_own_can_be_added(monkeypatch):
    monkeypatch.setattr(registry, "_OPTIONS", list(registry._OPTIONS))
    mine = registry.Option("positions", "mine", "attnlab.attention.positions:Rotary", "a test")
    registry.register(mine)
    assert registry.find("positions", "mine") is mine
    with pytest.raises(ValueError, match="registered already"):
        registry.register(mine)


def test_settings_that_are_not_registered_have_no_name():
    with pytest.raises(ValueError, match="is not registered as a score"):
        registry.name_of("score", object())
