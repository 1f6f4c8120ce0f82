"""Settings changed by words, and what a wrong word is told."""

from pathlib import Path

import pytest
from config.samples import Outer

from attnlab import config
from attnlab.attention.positions import Alibi, Rotary
from attnlab.config import ConfigError, override


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("width=16", "width", 16),
        ("width=1_000", "width", 1000),
        ("--width=16", "width", 16),
        ("name=a=b", "name", "a=b"),
        ("name=", "name", ""),
        ("folder=/tmp/x", "folder", Path("/tmp/x")),
        ("fast=yes", "fast", True),
        ("fast=off", "fast", False),
        ("mode=quick", "mode", "quick"),
        ("limit=none", "limit", None),
        ("limit=7", "limit", 7),
        ("window=4,4,none", "window", (4, 4, None)),
        ("window=[4, 4]", "window", (4, 4)),
        ("inner.rate=1e-3", "inner.rate", 1e-3),
        ("--inner.steps=9", "inner.steps", 9),
        ("positions=alibi", "positions", Alibi()),
        ("positions.base=500", "positions", Rotary(base=500.0)),
        ("positions.layout=interleaved", "positions", Rotary(layout="interleaved")),
    ],
)
def test_a_word_sets_one_value(word, path, value):
    got = override(Outer(), [word])
    for name in path.split("."):
        got = getattr(got, name)
    assert got == value and type(got) is type(value)


def test_a_new_variant_takes_its_own_defaults():
    settings = override(Outer(), ["positions.base=7"])
    assert override(settings, ["positions=rotary"]).positions == Rotary()


def test_the_order_of_words_does_not_matter():
    words = ["positions.base=500", "positions=rotary"]
    assert override(Outer(), words) == override(Outer(), words[::-1])
    assert override(Outer(), words).positions == Rotary(base=500.0)


def test_the_last_of_two_equal_words_wins():
    assert override(Outer(), ["width=1", "width=2"]).width == 2


def test_underscores_and_dashes_are_alike():
    assert override(Outer(), ["window=3"]) == override(Outer(), ["--window=3"])
    from attnlab.attention.heads import MultiHead

    assert override(MultiHead(), ["head-width=4"]) == override(MultiHead(), ["head_width=4"])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("widht=3", "widht: no such setting; did you mean 'width'?"),
        ("inner.rat=3", "inner.rat: no such setting; did you mean 'inner.rate'?"),
        ("zzz=3", "zzz: no such setting; choose from width, name"),
        ("width", "'width' is not a setting; write width=value"),
        ("=3", "'=3' is not a setting"),
        ("inner..rate=3", "is not a setting"),
        ("width=3.5", "width is '3.5'; it must be a whole number"),
        ("width=many", "width is 'many'; it must be a whole number"),
        ("width=0", "width is 0; use 1 or more"),
        ("inner.rate=nan", "inner.rate is 'nan'; it must be a number"),
        ("inner.rate=1", "inner.rate is 1.0; use 0 to less than 1, such as 0.5"),
        ("fast=maybe", "fast is 'maybe'; it must be true or false"),
        ("mode=quik", "mode is 'quik'; did you mean 'quick'?"),
        ("limit=x", "limit is 'x'; it must be a whole number or none"),
        ("limit=101", "limit is 101; use at most 100, or none for no limit"),
        (
            "window=4,0",
            "window has 0; it counts the query's own key, so use 1 or more, or none for all keys",
        ),
        ("window=", "window is empty; give one or more"),
        ("weights=1", "weights is [1.0]; give 2 values"),
        ("weights=0,1", "weights has 0.0; use more than 0 and at most 1"),
        ("families=dgo", "families has 'dgo'; did you mean 'dog'?"),
        ("window=4,x", "window is 'x'; it must be a whole number or none"),
        ("positions=rotory", "positions: unknown positions 'rotory'; did you mean 'rotary'?"),
        ("positions.bass=3", "positions.bass: no such setting; did you mean 'positions.base'?"),
        (
            "positions.base=0",
            "positions.base is 0.0; frequencies are its powers, so use more than 0",
        ),
        ("inner=3", "inner is a group of settings; set one of inner.rate, inner.steps"),
        ("width.x=3", "width.x: width has no settings inside it"),
    ],
)
def test_a_wrong_word_is_told_the_nearest_right_one(word, message):
    with pytest.raises(ConfigError) as caught:
        override(Outer(), [word])
    assert message in str(caught.value)


@pytest.mark.parametrize("order", [1, -1])
def test_settings_that_fit_only_together_come_in_any_order(order):
    from attnlab.models.transformer import TransformerSettings

    words = ["width=15", "attention.heads=5"][::order]
    settings = config.override(TransformerSettings(), words)
    assert (settings.width, settings.attention.heads) == (15, 5)


def test_a_file_of_settings_becomes_words():
    from attnlab.models.transformer import TransformerSettings

    changed = config.override(
        TransformerSettings(), ["positions=alibi", "window=3,none", "bias=on"]
    )
    words = config.to_overrides(config.to_dict(changed))
    assert config.override(TransformerSettings(), words) == changed
    with pytest.raises(config.ConfigError, match="object"):
        config.to_overrides([1])
