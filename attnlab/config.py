"""Settings: frozen dataclasses, changed by dotted `key=value` words, saved as plain JSON.

A field made by `choice(kind, default)` holds the settings of one registered option of that kind:
`positions=rotary` takes that option with its own defaults, `positions.base=5000` changes one value
in it. Shorter keys are applied first, so the order of the words does not matter.
"""

import dataclasses
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from attnlab import registry

S = TypeVar("S")


class ConfigError(ValueError):
    """A setting that is unknown, of the wrong type or refused by its class: a person's slip."""


def choice(kind: str, default: str) -> Any:
    """A dataclass field that holds the settings of a registered option."""
    return dataclasses.field(
        default_factory=lambda: registry.load(kind, default)(), metadata={"kind": kind}
    )


def override(settings: S, words: Iterable[str]) -> S:
    """The settings with `key=value` words applied; later words win over earlier ones."""
    return _changed(
        settings, [(path, text, ".".join(path)) for path, text in map(split_word, words)]
    )


def split_word(word: str) -> tuple[list[str], str]:
    """`--model.width=3` -> (["model", "width"], "3")."""
    key, equals, text = word.removeprefix("--").partition("=")
    path = key.strip().replace("-", "_").split(".")
    if not equals or not all(path):
        raise ConfigError(f"{word!r} is not a setting; write key=value, such as width=128")
    return path, text.strip()


def words_of(plain: Any, prefix: str = "") -> list[str]:
    """Settings from a file, as saved by `to_dict` or a part of that, as words."""
    if not isinstance(plain, dict):
        raise ConfigError(f"settings in a file are an object, not {plain!r}")
    words = []
    for name, value in plain.items():
        if isinstance(value, dict):
            if "name" in value:
                words.append(f"{prefix}{name}={value['name']}")
            rest = {inner: v for inner, v in value.items() if inner != "name"}
            if not value:
                raise ConfigError(f"{prefix}{name} is an empty group of settings; leave it out")
            words += words_of(rest, f"{prefix}{name}.")
        else:
            words.append(f"{prefix}{name}={_spelled(value)}")
    return words


def _spelled(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_spelled, value))
    return "none" if value is None else str(value)


def to_dict(settings: Any) -> dict[str, Any]:
    """Plain JSON values; a chosen option carries its name under "name"."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        kind = field.metadata.get("kind")
        if kind:
            plain[field.name] = {"name": registry.name_of(kind, value), **to_dict(value)}
        elif dataclasses.is_dataclass(value):
            plain[field.name] = to_dict(value)
        else:
            plain[field.name] = str(value) if isinstance(value, Path) else _listed(value)
    return plain


def from_dict(cls: type[S], plain: Any, key: str = "") -> S:
    """The inverse of `to_dict`; everything is checked, missing fields take their defaults."""
    if not isinstance(plain, dict):
        raise ConfigError(f"{key or cls.__name__} is {plain!r}; it must be an object of settings")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in plain.items():
        full = f"{key}.{name}" if key else str(name)
        if name not in fields:
            raise ConfigError(f"{full}: no such setting; {registry.suggest(name, list(fields))}")
        kind = fields[name].metadata.get("kind")
        if kind:
            if not isinstance(value, dict) or not isinstance(value.get("name"), str):
                raise ConfigError(f'{full} is {value!r}; it must be an object with a "name"')
            rest = {inner: v for inner, v in value.items() if inner != "name"}
            values[name] = from_dict(_option(kind, value["name"], full), rest, full)
        elif dataclasses.is_dataclass(hints[name]):
            values[name] = from_dict(hints[name], value, full)  # type: ignore[arg-type]
        else:
            values[name] = _checked(hints[name], value, full)
    return _construct(cls, values)


Change = tuple[list[str], str, str]  # path from here, text, whole key


def _changed(settings: Any, changes: list[Change]) -> Any:
    """All changes at once: a width and heads that fit each other may come in any order."""
    values: dict[str, Any] = {}
    for name in dict.fromkeys(path[0] for path, _, _ in changes):
        mine = [(path[1:], text, key) for path, text, key in changes if path[0] == name]
        inside = [change for change in mine if change[0]]
        for _, text, key in (change for change in mine if not change[0]):
            values[name] = _new_value(settings, name, text, key)
        if inside:
            path, _, key = inside[0]
            if name not in {field.name for field in dataclasses.fields(settings)}:
                raise _unknown(settings, [name, *path], key)
            current = values.get(name, getattr(settings, name))
            if not dataclasses.is_dataclass(current):
                raise ConfigError(f"{key}: {name} has no settings inside it; write {name}=value")
            values[name] = _changed(current, inside)
    return _construct(dataclasses.replace, values, settings)


def _new_value(settings: Any, name: str, text: str, key: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(settings)}
    if name not in fields:
        raise _unknown(settings, [name], key)
    kind, current = fields[name].metadata.get("kind"), getattr(settings, name)
    if kind:
        return _construct(_option(kind, text, key), {})
    if dataclasses.is_dataclass(current):
        inside = ", ".join(f"{name}.{field.name}" for field in dataclasses.fields(current))
        raise ConfigError(f"{key} is a group of settings; set one of {inside}")
    return _parsed(get_type_hints(type(settings))[name], text, key)


def _unknown(settings: Any, path: list[str], key: str) -> ConfigError:
    prefix = key[: len(key) - len(".".join(path))]
    known = [prefix + field.name for field in dataclasses.fields(settings)]
    return ConfigError(f"{key}: no such setting; {registry.suggest(prefix + path[0], known)}")


def _construct(make: Any, values: dict[str, Any], *given: Any) -> Any:
    try:
        return make(*given, **values)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def _option(kind: str, name: str, key: str) -> Any:
    try:
        return registry.load(kind, name)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


def _wrong(key: str, value: Any, rule: str) -> ConfigError:
    return ConfigError(f"{key} is {value!r}; it must be {rule}")


def _rule(hint: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(str(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_rule(argument) for argument in arguments))
    if origin is tuple:
        return f"a list (separated by commas) of {_rule(arguments[0])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return "none" if hint is type(None) else words.get(hint, getattr(hint, "__name__", str(hint)))


def _parsed(hint: Any, text: str, key: str) -> Any:
    """A word from the command line as a value of the type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for argument in sorted(arguments, key=lambda a: a is str):  # str takes anything: last
            try:
                return _parsed(argument, text, key)
            except ConfigError:
                continue
        raise _wrong(key, text, _rule(hint))
    if origin is tuple:
        parts = text.strip("[]()").split(",")
        return tuple(_parsed(arguments[0], part.strip(), key) for part in parts if part.strip())
    if hint is type(None) and text.lower() in ("none", "null"):
        return None
    if hint is bool and text.lower() in ("true", "yes", "on", "false", "no", "off"):
        return text.lower() in ("true", "yes", "on")
    try:
        if hint in (int, float):
            return _checked(hint, hint(text), key)
    except ValueError:
        raise _wrong(key, text, _rule(hint)) from None
    if hint is Path:
        return Path(text).expanduser()
    if hint is str or (origin is Literal and text in arguments):
        return text
    if origin is Literal:
        near = registry.suggest(text, [str(value) for value in arguments])
        raise ConfigError(f"{key} is {text!r}; {near}")
    raise _wrong(key, text, _rule(hint))


def _checked(hint: Any, value: Any, key: str) -> Any:
    """A JSON value as a value of the type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for argument in arguments:
            try:
                return _checked(argument, value, key)
            except ConfigError:
                continue
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(_checked(arguments[0], part, key) for part in value)
    elif origin is Literal and value in arguments:
        return value
    elif hint is type(None) and value is None:
        return None
    elif hint is Path and isinstance(value, str | Path):
        return Path(value)
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= sys.float_info.max:  # False for NaN; whole numbers may be larger
            return float(value)
    elif hint in (int, str, bool) and type(value) is hint:
        return value
    raise _wrong(key, value, _rule(hint))


def _listed(value: Any) -> Any:
    return [_listed(part) for part in value] if isinstance(value, tuple) else value
