"""Fields of settings: one check of type and range, whoever makes the object."""

import dataclasses
import math
import pickle
from typing import Any

import pytest
from config.samples import Inner, Outer

from attnlab.attention.positions import Rotary
from attnlab.config import ConfigError, check_value, override, refusal, setting, settings
from attnlab.models.transformer import TransformerSettings


@settings
class Range:
    low: float = setting(1.0, low=1, about="")
    high: float = setting(1.0, high=2, about="")
    above: float = setting(1.0, above=0, about="")
    below: float = setting(1.0, below=2, about="")
    both: int = setting(1, low=1, high=2, about="")
    inside: float = setting(1.0, above=0, below=2, about="")
    free: float = setting(0.0, about="")


@pytest.mark.parametrize(
    ("name", "right", "wrong", "rule"),
    [
        ("low", (1, 1.0, 1e300), (0.99, -math.inf, math.inf, math.nan), "use 1 or more"),
        ("high", (2, -1e300), (2.01, 3, math.nan), "use at most 2"),
        ("above", (1e-300, 5), (0, 0.0, -1), "use more than 0"),
        ("below", (1.99, -5), (2, 2.0, math.inf), "use less than 2"),
        ("both", (1, 2), (0, 3), "use 1 to 2"),
        ("inside", (0.01, 1.99), (0, 2), "use more than 0 and less than 2"),
        ("free", (-1e300, 0, 1e300), (math.inf, math.nan, 10**400), "use a finite number"),
    ],
)
def test_both_ends_of_a_range_are_held(name, right, wrong, rule):
    for value in right:
        assert getattr(Range(**{name: value}), name) == value
    for value in wrong:
        with pytest.raises(ConfigError) as caught:
            Range(**{name: value})
        assert f"{name} is {value!r}; {rule}" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": "8"}, "width is '8'; it must be a whole number"),
        ({"width": True}, "width is True; it must be a whole number"),
        ({"width": 2.0}, "width is 2.0; it must be a whole number"),
        ({"width": None}, "width is None; it must be a whole number"),
        ({"limit": 0.5}, "limit is 0.5; it must be a whole number or none"),
        ({"mode": "quik"}, "mode is 'quik'; did you mean 'quick'?"),
        ({"mode": 3}, "mode is 3; it must be one of slow, quick"),
        ({"window": ()}, "window is empty; give one or more"),
        ({"window": (3, 0, None)}, "window has 0; it counts the query's own key, so use 1 or more"),
        ({"window": ("3",)}, "window has '3'; it must be a whole number or none"),
        ({"weights": (0.5,)}, "weights is [0.5]; give 2 values"),
        ({"weights": (0.5, math.nan)}, "weights has nan; use more than 0 and at most 1"),
        ({"families": ("cat", "bird")}, "families has 'bird'; choose from cat, dog"),
    ],
)
def test_wrong_values_are_refused_in_python_too(wrong, message, unchecked_shapes):
    with pytest.raises(ConfigError) as caught:
        Outer(**wrong)
    assert message in str(caught.value)


def test_what_is_right_is_kept():
    made = Outer(limit=None, window=(None, 3), families=("dog",), weights=(1, 0.25))
    assert (made.limit, made.window, made.families) == (None, (None, 3), ("dog",))
    assert dataclasses.replace(made, width=9).width == 9
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.width = 3


def test_the_key_is_the_one_that_was_written():
    with pytest.raises(ConfigError, match=r"^positions\.base is 0; frequencies"):
        Rotary(base=0)  # nothing was written; the kind says where it belongs
    with pytest.raises(ConfigError, match=r"^base is 0\.0"):
        override(Rotary(), ["base=0"])
    with pytest.raises(ConfigError, match=r"^positions\.base is 0\.0"):
        override(TransformerSettings(), ["positions.base=0"])
    with pytest.raises(ConfigError, match=r"^rate is 2; "):
        Inner(rate=2)


@settings
class Pair:
    heads: int = setting(4, low=1, about="")
    kv_heads: int = setting(2, low=1, about="")

    def check(self) -> None:
        if self.heads % self.kv_heads:
            raise refusal(self, "kv_heads", f"it must divide heads = {self.heads}")


@settings
class Triple(Pair):
    width: int = setting(4, low=1, about="")


@pytest.mark.parametrize("cls", [Pair, Triple])
def test_relations_are_checked_after_the_ranges(cls):
    with pytest.raises(ConfigError, match="kv_heads is 3; it must divide heads = 4"):
        cls(kv_heads=3)
    with pytest.raises(ConfigError, match="kv_heads is 0; use 1 or more"):  # not divided by
        cls(kv_heads=0)
    with pytest.raises(ConfigError, match="heads is 0; use 1 or more"):  # before kv_heads
        cls(kv_heads=0, heads=0)


def test_a_second_check_is_not_lost_silently():
    with pytest.raises(TypeError, match="Old has a __post_init__; call it `check`"):

        @settings
        class Old:
            def __post_init__(self) -> None: ...


def test_a_plain_dataclass_may_derive_from_settings():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Derived(Pair):
        more: Any = None

    with pytest.raises(ConfigError, match="heads is 0"):
        Derived(heads=0)


def test_one_value_can_be_checked_alone():
    check_value(Outer, "width", 1)
    with pytest.raises(ConfigError, match="width is 0; use 1 or more"):
        check_value(Outer, "width", 0)


def test_a_refusal_survives_the_way_out_of_a_worker():
    with pytest.raises(ConfigError) as caught:
        Outer(width=0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) == str(again.at(""))
