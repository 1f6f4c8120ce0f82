"""Types of settings: each in words, and values of it from a word or from JSON."""

import sys
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from attnlab import registry


class ConfigError(ValueError):
    """A setting that is unknown, of the wrong type or out of range: a person can correct it."""


def members(hint: Any) -> tuple[Any, ...]:
    """The types that a union allows; any other type alone."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def in_words(hint: Any) -> str:
    """A type in words."""
    if len(parts := members(hint)) > 1:
        said = any("none" in get_args(part) for part in parts)  # by a word that stands for itself
        parts = tuple(part for part in parts if part is not type(None) or not said)
        return " or ".join(dict.fromkeys(map(in_words, parts)))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"a list (separated by commas) of {in_words(get_args(hint)[0])}"
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        Path: "a path",
        type(None): "none",
    }
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def wrong_type(key: str, value: object, hint: Any) -> ConfigError:
    parts = [part for part in members(hint) if part is not type(None)]
    if isinstance(value, str) and all(get_origin(part) is Literal for part in parts):
        known = [str(one) for part in parts for one in get_args(part)]
        near = registry.suggest(value, known)
        if near.startswith("did you mean"):
            return ConfigError(f"{key} is {value!r}; {near}")
    return ConfigError(f"{key} is {value!r}; it must be {in_words(hint)}")


def parse(hint: Any, text: str, key: str) -> object:
    """A word from the command line as a value of the type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if len(parts := members(hint)) > 1:
        for part in sorted(parts, key=lambda one: one is str):  # str takes anything: last
            try:
                return parse(part, text, key)
            except ConfigError:
                continue
        raise wrong_type(key, text, hint)
    if origin is tuple:
        pieces = text.strip("[]()").split(",")
        return tuple(parse(arguments[0], one.strip(), key) for one in pieces if one.strip())
    if hint is type(None) and text.lower() in ("none", "null"):
        return None
    if hint is bool and text.lower() in ("true", "yes", "on", "false", "no", "off"):
        return text.lower() in ("true", "yes", "on")
    try:
        if hint in (int, float):
            return accept(hint, hint(text), key)
    except ValueError:
        raise wrong_type(key, text, hint) from None
    if hint is Path:
        return Path(text).expanduser()
    if hint is str or (origin is Literal and text in arguments):
        return text
    if origin is Literal:
        near = registry.suggest(text, [str(value) for value in arguments])
        raise ConfigError(f"{key} is {text!r}; {near}")
    raise wrong_type(key, text, hint)


def parse_any(text: str) -> object:
    """A word as the plainest value that it can be: true, none, 3, 0.5, else a text."""
    return parse(bool | None | int | float | str, text, "")  # type: ignore[arg-type]


def accept(hint: Any, value: object, key: str) -> object:
    """A JSON value as a value of the type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if len(parts := members(hint)) > 1:
        for part in parts:
            try:
                return accept(part, value, key)
            except ConfigError:
                continue
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(accept(arguments[0], one, key) for one in value)
    elif origin is Literal and value in arguments:
        return value
    elif hint is type(None) and value is None:
        return None
    elif hint is Path and isinstance(value, str | Path):
        return Path(value)
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if is_finite(value):
            return float(value)
    elif hint in (int, str, bool) and type(value) is hint:
        return value
    raise wrong_type(key, value, hint)


def is_finite(value: float) -> bool:
    """Whether a float can hold it: False for NaN, infinities and larger whole numbers."""
    return bool(abs(value) <= sys.float_info.max)
