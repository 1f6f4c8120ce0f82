"""Settings as plain JSON values and back; everything that is read is checked."""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from attnlab import registry
from attnlab.config.fields import construct, open_field, option
from attnlab.config.hints import ConfigError, accept

S = TypeVar("S")
Plain = bool | None | int | float | str


def to_dict(settings: Any) -> dict[str, Any]:
    """Plain JSON values; a chosen option carries its name under "name"."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        kind = field.metadata.get("kind")
        if kind:
            plain[field.name] = {"name": registry.name_of(kind, value), **to_dict(value)}
        elif field.metadata.get("open"):
            plain |= {name: plain_value(one) for name, one in value}
        elif dataclasses.is_dataclass(value):
            plain[field.name] = to_dict(value)
        else:
            plain[field.name] = plain_value(value)
    return plain


def plain_value(value: object) -> object:
    """A path as a text, a tuple as a list."""
    if isinstance(value, tuple):
        return [plain_value(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def from_dict(cls: type[S], plain: object, key: str = "") -> S:
    """The inverse of `to_dict`; missing fields take their defaults."""
    if not isinstance(plain, dict):
        raise ConfigError(f"{key or cls.__name__} is {plain!r}; it must be an object of settings")
    every = dataclasses.fields(cls)  # type: ignore[arg-type]
    fields = {field.name: field for field in every if "open" not in field.metadata}
    hints = get_type_hints(cls)
    prefix = f"{key}." if key else ""
    values: dict[str, Any] = {}
    for name, value in plain.items():
        full = f"{prefix}{name}"
        if name not in fields and (anything := open_field(cls)):
            one = accept(Plain, value, full)
            values[anything] = (*values.get(anything, ()), (name, one))
            continue
        if name not in fields:
            raise ConfigError(f"{full}: no such setting; {registry.suggest(name, list(fields))}")
        kind = fields[name].metadata.get("kind")
        if kind:
            if not isinstance(value, dict) or not isinstance(value.get("name"), str):
                raise ConfigError(f'{full} is {value!r}; it must be an object with a "name"')
            rest = {inner: v for inner, v in value.items() if inner != "name"}
            values[name] = from_dict(option(kind, value["name"], full), rest, full)
        elif dataclasses.is_dataclass(hints[name]):
            values[name] = from_dict(hints[name], value, full)  # type: ignore[arg-type]
        else:
            values[name] = accept(hints[name], value, full)
    for name, field in fields.items():
        if "recorded" in field.metadata and name not in values:
            raise ConfigError(f"{prefix}{name} is missing; it is recorded when a model is made")
    made: S = construct(lambda: cls(**values), prefix)
    return made


def flat(plain: dict[str, object], prefix: str = "") -> dict[str, object]:
    """{"a": {"b": 1}} -> {"a.b": 1}"""
    found: dict[str, object] = {}
    for name, value in plain.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = value
    return found
