"""The usual ways in which code decodes, tried out: a KV cache is what makes a beginning count.

Code is given its cache by a parameter (nothing at first, and then what a call gave back, or
something that it fills itself), or keeps it inside and is told where the new positions begin. A way
is taken if what was stepped through before moves what comes after; whether that is right is a
matter of the property. Names only say what to try: a parameter that is ignored is no cache.
"""

import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.errors import SubjectError
from attnlab.audit.repro.prelude import CACHES as CACHES
from attnlab.audit.subject.base import build_subject
from attnlab.audit.subject.convention import Convention
from attnlab.audit.subject.decoder import Decoder

NEW_CACHE = ("new_cache", "make_cache", "init_cache", "empty_cache")
MAKERS = re.compile(r"(new|make|init|empty|create|setup|allocate|build)_(\w+_)?(cache|state)s?")
FLAGS = re.compile(r"(use|return|with|output|need)_(\w+_)?(cache|past|kv|present|state)s?")
STARTS = re.compile(
    r"start(_pos|_position|_index)?|(input|cache|cur|current)_pos(ition)?s?|past_len(gth)?"
    r"|((pos|position|past|seq)_)?offset|pos"
)
STEPS = re.compile(  # methods that take one position at a time
    r"(forward_)?(step|recurrent)|decode|(step|decode|forward)_(one|single|token|step)"
    r"|(decoding|inference|recurrent|incremental|generate)_(step|token|forward)"
)
NUMBERED = ("start", "offset", "len", "cur")  # parts of names for a number, not for positions
ROOM = 128  # positions that a cache made beforehand has room for, if the code names no other


@dataclass(frozen=True)
class _Place:
    """Where a way to decode is looked for: a module, the parameters of one of its methods."""

    module: nn.Module
    sizes: Mapping[str, int | None]  # that makers of caches ask for
    parameters: Mapping[str, inspect.Parameter]
    method: str = ""


def decoders(module: nn.Module, sizes: Mapping[str, int | None]) -> Iterator[Decoder]:
    """Every way that the names allow, the likeliest first."""
    makers = list(_makers(module, sizes).values())
    parameters = inspect.signature(module.forward).parameters
    yield from _by_parameters(_Place(module, sizes, parameters), makers, flat=False)
    for method in (one for one in _methods(module) if STEPS.fullmatch(one)):
        try:
            parameters = inspect.signature(getattr(module, method)).parameters
        except (TypeError, ValueError):  # built-in code may not say what it takes
            continue
        for flat in (False, True):
            yield from _by_parameters(_Place(module, sizes, parameters, method), makers, flat)


def _methods(module: nn.Module) -> list[str]:
    return [one for one in dir(type(module)) if callable(getattr(type(module), one, None))]


def _makers(module: nn.Module, sizes: Mapping[str, int | None]) -> dict[str, str]:
    """Methods that make a cache, by name, each as an expression that calls it."""
    return {
        one: text
        for one in _methods(module)
        if MAKERS.fullmatch(one)
        and (text := _call_text(getattr(module, one), f"code.{one}", sizes))
    }


def _by_parameters(place: _Place, makers: Sequence[str], flat: bool) -> Iterator[Decoder]:
    """By what it takes: a cache, where the new positions begin, or neither."""
    takes = list(place.parameters)[1:]
    flags = tuple(one for one in takes if FLAGS.fullmatch(one))
    starts = [one for one in takes if STARTS.fullmatch(one)]
    names = [
        one
        for one in takes
        if CACHES.fullmatch(one) and one not in (*flags, *starts) and "mask" not in one
    ]
    if place.method and not names and len(takes) == 1 and not (flags or starts):
        names = takes  # what else would a step be given?
    common = Decoder(flags=flags, method=place.method, flat=flat)
    begins: list[tuple[str | None, bool]] = [
        (one, counted) for one in starts[:1] for counted in _start_kinds(place.parameters[one])
    ] or [(None, False)]
    for word in names:
        for make, (start, counted) in itertools.product(
            _new_caches(place, word, makers), [*begins, *([(None, False)] if starts else [])]
        ):
            yield replace(common, word=word, make=make, start=start, counted=counted)
    if starts or flags or makers or place.method:
        for setup, (start, counted) in itertools.product([*makers, ""], begins):
            yield replace(common, start=start, counted=counted, held=True, setup=setup)


def _start_kinds(parameter: inspect.Parameter) -> tuple[bool, bool]:
    """Whether a start is a number: the likelier first."""
    said = parameter.annotation
    number = said is int or said == "int" or type(parameter.default) is int
    if said not in (Tensor, "Tensor", "torch.Tensor") and not number:
        number = any(part in parameter.name for part in NUMBERED)
    return number, not number


def _new_caches(place: _Place, word: str, makers: Sequence[str]) -> list[str]:
    """What may be given as a new cache."""
    layers = place.sizes.get("layers") or 1
    kinds = [
        _call_text(kind, _class_name(kind, place.module), place.sizes)
        for kind in _classes(place.parameters[word].annotation, place.module)
    ]
    return [
        *makers,
        "None",
        *(one for one in kinds if one),
        "{}",
        "[]",
        f"[None] * {layers}",
        f"[{{}} for _ in range({layers})]",
    ]


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
        parameters = inspect.signature(made).parameters
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
    if name in sizes:
        found = sizes[name]
    elif "layer" in name:
        found = sizes.get("layers")
    elif "dim" in name or "width" in name:
        found = sizes.get("head_width")
    elif "head" in name:
        found = sizes.get("kv_heads") or sizes.get("heads")
    else:
        rooms = ("len", "seq", "max", "size", "window", "room", "capacity", "positions")
        found = sizes.get("room") or ROOM if any(part in name for part in rooms) else None
    return None if found is None else repr(found)


def find_decoder(convention: Convention) -> Decoder | None:
    """The first way to decode with which a beginning moves what follows; None if there is none.

    A method that is given one position with an axis of time, and one without, may take both, and
    compute nonsense with one of them: of these the one counts that is right, if any is.
    """
    assert convention.module is not None
    makers = _makers(convention.module, convention.cache_sizes)
    own = [makers[name] for name in NEW_CACHE if name in makers]
    length, promised, doubtful = 4, None, None
    subject = build_subject(convention)
    x = subject.draw(2, length, 0)
    other = torch.cat((subject.draw(2, length, 1)[:, : length - 1], x[:, length - 1 :]), dim=1)
    for decoder in decoders(convention.module, convention.cache_sizes):
        if promised is None and decoder.word is not None and decoder.make in own:
            promised = decoder
        stepping = replace(convention, decoder=decoder)
        for pieces in ([length - 1, 1], [1] * length):  # some take single steps only
            try:
                with torch.no_grad():
                    ends = [_last(stepping, text, pieces) for text in (x, other)]
                    whole = subject.run(x)[:, -1:]
            except (SubjectError, SystemExit):  # it decodes in another way, or not at all
                continue
            if ends[0].dtype is not whole.dtype:
                continue
            right = _close_by_element(ends[0], whole)
            if ends[0].shape[1] < 1 or torch.equal(ends[0], ends[1]):
                break
            if right or not decoder.method:
                return decoder
            doubtful = doubtful or decoder
            break
    return doubtful or promised  # it says that it has one, and the first way is its own


def _close_by_element(one: Tensor, other: Tensor) -> bool:
    """Each within a part of its own size."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, equal_nan=True)


def _last(convention: Convention, text: Tensor, pieces: Sequence[int]) -> Tensor:
    """The output of the last position, decoded in pieces."""
    assert convention.decoder is not None
    cache = convention.decoder.new_cache()
    for piece in text.split(list(pieces), dim=1):
        found = convention.step(piece, cache)
    return convention.step_outputs(found)[:, -1:]
