"""Settings changed by overrides: `key=value`, the key dotted.

Shorter keys are applied first, so the order of the overrides does not matter.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar, get_type_hints

from attnlab import registry
from attnlab.config.fields import construct, open_field, option
from attnlab.config.hints import ConfigError, parse, parse_any

S = TypeVar("S")


def override(settings: S, overrides: Iterable[str]) -> S:
    """The settings with `key=value` overrides applied; later overrides win over earlier ones."""
    return _apply(settings, [split_override(word) for word in overrides], "")


def split_override(word: str) -> tuple[list[str], str]:
    """`--model.width=3` -> (["model", "width"], "3")."""
    key, equals, text = word.removeprefix("--").partition("=")
    path = key.strip().replace("-", "_").split(".")
    if not equals or not all(path):
        wanted = key.strip() if key.strip().replace("-", "_").isidentifier() else "key"
        raise ConfigError(f"{word!r} is not a setting; write {wanted}=value")
    return path, text.strip()


def paths(settings: object) -> list[str]:
    """Every setting with where it is: model.attention.heads."""
    if not dataclasses.is_dataclass(settings):
        return []
    found = []
    for name in _named_fields(settings):
        within = paths(getattr(settings, name))
        found += [name, *(f"{name}.{path}" for path in within)]
    return found


def _named_fields(settings: Any) -> dict[str, dataclasses.Field[Any]]:
    every = dataclasses.fields(settings)
    return {field.name: field for field in every if "open" not in field.metadata}


def to_overrides(plain: object, prefix: str = "") -> list[str]:
    """Settings from a file, as saved by `to_dict` or a part of that, as overrides."""
    if not isinstance(plain, dict):
        raise ConfigError(f"settings in a file are an object, not {plain!r}")
    overrides = []
    for name, value in plain.items():
        if isinstance(value, dict):
            if "name" in value:
                overrides.append(f"{prefix}{name}={value['name']}")
            rest = {inner: v for inner, v in value.items() if inner != "name"}
            if not value:
                raise ConfigError(f"{prefix}{name} is an empty group of settings; leave it out")
            overrides += to_overrides(rest, f"{prefix}{name}.")
        else:
            overrides.append(f"{prefix}{name}={format_value(value)}")
    return overrides


def format_value(value: object) -> str:
    """A plain JSON value as a person writes it after `key=`."""
    if isinstance(value, list):
        return ",".join(map(format_value, value))
    return "none" if value is None else str(value)


def _apply(settings: Any, changes: list[tuple[list[str], str]], prefix: str) -> Any:
    """All changes at once: a width and heads that fit each other may come in any order.

    `prefix` is the key of these settings in those that the overrides are about: "" or "model.".
    """
    values: dict[str, Any] = {}
    known = _named_fields(settings)
    for name in dict.fromkeys(path[0] for path, _ in changes):
        mine = [(path[1:], text) for path, text in changes if path[0] == name]
        anything = open_field(type(settings))
        if name not in known and anything and not mine[-1][0]:
            if name == "name":  # in a file it is what was chosen
                raise ConfigError(f"{prefix}name cannot be set; give the parameter another name")
            pairs = dict(values.get(anything, getattr(settings, anything)))
            values[anything] = tuple({**pairs, name: parse_any(mine[-1][1])}.items())
            continue
        if name not in known:
            key = ".".join([prefix + name, *mine[0][0]])
            deeper = [prefix + path for path in paths(settings)]
            near = registry.suggest(prefix + name, [prefix + one for one in known], deeper)
            raise ConfigError(f"{key}: no such setting; {near}")
        for text in (text for path, text in mine if not path):
            values[name] = _new_value(settings, known[name], text, prefix)
        inside = [(path, text) for path, text in mine if path]
        if inside:
            current = values.get(name, getattr(settings, name))
            if not dataclasses.is_dataclass(current):
                key = ".".join([prefix + name, *inside[0][0]])
                raise ConfigError(f"{key}: {name} has no settings inside it; write {name}=value")
            values[name] = _apply(current, inside, f"{prefix}{name}.")
    return construct(lambda: dataclasses.replace(settings, **values), prefix)


def _new_value(settings: object, field: dataclasses.Field[Any], text: str, prefix: str) -> object:
    name, key = field.name, prefix + field.name
    kind, current = field.metadata.get("kind"), getattr(settings, name)
    if kind:
        return construct(option(kind, text, key), f"{key}.")
    if dataclasses.is_dataclass(current):
        inside = ", ".join(f"{name}.{field.name}" for field in dataclasses.fields(current))
        raise ConfigError(f"{key} is a group of settings; set one of {inside}")
    return parse(get_type_hints(type(settings))[name], text, key)
