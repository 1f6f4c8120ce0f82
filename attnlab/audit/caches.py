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
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.subject import Subject, first_tensor

NEW_CACHE = ("new_cache", "make_cache", "init_cache", "empty_cache")
MAKERS = re.compile(r"(new|make|init|empty|create|setup|allocate|build)_(\w+_)?(cache|state)s?")
CACHES = re.compile(r"(\w+_)?(past|caches?|kv|presents?)(_\w+)?|states?|mems|inference_params")
FLAGS = re.compile(r"(use|return|with|output|need)_(\w+_)?(cache|past|kv|present|state)s?")
STARTS = re.compile(
    r"start(_pos|_position|_index)?|(input|cache|cur|current)_pos(ition)?s?|past_len(gth)?"
    r"|((pos|position|past|seq)_)?offset|pos"
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
    make: Callable[[int], Any] = field(default=lambda rows: None)  # of so many rows
    start: str | None = None
    counted: bool = False  # the start is a number, not the new positions
    flags: tuple[str, ...] = ()
    held: bool = False  # the module keeps it: every text has a copy of its own
    setup: str | None = None  # a method of that copy that makes room

    def new_cache(self) -> list[Any]:
        return [None, 0, None]

    def _begin(self, cache: list[Any], rows: int) -> None:
        if not self.held:
            cache[0], cache[2] = self.make(rows), self.module
            return
        try:
            module = copy.deepcopy(self.module)
        except Exception:  # there is only the one, then
            module = self.module
        if self.setup is not None:
            made = getattr(module, self.setup)
            made(**arguments(made, rows, self.facts, self.dtype()))
            module = module.to(self.dtype())
        cache[2] = module

    def step(self, x: Tensor, cache: list[Any]) -> Any:
        """What the code gives for new positions x [b, t, …]."""
        if cache[2] is None:
            self._begin(cache, len(x))
        given: dict[str, Any] = dict.fromkeys(self.flags, True)
        if self.word is not None:
            given[self.word] = cache[0]
        begun, count = cache[1], x.shape[1]
        if self.start is not None:
            given[self.start] = begun if self.counted else torch.arange(begun, begun + count)
        found = self.call(cache[2], x, given)
        if self.word is not None:
            kept = kept_in(found, self.word)
            cache[0] = cache[0] if kept is None else kept
        cache[1] = begun + count
        return found


def ways(
    module: nn.Module,
    call: Callable[..., Any],
    facts: Mapping[str, int | None],
    dtype: Callable[[], torch.dtype],
) -> Iterator[Decoder]:
    """Every way that the names allow, the likeliest first."""
    parameters = inspect.signature(module.forward).parameters
    takes = list(parameters)[1:]
    flags = tuple(one for one in takes if FLAGS.fullmatch(one))
    starts = [one for one in takes if STARTS.fullmatch(one)]
    words = [
        one
        for one in takes
        if CACHES.fullmatch(one) and one not in (*flags, *starts) and "mask" not in one
    ]
    common = Decoder(module, call, facts, parameters, dtype, flags=flags)
    begins: list[tuple[str | None, bool]] = [
        (one, counted) for one in starts[:1] for counted in _counted(parameters[one])
    ] or [(None, False)]
    makers = [one for one in dir(type(module)) if MAKERS.fullmatch(one)]
    for word in words:
        for make, (start, counted) in itertools.product(
            _made(common, word, makers), [*begins, *([(None, False)] if starts else [])]
        ):
            yield _with(common, word=word, make=make, start=start, counted=counted)
    if starts or flags or makers:
        for setup, (start, counted) in itertools.product([*makers, None], begins):
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


def _made(decoder: Decoder, word: str, makers: Sequence[str]) -> list[Callable[[int], Any]]:
    """What may be given as a new cache."""

    def by(made: Callable[..., Any]) -> Callable[[int], Any]:
        return lambda rows: made(**arguments(made, rows, decoder.facts, decoder.dtype()))

    layers = decoder.facts.get("layers") or 1
    kinds = _classes(decoder.parameters[word].annotation, decoder.module)
    return [
        *(by(getattr(decoder.module, name)) for name in makers),
        lambda rows: None,
        *(by(kind) for kind in kinds),
        lambda rows: {},
        lambda rows: [],
        lambda rows: [None] * layers,
        lambda rows: [{} for _ in range(layers)],
    ]


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


def arguments(
    made: Callable[..., Any], rows: int, facts: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Any]:
    """What a maker of caches needs, by name; what is not known is a reason to try another way."""
    given: dict[str, Any] = {}
    for name, one in inspect.signature(made).parameters.items():
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            continue
        if name == "dtype":
            given[name] = dtype
        elif one.default is one.empty:
            value = _wanted(name, rows, facts)
            if value is None:
                raise ValueError(f"a cache needs {name}, which is not known")
            given[name] = value
    return given


def _wanted(name: str, rows: int, facts: Mapping[str, Any]) -> Any:
    if name in facts:
        return facts[name]
    if "batch" in name or name in ("b", "bs", "bsz", "rows"):
        return rows
    if "layer" in name:
        return facts.get("layers")
    if "dim" in name or "width" in name:
        return facts.get("head_width")
    if "head" in name:
        return facts.get("kv_heads") or facts.get("heads")
    sizes = ("len", "seq", "max", "size", "window", "room", "capacity", "positions")
    return facts.get("room") or ROOM if any(part in name for part in sizes) else None


def kept_in(found: Any, word: str) -> Any:
    """The cache among what a call gave: by its name, or the first member that is no tensor.

    A tensor is taken only where it is alone beside the outputs: others are weights.
    """
    if isinstance(found, Tensor) or found is None:
        return None
    if not isinstance(found, tuple | list) or hasattr(found, "_fields"):
        holder = found if isinstance(found, dict) else getattr(found, "__dict__", {})
        if hasattr(found, "_asdict"):
            holder = found._asdict()
        names = [word, *(one for one in holder if one != word and CACHES.fullmatch(str(one)))]
        return next((holder[one] for one in names if holder.get(one) is not None), None)
    rest = [one for one in found[1:] if one is not None]
    others = [one for one in rest if not isinstance(one, Tensor)]
    if others:
        return others[0]
    return rest[0] if len(rest) == 1 else None


def settle(subject: Subject, tried: Iterator[Decoder], outputs: Callable[[Any], Tensor]) -> None:
    """Gives a subject the first way with which a beginning moves what follows."""
    subject.caches = False
    length, promised = 4, None
    x = subject.draw(2, length, 0)
    other = torch.cat((subject.draw(2, length, 1)[:, : length - 1], x[:, length - 1 :]), dim=1)
    for decoder in tried:
        if decoder.word is not None and promised is None and _promises(decoder.module):
            promised = decoder
        for pieces in ([length - 1, 1], [1] * length):  # some take single steps only
            try:
                with torch.no_grad():
                    ends = [_last(decoder, outputs, text, pieces) for text in (x, other)]
            except (Exception, SystemExit):  # it decodes in another way, or not at all
                continue
            if ends[0].shape[1] >= 1 and not torch.equal(ends[0], ends[1]):
                _use(subject, decoder, outputs)
                return
            break
    if promised is not None:  # it says that it has one, and the first way is its own
        _use(subject, promised, outputs)


def _promises(module: nn.Module) -> bool:
    return any(callable(getattr(module, one, None)) for one in NEW_CACHE)


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
