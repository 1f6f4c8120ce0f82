"""Settings described: every field with its default, type, range and meaning."""

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

from attnlab import registry
from attnlab.config.fields import NO_LIMITS, Limits
from attnlab.config.hints import members
from attnlab.config.overrides import format_value
from attnlab.config.plain import plain_value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    key: str  # as a person writes it before the equals sign
    default: str  # as a person writes it after it
    type: str
    range: str  # empty: any value of the type
    about: str

    @property
    def values(self) -> str:
        """Type and range in one: what a person may write."""
        between = "; " if self.range.startswith("none") else ", "
        return between.join(filter(None, (self.type, self.range)))


def describe(settings: Any, *, prefix: str = "", chosen: bool = False) -> list[Description]:
    """Every field, those of a group under its dotted key; with `chosen` those of options too."""
    hints, found = get_type_hints(type(settings)), []
    for field in dataclasses.fields(settings):
        if "open" in field.metadata:  # of code, which alone knows all names: those that are given
            found += [
                Description(
                    key=prefix + name,
                    default=format_value(value),
                    type=type(value).__name__,
                    range="",
                    about="a setting of the code itself",
                )
                for name, value in getattr(settings, field.name)
            ]
        if {"open", "recorded"} & set(field.metadata):
            continue
        key, value = prefix + field.name, getattr(settings, field.name)
        kind, about = field.metadata.get("kind"), field.metadata.get("about", "")
        if kind:
            name, names = registry.name_of(kind, value), registry.options(kind)
            found.append(
                Description(
                    key=key,
                    default=name,
                    type=f"one of {', '.join(option.name for option in names)}",
                    range="",
                    about=about,
                )
            )
        if kind and not chosen:
            continue
        if dataclasses.is_dataclass(value):
            found += describe(value, prefix=f"{key}.", chosen=chosen)
            continue
        limits = field.metadata.get("limits", NO_LIMITS)
        default = format_value(plain_value(value))
        found.append(
            Description(
                key=key,
                default=default.lower() if isinstance(value, bool) else default,
                type=_type(hints[field.name], limits),
                range=_range(hints[field.name], limits),
                about=about,
            )
        )
    return found


def _type(hint: Any, limits: Limits) -> str:
    """The type in words, without None."""
    names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    types = []
    for part in members(hint):
        if get_origin(part) is tuple:
            types.append(f"list: {_type(get_args(part)[0], limits)}")
        elif get_origin(part) is Literal:
            types.append(f"one of {', '.join(map(str, get_args(part)))}")
        elif part is str and limits.choices:
            types.append(f"one of {', '.join(limits.choices)}")
        elif part is not type(None):
            types.append(names.get(part, part.__name__.lower()))
    return " or ".join(types)


def _range(hint: Any, limits: Limits) -> str:
    """The range in words, and what None stands for where it is allowed."""
    parts = members(hint)
    inner = [get_args(part)[0] for part in parts if get_origin(part) is tuple]
    optional = any(type(None) in members(one) for one in (hint, *inner))
    none = f"none: {limits.none}" if limits.none else "none"
    count = f"{limits.count} values" if limits.count is not None else ""
    numbers = ", ".join(filter(None, (count, limits.range)))
    return "; ".join(filter(None, (numbers, none if optional else "")))
