"""New caches, as expressions: by a method of the code, by a class that it names, or made for it.

An expression knows `code`, `x` (the new positions), `dtype`, torch and sys, in the audit as in a
script. What needs a number that nobody knows is not made.

Axes: b batch, t time, g key/value heads, d head width.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from attnlab.audit.signature import signature

MAKERS = re.compile(
    r"(new|make|init|initial|empty|get_empty|create|set|setup|allocate|build)"
    r"_(\w+_)?(cache|state)s?"
)
NEW = re.compile(r"(new|make|init|initial|empty|get_empty|create)_(\w+_)?(cache|state)s?")
# methods by which a module forgets the text that it keeps
RESETS = re.compile(
    r"(reset|clear|flush|free|delete|del|drop|remove|forget)_(\w+_)?"
    r"((cache|state|buffer|kv|past)s?|memor(y|ies)|histor(y|ies))|reset|clear|flush|forget"
)
ROOM = 128  # positions that a cache made beforehand has room for, if the code names no other
ROOMS = ("len", "seq", "max", "size", "window", "room", "capacity", "positions")


@dataclass(frozen=True)
class Place:
    """Where a way to decode is looked for: a module, the parameters of one of its methods."""

    module: nn.Module
    sizes: Mapping[str, int | None]  # that makers of caches ask for
    parameters: Mapping[str, inspect.Parameter]
    method: str = ""
    flat: bool = False  # the method takes a position without an axis of time

    @property
    def takes(self) -> list[str]:
        """What it takes besides its inputs."""
        return list(self.parameters)[1:]

    @property
    def layers(self) -> int:
        return self.sizes.get("layers") or 1


def methods_of(module: nn.Module) -> list[str]:
    return [one for one in dir(type(module)) if callable(getattr(type(module), one, None))]


def makers_of(module: nn.Module, sizes: Mapping[str, int | None]) -> dict[str, str]:
    """Methods that make a cache, by name, each as an expression that calls it."""
    return {
        one: text
        for one in methods_of(module)
        if MAKERS.fullmatch(one)
        and (text := _call_text(getattr(module, one), f"code.{one}", sizes))
    }


def resets_of(module: nn.Module, sizes: Mapping[str, int | None]) -> list[str]:
    """Calls by which it forgets a text, as expressions; of its parts only where it has none itself.

    What a module's own reset leaves behind in its parts is what its caller meets.
    """
    own = [
        text
        for one in methods_of(module)
        if RESETS.fullmatch(one)
        and (text := _call_text(getattr(module, one), f"code.{one}", sizes))
    ]
    inner = dict.fromkeys(
        one
        for part in module.modules()
        for one in methods_of(part)
        if RESETS.fullmatch(one) and _call_text(getattr(part, one), one, {}) == f"{one}()"
    )
    return own or [
        f"[part.{one}() for part in code.modules() if hasattr(part, {one!r})]" for one in inner
    ]


def sure_makers(module: nn.Module, sizes: Mapping[str, int | None]) -> list[str]:
    """Those that by their name make a new cache, and ask for no number that had to be guessed."""
    every = makers_of(module, sizes).items()
    return [text for name, text in every if NEW.fullmatch(name) and not re.search(r"\d", text)]


def own_caches(place: Place) -> list[str]:
    """By a method of the module, or of each of its layers."""
    made = list(makers_of(place.module, place.sizes).values())
    for name, inner in place.module.named_children():
        if not isinstance(inner, nn.ModuleList) or not len(inner):
            continue
        each = makers_of(inner[0], place.sizes)
        made += [
            f"[{one.replace('code.', 'layer.')} for layer in code.{name}]" for one in each.values()
        ]
    return made


def class_caches(place: Place, word: str) -> list[str]:
    """Of a class of the code's own that a parameter is said to be of."""
    kinds = _classes(place.parameters[word].annotation, place.module)
    made = [_call_text(kind, _class_name(kind, place.module), place.sizes) for kind in kinds]
    return [one for one in made if one]


def plain_caches(place: Place) -> list[str]:
    """That the code fills itself."""
    return ["{}", "[]", f"[None] * {place.layers}", f"[{{}} for _ in range({place.layers})]"]


def tables(place: Place) -> list[str]:
    """Keys and values of 0, with room for every position."""
    heads, width = place.sizes.get("kv_heads"), place.sizes.get("head_width")
    if heads is None or width is None:
        return []
    room, made = place.sizes.get("room") or ROOM, []
    for axes in (f"{heads}, {room}", f"{room}, {heads}"):
        one = f"torch.zeros(len(x), {axes}, {width}, dtype=dtype)"
        both = f"torch.zeros(2, len(x), {axes}, {width}, dtype=dtype)"
        made += [f"({one}, {one})", both, f"[({one}, {one}) for _ in range({place.layers})]"]
    return made


def states(place: Place) -> list[str]:
    """Of a convolution and a recurrence, as layers of Mamba have them, for one layer or for all."""
    convolutions = [one for one in place.module.modules() if isinstance(one, nn.Conv1d)]
    decays = [one for name, one in place.module.named_parameters() if name.endswith("A_log")]
    if not convolutions:
        return []
    channels, kernel = convolutions[0].in_channels, convolutions[0].kernel_size[0]
    recurrent = ["None"]
    if decays and decays[0].dim() == 2:
        recurrent += [f"torch.zeros(len(x), {', '.join(map(str, decays[0].shape))}, dtype=dtype)"]
    made = []
    for size in (kernel - 1, kernel):
        recent = f"torch.zeros(len(x), {channels}, {size}, dtype=dtype)"
        for one in recurrent:
            for pair in (f"({one}, {recent})", f"({recent}, {one})"):
                made += [f"[{pair} for _ in range({len(convolutions)})]"]
                made += [pair] * (len(convolutions) == 1)
    return made


def _class_name(kind: type, module: nn.Module) -> str:
    """A class, as an expression that holds too where the code's file has another module name."""
    own = kind.__module__ == type(module).__module__
    home = "type(code).__module__" if own else repr(kind.__module__)
    return f"sys.modules[{home}].{kind.__qualname__}"


def _classes(annotation: Any, module: nn.Module) -> list[type]:
    """Classes of the code's own that a parameter is said to be of."""
    beside = vars(sys.modules.get(type(module).__module__, object))
    if isinstance(annotation, str):
        return [
            beside[one]
            for one in re.findall(r"\w+", annotation)
            if inspect.isclass(beside.get(one)) and beside[one].__module__ == beside["__name__"]
        ]
    known = [annotation, *getattr(annotation, "__args__", ())]
    return [
        one
        for one in known
        if inspect.isclass(one)
        and one.__module__.partition(".")[0] not in ("builtins", "torch", "typing", "types")
    ]


def _call_text(made: Callable[..., Any], name: str, sizes: Mapping[str, int | None]) -> str:
    """A call of a maker of caches, as an expression; empty if it needs what is not known."""
    arguments = []
    try:
        parameters = signature(made).parameters
    except (TypeError, ValueError):
        return ""
    for one in parameters.values():
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            continue
        value = "dtype" if one.name == "dtype" else None
        if value is None and one.default is one.empty:
            value = _size_of(one.name, sizes)
            if value is None:
                return ""
        if value is not None:
            arguments.append(value if one.kind is one.POSITIONAL_ONLY else f"{one.name}={value}")
    return f"{name}({', '.join(arguments)})"


def _size_of(name: str, sizes: Mapping[str, int | None]) -> str | None:
    if "batch" in name or name in ("b", "bs", "bsz", "rows"):
        return "len(x)"
    if name == "device":
        return "x.device"
    if name in sizes:
        found = sizes[name]
    elif "layer" in name:
        found = sizes.get("layers")
    elif "dim" in name or "width" in name:
        found = sizes.get("head_width")
    elif "head" in name:
        found = sizes.get("kv_heads") or sizes.get("heads")
    else:
        found = sizes.get("room") or ROOM if any(part in name for part in ROOMS) else None
    return None if found is None else repr(found)
