"""Settings described: what `attnlab list` shows of every field."""

import dataclasses

import pytest
from config.samples import Outer

from attnlab import config, registry
from attnlab.config import describe
from attnlab.training.recipe import Recipe

DESCRIBED = [o for k in registry.kinds() for o in registry.options(k)]


@pytest.mark.parametrize(
    ("key", "default", "values"),
    [
        ("width", "8", "whole number, 1 or more"),
        ("name", "x", "text"),
        ("folder", "runs", "path"),
        ("fast", "false", "true or false"),
        ("mode", "slow", "one of slow, quick"),
        ("limit", "none", "whole number, at most 100; none: no limit"),
        ("window", "none", "list: whole number, 1 or more; none: all keys"),
        ("weights", "0.5,0.5", "list: number, 2 values, more than 0 and at most 1"),
        ("families", "", "list: one of cat, dog"),
        ("inner.rate", "0.5", "number, 0 to less than 1"),
    ],
)
def test_a_field_has_its_default_type_and_range(key, default, values):
    found = {one.key: one for one in describe(Outer())}
    assert (found[key].default, found[key].values) == (default, values)


def test_options_are_opened_only_when_that_is_wanted():
    assert "positions.base" not in {one.key for one in describe(Outer())}
    found = {one.key: one for one in describe(Outer(), chosen=True)}
    assert found["positions"].default == "rotary" and "alibi" in found["positions"].type
    assert found["positions.base"].default == "10000.0"


def test_every_default_can_be_written_as_it_is_shown():
    for settings in (Outer(), Recipe()):
        words = [f"{one.key}={one.default}" for one in describe(settings, chosen=True)]
        assert config.override(settings, words) == settings


@pytest.mark.parametrize("option", DESCRIBED, ids=lambda o: f"{o.kind}.{o.name}")
def test_every_field_says_what_it_is(option):
    settings = registry.load(option.kind, option.name)()
    fields = dataclasses.fields(settings)
    abouts = [one.metadata.get("about", "") for one in fields]
    assert all(len(about.split()) > 1 for about in abouts), dict(zip(fields, abouts, strict=True))
