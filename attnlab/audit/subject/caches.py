"""The usual ways in which code decodes, tried out: a cache is what makes a beginning count.

Code is given its cache by a parameter (nothing at first, and then what a call gave back, or
something that it fills itself), or keeps it inside and is told where the new positions begin. A way
is kept if what was stepped through before moves what comes after; whether that is right is asked by
the property. Names only say what to try: a parameter that is ignored is no cache.

A cache is a list: what the code keeps, how many positions it has, and the module that keeps it,
which are made at the first step: some ask for the number of rows.
"""

import copy
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.repro.prelude import CACHES as CACHES
from attnlab.audit.repro.prelude import kept_in as kept_in
from attnlab.audit.subject.base import Subject, first_tensor
from attnlab.audit.subject.calls import evaluated

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
class Decoder:
    """How one module is stepped. `call(module, x, given)` is how the adapter calls it."""

    module: nn.Module
    call: Callable[..., Any]
    facts: Mapping[str, int | None]  # numbers that makers of caches ask for
    parameters: Mapping[str, inspect.Parameter]
    dtype: Callable[[], torch.dtype]
    word: str | None = None
    make: str = "None"  # a new cache, as an expression of `code`, `x` and `dtype`
    start: str | None = None
    counted: bool = False  # the start is a number, not the new positions
    flags: tuple[str, ...] = ()
    held: bool = False  # the module keeps it: every text has a copy of its own
    setup: str = ""  # likewise, by which that copy makes room
    method: str = ""  # takes one position; without one the module is called
    flat: bool = False  # that position as [b, …], without an axis of time

    def new_cache(self) -> list[Any]:
        return [None, 0, None]

    def _begin(self, cache: list[Any], x: Tensor) -> None:
        given = {"x": x, "dtype": self.dtype()}
        if not self.held:
            cache[0], cache[2] = evaluated(self.make, code=self.module, **given), self.module
            return
        module = copied(self.module) or self.module  # there may be only the one
        if self.setup:
            evaluated(self.setup, code=module, **given)
            module = module.to(self.dtype())
        cache[2] = module

    def step(self, x: Tensor, cache: list[Any]) -> Any:
        """What the code gives for new positions x [b, t, …]."""
        if self.method and x.shape[1] > 1:
            return torch.cat([self.step(one, cache) for one in x.split(1, dim=1)], dim=1)
        if cache[2] is None:
            self._begin(cache, x)
        given: dict[str, Any] = dict.fromkeys(self.flags, True)
        if self.word is not None:
            given[self.word] = cache[0]
        begun, count = cache[1], x.shape[1]
        if self.start is not None:
            given[self.start] = begun if self.counted else torch.arange(begun, begun + count)
        if self.method:
            found = getattr(cache[2], self.method)(x[:, 0] if self.flat else x, **given)
        else:
            found = self.call(cache[2], x, given)
        if self.word is not None:
            kept = kept_in(found, self.word)
            cache[0] = cache[0] if kept is None else kept
        cache[1] = begun + count
        return first_tensor(found).reshape(len(x), 1, -1) if self.method else found


def ways(
    module: nn.Module,
    call: Callable[..., Any],
    facts: Mapping[str, int | None],
    dtype: Callable[[], torch.dtype],
) -> Iterator[Decoder]:
    """Every way that the names allow, the likeliest first."""
    makers = [
        text
        for one in dir(type(module))
        if MAKERS.fullmatch(one) and (text := _called(getattr(module, one), f"code.{one}", facts))
    ]
    parameters = inspect.signature(module.forward).parameters
    yield from _told(Decoder(module, call, facts, parameters, dtype), makers)
    for method in (one for one in dir(type(module)) if STEPS.fullmatch(one)):
        parameters = inspect.signature(getattr(module, method)).parameters
        for flat in (False, True):
            decoder = Decoder(module, call, facts, parameters, dtype, method=method, flat=flat)
            yield from _told(decoder, makers)


def _told(common: Decoder, makers: Sequence[str]) -> Iterator[Decoder]:
    """By what it is told: a cache, where it begins, or neither."""
    takes = list(common.parameters)[1:]
    flags = tuple(one for one in takes if FLAGS.fullmatch(one))
    starts = [one for one in takes if STARTS.fullmatch(one)]
    words = [
        one
        for one in takes
        if CACHES.fullmatch(one) and one not in (*flags, *starts) and "mask" not in one
    ]
    if common.method and not words and len(takes) == 1 and not (flags or starts):
        words = takes  # what else would a step be given?
    common = _with(common, flags=flags)
    begins: list[tuple[str | None, bool]] = [
        (one, counted) for one in starts[:1] for counted in _counted(common.parameters[one])
    ] or [(None, False)]
    for word in words:
        for make, (start, counted) in itertools.product(
            _made(common, word, makers), [*begins, *([(None, False)] if starts else [])]
        ):
            yield _with(common, word=word, make=make, start=start, counted=counted)
    if starts or flags or makers or common.method:
        for setup, (start, counted) in itertools.product([*makers, ""], begins):
            yield _with(common, start=start, counted=counted, held=True, setup=setup)


def _with(decoder: Decoder, **changes: Any) -> Decoder:
    return Decoder(**{**vars(decoder), **changes})


def _counted(parameter: inspect.Parameter) -> tuple[bool, bool]:
    """Whether a start is a number: the likelier first."""
    said = parameter.annotation
    number = said is int or said == "int" or type(parameter.default) is int
    if said not in (Tensor, "Tensor", "torch.Tensor") and not number:
        number = any(part in parameter.name for part in NUMBERED)
    return number, not number


def _made(decoder: Decoder, word: str, makers: Sequence[str]) -> list[str]:
    """What may be given as a new cache."""
    layers = decoder.facts.get("layers") or 1
    kinds = [
        _called(kind, _place(kind, decoder.module), decoder.facts)
        for kind in _classes(decoder.parameters[word].annotation, decoder.module)
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


def _place(kind: type, module: nn.Module) -> str:
    """A class in words that also hold where the code's own file is loaded by another name."""
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


def _called(made: Callable[..., Any], name: str, facts: Mapping[str, Any]) -> str:
    """A call in words, of a maker of caches; empty if it needs something that is not known."""
    words = []
    try:
        parameters = inspect.signature(made).parameters
    except (TypeError, ValueError):
        return ""
    for one in parameters.values():
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            continue
        value = "dtype" if one.name == "dtype" else None
        if value is None and one.default is one.empty:
            value = _wanted(one.name, facts)
            if value is None:
                return ""
        if value is not None:
            words.append(value if one.kind is one.POSITIONAL_ONLY else f"{one.name}={value}")
    return f"{name}({', '.join(words)})"


def _wanted(name: str, facts: Mapping[str, Any]) -> str | None:
    if "batch" in name or name in ("b", "bs", "bsz", "rows"):
        return "len(x)"
    if name in facts:
        found = facts[name]
    elif "layer" in name:
        found = facts.get("layers")
    elif "dim" in name or "width" in name:
        found = facts.get("head_width")
    elif "head" in name:
        found = facts.get("kv_heads") or facts.get("heads")
    else:
        sizes = ("len", "seq", "max", "size", "window", "room", "capacity", "positions")
        found = facts.get("room") or ROOM if any(part in name for part in sizes) else None
    return None if found is None else repr(found)


def copied(module: nn.Module) -> nn.Module | None:
    try:
        return copy.deepcopy(module)
    except Exception:  # a person's code may hold anything
        return None


def settle(subject: Subject, tried: Iterator[Decoder], outputs: Callable[[Any], Tensor]) -> None:
    """Gives a subject the first way with which a beginning moves what follows.

    A method that is given one position with an axis of time, and one without, may take both, and
    compute nonsense with one of them: of these the one counts that is right, if any is.
    """
    subject.caches = False
    length, promised, doubtful = 4, None, None
    x = subject.draw(2, length, 0)
    other = torch.cat((subject.draw(2, length, 1)[:, : length - 1], x[:, length - 1 :]), dim=1)
    for decoder in tried:
        if promised is None and _promises(decoder):
            promised = decoder
        for pieces in ([length - 1, 1], [1] * length):  # some take single steps only
            try:
                with torch.no_grad():
                    ends = [_last(decoder, outputs, text, pieces) for text in (x, other)]
                    right = _near(ends[0], subject.run(x)[:, -1:])
            except (Exception, SystemExit):  # it decodes in another way, or not at all
                continue
            if ends[0].shape[1] < 1 or torch.equal(ends[0], ends[1]):
                break
            if right or not decoder.method:
                _use(subject, decoder, outputs)
                return
            doubtful = doubtful or decoder
            break
    known = doubtful or promised  # it says that it has one, and the first way is its own
    if known is not None:
        _use(subject, known, outputs)


def _near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, equal_nan=True)


def _promises(decoder: Decoder) -> bool:
    return decoder.word is not None and decoder.make.startswith(
        tuple(f"code.{one}(" for one in NEW_CACHE)
    )


def _last(
    decoder: Decoder, outputs: Callable[[Any], Tensor], text: Tensor, pieces: Sequence[int]
) -> Tensor:
    cache = decoder.new_cache()
    for piece in text.split(list(pieces), dim=1):
        found = decoder.step(piece, cache)
    return outputs(found)[:, -1:]


def _use(subject: Subject, decoder: Decoder, outputs: Callable[[Any], Tensor]) -> None:
    subject.caches = True
    subject.decoder = decoder  # type: ignore[attr-defined]
    subject.new_cache = decoder.new_cache  # type: ignore[method-assign]
    subject.step = lambda x, cache: outputs(decoder.step(x, cache))  # type: ignore[method-assign]


def stepped(found: Any, turned: bool) -> Tensor:
    """The outputs of a step, [b, t, e]."""
    out = first_tensor(found)
    return (out.transpose(0, 1) if turned else out).flatten(2)
