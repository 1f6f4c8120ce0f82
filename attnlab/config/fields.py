"""Fields of settings: each has a default, a range and a meaning, and is checked when it is set.

    @settings
    class Window:
        keys: int = setting(128, low=1, because="it counts the query's own key", about="…")

`Window(keys=0)` raises "keys is 0; it counts the query's own key, so use 1 or more". What relates
several fields is checked by a method `check`, which is called after all ranges are known to hold.
"""

import dataclasses
import functools
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from attnlab import registry
from attnlab.config.hints import ConfigError, in_words, is_finite, members

T = TypeVar("T")
Number = int | float


class SettingError(ConfigError):
    """A value that its class refuses. `name` is the field's; the message has a longer key."""

    # set afterwards, since unpickling makes an exception from its message alone
    name: str
    fault: str

    def at(self, prefix: str) -> ConfigError:
        """The same with the key as the person wrote it, such as `model.positions.base`."""
        return ConfigError(f"{prefix}{self.name} {self.fault}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a value may be, or each value of a list: `above` and `below` themselves are refused.

    `because` is the reason, for the message. `none` says what None stands for.
    """

    low: Number | None = None
    high: Number | None = None
    above: Number | None = None
    below: Number | None = None
    choices: tuple[str, ...] = ()
    count: int | None = None  # of the values in a list; None: any number
    because: str = ""
    none: str = ""

    def allow(self, value: Number) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    @property
    def range(self) -> str:
        """The range in words; empty if there is none."""
        if self.low is not None and self.high is not None:
            return f"{self.low} to {self.high}"
        if self.low is not None:
            end = "or more" if self.below is None else f"to less than {self.below}"
            return f"{self.low} {end}"
        ends = [
            f"{words} {end}"
            for words, end in (
                ("more than", self.above),
                ("less than", self.below),
                ("at most", self.high),
            )
            if end is not None
        ]
        return " and ".join(ends)


NO_LIMITS = Limits()


def setting(
    default: T,
    *,
    about: str,
    low: Number | None = None,
    high: Number | None = None,
    above: Number | None = None,
    below: Number | None = None,
    choices: Iterable[str] = (),
    count: int | None = None,
    because: str = "",
    none: str = "",
    metadata: Mapping[str, object] | None = None,
) -> T:
    """A field with its default, what it may be (see `Limits`) and what it is.

    A list may be empty only if its default is.
    """
    limits = Limits(
        low=low,
        high=high,
        above=above,
        below=below,
        choices=tuple(choices),
        count=count,
        because=because,
        none=none,
    )
    return dataclasses.field(
        default=default, metadata={**(metadata or {}), "about": about, "limits": limits}
    )


def open_settings(*, about: str) -> Any:
    """A field for settings of any name, as pairs: those of code that is not looked into yet.

    Files and overrides have them beside the other settings, under their own names.
    """
    return dataclasses.field(default=(), metadata={"open": True, "about": about})


def recorded(make: Callable[[], T], *, about: str) -> T:
    """A field that is made when a person chooses; a file must have it, and it is not made then."""
    return dataclasses.field(default_factory=make, metadata={"recorded": True, "about": about})


def open_field(cls: type) -> str | None:
    """The field of a settings class that takes settings of any name."""
    every = dataclasses.fields(cls)  # type: ignore[arg-type]
    return next((one.name for one in every if "open" in one.metadata), None)


def choice(kind: str, default: str, *, about: str = "") -> Any:
    """A field that holds the settings of a registered option of the kind."""
    return dataclasses.field(
        default_factory=lambda: registry.load(kind, default)(),
        metadata={"kind": kind, "about": about},
    )


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """A frozen dataclass of keywords whose values are checked when an object of it is made."""
    if "__post_init__" in vars(cls):
        raise TypeError(f"{cls.__name__} has a __post_init__; call it `check`")
    cls.__post_init__ = _check_all  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def refusal(owner: object, name: str, advice: str) -> SettingError:
    """The error that says why the value of a field is refused, for `check` to raise."""
    return _error(type(owner), name, f"is {getattr(owner, name)!r}; {advice}")


def check_value(cls: type, name: str, value: object) -> None:
    """Raise what the settings class says of this value of one field, for what is given alone."""
    for field, hint, limits, default in _checked_fields(cls):  # type: ignore[arg-type]
        if field == name and (fault := _fault(value, hint, limits, default)):
            raise _error(cls, name, fault)


def construct(make: Callable[[], T], prefix: str) -> T:
    """What `make` returns; its refusals name the key, which begins with the prefix."""
    try:
        return make()
    except SettingError as error:
        raise error.at(prefix) from None
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def option(kind: str, name: str, key: str) -> type[Any]:
    """The settings class of a registered option; `key` is the setting that names it."""
    try:
        return registry.load(kind, name)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


def _error(cls: type, name: str, fault: str) -> SettingError:
    """Named by kind, `positions.base`, since where the object will stand is not known here."""
    kind = registry.kind_of(cls)
    error = SettingError(f"{kind}.{name} {fault}" if kind else f"{name} {fault}")
    error.name, error.fault = name, fault
    return error


def _check_all(self: object) -> None:
    for name, hint, limits, default in _checked_fields(type(self)):  # type: ignore[arg-type]
        if fault := _fault(getattr(self, name), hint, limits, default):
            raise _error(type(self), name, fault)
    check = getattr(self, "check", None)
    if check is not None:
        check()


@functools.cache
def _checked_fields(cls: type) -> list[tuple[str, Any, Limits, object]]:
    hints = get_type_hints(cls)
    return [
        (one.name, hints[one.name], one.metadata.get("limits", NO_LIMITS), one.default)
        for one in dataclasses.fields(cls)
        if not {"kind", "open"} & set(one.metadata)
    ]


def _fault(value: Any, hint: Any, limits: Limits, default: object, verb: str = "is") -> str:
    """What is wrong with a value, as the end of a sentence; empty if nothing is.

    Numbers and what is chosen from a list are checked, other types are not.
    """
    parts = members(hint)
    for part in parts:
        if get_origin(part) is tuple and isinstance(value, tuple | list):
            return _fault_of_list(value, get_args(part)[0], limits, default)
        if _is_number(value, part) and not (is_finite(value) and limits.allow(value)):
            return f"{verb} {value!r}; {_advice(limits, type(None) in parts, default)}"
        if part is str and isinstance(value, str) and limits.choices:
            parts = (Literal[limits.choices],)  # type: ignore[valid-type]
    if any(_is_a(value, part) for part in parts):
        return ""
    known = [str(one) for part in parts if get_origin(part) is Literal for one in get_args(part)]
    if known and isinstance(value, str):
        return f"{verb} {value!r}; {registry.suggest(value, known)}"
    return f"{verb} {value!r}; it must be {in_words(hint)}"


def _fault_of_list(values: Sequence[Any], hint: Any, limits: Limits, default: object) -> str:
    if limits.count is not None and len(values) != limits.count:
        return f"is {list(values)}; give {limits.count} values"
    if not values and default != ():
        known = ", ".join(limits.choices)
        return "is empty; " + (f"choose from {known}" if known else "give one or more")
    faults = (_fault(one, hint, limits, None, verb="has") for one in values)
    return next(filter(None, faults), "")


def _advice(limits: Limits, optional: bool, default: object) -> str:
    advice = f"use {limits.range or 'a finite number'}"
    if limits.because:
        advice = f"{limits.because}, so {advice}"
    if isinstance(default, float):
        advice += f", such as {default}"
    if optional:
        advice += f", or none for {limits.none}" if limits.none else ", or none"
    return advice


def _is_number(value: object, hint: Any) -> bool:
    """Whether a value is a number of the type; a whole number is a float as well."""
    if isinstance(value, bool) or hint not in (int, float):
        return False
    return isinstance(value, numbers.Integral if hint is int else numbers.Real)


def _is_a(value: object, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is type(None):
        return value is None
    return _is_number(value, hint) if hint in (int, float) else True
