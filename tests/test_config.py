"""Settings: words on the command line, JSON, and what wrong ones are told."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from attnlab import config
from attnlab.attention.positions import Alibi, Rotary
from attnlab.config import ConfigError, choice, from_dict, override, to_dict


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.5
    steps: int = 3


@dataclass(frozen=True, kw_only=True)
class Outer:
    width: int = 8
    name: str = "x"
    folder: Path = Path("runs")
    fast: bool = False
    mode: Literal["slow", "quick"] = "slow"
    limit: int | None = None
    window: tuple[int | None, ...] = (None,)
    positions: Any = choice("positions", "rotary")
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width is {self.width}; use 1 or more")


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
        ("width", "'width' is not a setting; write key=value"),
        ("=3", "'=3' is not a setting"),
        ("inner..rate=3", "is not a setting"),
        ("width=3.5", "width is '3.5'; it must be a whole number"),
        ("width=many", "width is 'many'; it must be a whole number"),
        ("width=0", "width is 0; use 1 or more"),
        ("inner.rate=nan", "inner.rate is 'nan'; it must be a number"),
        ("fast=maybe", "fast is 'maybe'; it must be true or false"),
        ("mode=quik", "mode is 'quik'; did you mean 'quick'?"),
        ("limit=x", "limit is 'x'; it must be a whole number or none"),
        ("window=4,x", "window is 'x'; it must be a whole number or none"),
        ("positions=rotory", "positions: no positions called 'rotory'; did you mean 'rotary'?"),
        ("positions.bass=3", "positions.bass: no such setting; did you mean 'positions.base'?"),
        ("positions.base=0", "positions.base is 0.0"),
        ("inner=3", "inner is a group of settings; set one of inner.rate, inner.steps"),
        ("width.x=3", "width.x: width has no settings inside it"),
    ],
)
def test_a_wrong_word_is_told_the_nearest_right_one(word, message):
    with pytest.raises(ConfigError) as caught:
        override(Outer(), [word])
    assert message in str(caught.value)


def test_settings_survive_json():
    words = ["positions=alibi", "window=3,none", "limit=4", "inner.rate=0.25", "folder=a/b"]
    settings = override(Outer(), words)
    plain = to_dict(settings)
    assert plain["positions"] == {"name": "alibi"} and plain["window"] == [3, None]
    assert from_dict(Outer, plain) == settings
    assert from_dict(Outer, {}) == Outer()


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([], "Outer is []; it must be an object"),
        ({"wdth": 3}, "wdth: no such setting; did you mean 'width'?"),
        ({"width": "3"}, "width is '3'; it must be a whole number"),
        ({"width": True}, "width is True; it must be a whole number"),
        ({"width": 0}, "width is 0; use 1 or more"),
        ({"inner": {"rate": float("inf")}}, "inner.rate is inf; it must be a number"),
        ({"positions": "rotary"}, 'it must be an object with a "name"'),
        ({"positions": {"name": "no"}}, "positions: no positions called 'no'"),
        ({"positions": {"name": "rotary", "x": 1}}, "positions.x: no such setting"),
        ({"window": 3}, "window is 3; it must be a list"),
    ],
)
def test_wrong_json_is_told_the_rule(plain, message):
    with pytest.raises(ConfigError) as caught:
        from_dict(Outer, plain)
    assert message in str(caught.value)


def test_every_transformer_option_survives_json():
    from attnlab import registry
    from attnlab.models.transformer import TransformerSettings

    for kind in ("attention", "score", "positions"):
        for option in registry.options(kind):
            settings = config.override(TransformerSettings(), [f"{kind}={option.name}"])
            assert from_dict(TransformerSettings, to_dict(settings)) == settings


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
    words = config.words_of(config.to_dict(changed))
    assert config.override(TransformerSettings(), words) == changed
    with pytest.raises(config.ConfigError, match="object"):
        config.words_of([1])


def test_a_number_that_no_float_can_hold_is_refused():
    from attnlab.training.recipe import Recipe

    with pytest.raises(config.ConfigError, match="clip"):
        config.from_dict(Recipe, {"clip": 10**400})
