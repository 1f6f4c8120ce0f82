"""Settings as JSON: what is saved is read back, and wrong JSON is told the rule."""

import pytest
from config.samples import Outer

from attnlab.config import ConfigError, from_dict, override, to_dict


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
        ({"inner": {"rate": 1}}, "inner.rate is 1.0; use 0 to less than 1"),
        ({"window": [3, 0]}, "window has 0; it counts the query's own key"),
        ({"positions": {"name": "rotary", "base": 0}}, "positions.base is 0.0; frequencies"),
        ({"positions": "rotary"}, 'it must be an object with a "name"'),
        ({"positions": {"name": "no"}}, "positions: unknown positions 'no'"),
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
            settings = override(TransformerSettings(), [f"{kind}={option.name}"])
            assert from_dict(TransformerSettings, to_dict(settings)) == settings


def test_a_number_that_no_float_can_hold_is_refused():
    from attnlab.training.recipe import Recipe

    with pytest.raises(ConfigError, match="clip"):
        from_dict(Recipe, {"clip": 10**400})
