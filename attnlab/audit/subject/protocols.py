"""The protocols by which code and its caller share a KV cache, one small class each.

A protocol names ways to step a module (`ways`), by the names of its parameters and methods. Names
only say what to try: which way is taken is found by experiment (`audit/subject/caches.py`). Each
class is a row under "protocol" in `attnlab/registry.py`, and `attnlab list caches` shows them.
"""

import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from attnlab.audit.repro.prelude import CACHES
from attnlab.audit.subject.decoder import Decoder, Protocol
from attnlab.audit.subject.makers import (
    Place,
    class_caches,
    makers_of,
    own_caches,
    plain_caches,
    states,
    tables,
)

FLAGS = re.compile(
    r"(use|return|with|output|need)_(\w+_)?(cache|past|kv|present|state)s?"
    r"|return_(intermediates|hiddens)"
)
STARTS = re.compile(
    r"start(_pos|_position|_index)?|(input|cache|cur|current)_pos(ition)?s?|past_len(gth)?"
    r"|((pos|position|past|seq)_)?offset|pos"
)
ENDS = re.compile(r"input_pos_maxp1|end_pos(ition)?")
PLACES = ("position_ids", "positions")
STATES = re.compile(r"(conv|ssm|rnn|recurrent|init(ial)?|prev(ious)?)_states?|hx|h0|carry")
SMALL_STATES = re.compile(r"h|hidden|memory|(hidden|last)_states?")  # of a method, not of `forward`
NUMBERED = ("start", "offset", "len", "cur")  # parts of names for a number, not for positions


def cache_words(place: Place) -> list[tuple[str, ...]]:
    """Parameters that may take a cache, one by one; two of them also as its two parts."""
    takes = [
        one
        for one in place.takes
        if type(place.parameters[one].default) is not bool
        and not any(known.fullmatch(one) for known in (FLAGS, STARTS, ENDS))
        and "mask" not in one
    ]
    patterns = (CACHES, STATES, SMALL_STATES) if place.method else (CACHES, STATES)
    names = [one for one in takes if any(known.fullmatch(one) for known in patterns)]
    if place.method and not names and len(takes) == len(place.takes) == 1:
        names = takes  # what else would a step be given?
    return [*((one,) for one in names), *([tuple(names)] if len(names) == 2 else [])]


def ways_told(place: Place) -> list[dict[str, Any]]:
    """Where the new positions begin, in every way that it can be told; the likeliest first."""
    takes = place.takes
    starts = [one for one in takes if STARTS.fullmatch(one)][:1]
    ends = [one for one in takes if ENDS.fullmatch(one)][:1]
    told: list[dict[str, Any]] = [
        {"start": one, "counted": counted, **more}
        for one in starts
        for counted in _start_kinds(place.parameters[one])
        for more in [*({"end": end} for end in ends), {}]
    ]
    plain = [*told, {}]
    places = [one for one in takes if one in PLACES][:1]
    return plain + [{**one, "places": name} for name in places for one in reversed(plain)]


def _start_kinds(parameter: inspect.Parameter) -> tuple[bool, bool]:
    """Whether a start is a number: the likelier first."""
    said = parameter.annotation
    number = said is int or said == "int" or type(parameter.default) is int
    if said not in (Tensor, "Tensor", "torch.Tensor") and not number:
        number = any(part in parameter.name for part in NUMBERED)
    return number, not number


def flags_of(place: Place) -> tuple[str, ...]:
    return tuple(one for one in place.takes if FLAGS.fullmatch(one))


@dataclass(frozen=True)
class Given(Protocol):
    """A parameter takes the cache."""

    def ways(self, place: Place) -> Iterator[Decoder]:
        for words in cache_words(place):
            yield from self._decoders(place, words, self.makes(place, words))

    def makes(self, place: Place, words: Sequence[str]) -> Iterable[str]:
        """What may be given as a new cache."""
        raise NotImplementedError

    def told(self, place: Place) -> list[dict[str, Any]]:
        return ways_told(place)

    def _decoders(
        self, place: Place, words: tuple[str, ...], makes: Iterable[str]
    ) -> Iterator[Decoder]:
        for make, told in itertools.product(makes, self.told(place)):
            yield Decoder(
                protocol=self,
                words=words,
                make=make,
                flags=flags_of(place),
                method=place.method,
                flat=place.flat,
                **told,
            )


@dataclass(frozen=True)
class Returned(Given):
    """The call gives the cache back, and the next call takes it.

    Recognised: a parameter such as past_key_values or cache; what is returned holds a tuple, a
      dictionary, an object or a field of such a name.
    Stepped: at first None, or what a method such as new_cache makes; then what the last call gave.
      New positions only.
    """

    name = "returned"
    returns = True

    def makes(self, place: Place, words: Sequence[str]) -> Iterable[str]:
        if len(words) > 1:
            return [*own_caches(place), "(None, None)"]
        return [
            *own_caches(place),
            "None",
            *class_caches(place, words[0]),
            *plain_caches(place),
            *(tables(place) if any(told for told in ways_told(place)) else []),
        ]


@dataclass(frozen=True)
class Filled(Given):
    """The caller makes an object, and the code writes keys and values into it.

    Recognised: a parameter such as cache, and a method such as new_cache, a class that the
      parameter is said to be of, or code that fills an empty dictionary or list.
    Stepped: the same object with every call. New positions only.
    """

    name = "filled"

    def makes(self, place: Place, words: Sequence[str]) -> Iterable[str]:
        if len(words) > 1:
            return own_caches(place)
        return [*own_caches(place), *class_caches(place, words[0]), *plain_caches(place)]


@dataclass(frozen=True)
class Static(Given):
    """The caller makes tables with room for every position, and tells where to write.

    Recognised: a parameter for the cache, or one for keys and one for values, and one such as
      cache_position, input_pos or start_pos.
    Stepped: tables of 0, written in place; the new positions are told.
    """

    name = "static"

    def makes(self, place: Place, words: Sequence[str]) -> Iterable[str]:
        return tables(place)

    def told(self, place: Place) -> list[dict[str, Any]]:
        return [one for one in ways_told(place) if one]


@dataclass(frozen=True)
class CacheObject(Given):
    """The caller makes a DynamicCache of transformers, which the code updates.

    Recognised: a parameter for the cache, and code that calls `update` of it, as attention layers
      of transformers do.
    Stepped: the same object with every call. New positions only.
    """

    name = "transformers"

    def ways(self, place: Place) -> Iterator[Decoder]:
        if any(".update(" in _source(one) for one in {type(m) for m in place.module.modules()}):
            yield from super().ways(place)

    def makes(self, place: Place, words: Sequence[str]) -> Iterable[str]:
        made = ["__import__('transformers').DynamicCache()"]
        if hasattr(place.module, "config"):
            room = place.sizes.get("room") or 128
            static = f"StaticCache(config=code.config, max_cache_len={room})"
            made += [f"__import__('transformers').{static}"]
        return made if len(words) == 1 else []


def _source(kind: type) -> str:
    with suppress(OSError, TypeError):  # of code without a file
        if not kind.__module__.startswith("torch."):
            return inspect.getsource(kind)
    return ""


@dataclass(frozen=True)
class States(Given):
    """The caller makes the states of a convolution and a recurrence, for every layer.

    Recognised: a method such as step, or forward, with a parameter such as caches, state or
      conv_state and ssm_state, in code with an nn.Conv1d.
    Stepped: zeros (or None) at first; then what the last call gave.
    """

    name = "states"
    returns = True

    def makes(self, place: Place, words: Sequence[str]) -> Iterable[str]:
        return states(place)


@dataclass(frozen=True)
class WholeText(Given):
    """The code takes the text from its start on, with its cache, and computes what is new.

    Recognised: a parameter for the cache; with it, only the end of the text is read.
    Stepped: the first piece, then the whole text, longer by one position with every call, and what
      the last call gave. Outputs are those of all positions or of the last.
    """

    name = "whole-text"
    whole = True
    returns = True

    def ways(self, place: Place) -> Iterator[Decoder]:
        if not place.method:
            yield from super().ways(place)

    def makes(self, place: Place, words: Sequence[str]) -> Iterable[str]:
        if len(words) > 1:
            return []
        return [*own_caches(place), "None", *class_caches(place, words[0])]

    def told(self, place: Place) -> list[dict[str, Any]]:
        return [{}]


@dataclass(frozen=True)
class Held(Protocol):
    """The module keeps the cache.

    Recognised: a parameter such as start_pos or use_cache, or a method such as step that takes a
      position and no cache.
    Stepped: in a copy of the module. New positions only; they are told where there is a parameter
      for it. A second text comes in the same copy: after a method such as reset_cache where there
      is one, else from position 0 on where positions are told.
    """

    name = "held"
    copies = True

    def ways(self, place: Place) -> Iterator[Decoder]:
        told = ways_told(place)
        starts = [one for one in told if "start" in one]
        if starts or flags_of(place) or place.method or makers_of(place.module, place.sizes):
            for setup, one in itertools.product(self.setups(place), starts or told):
                yield self._decoder(place, setup, one)

    def setups(self, place: Place) -> list[str]:
        return [""]

    def _decoder(self, place: Place, setup: str, told: dict[str, Any]) -> Decoder:
        return Decoder(
            protocol=self,
            setup=setup,
            flags=flags_of(place),
            method=place.method,
            flat=place.flat,
            **told,
        )


@dataclass(frozen=True)
class SetUp(Held):
    """The module keeps the cache, in room that a method makes beforehand.

    Recognised: a method such as set_kv_cache or setup_caches, and a parameter such as input_pos.
    Stepped: in a copy of the module, in which that method is called for the rows of a text. New
      positions only; they are told. A second text comes in the same copy, after a method such as
      reset_cache, or after the same method again.
    """

    name = "set-up"

    def setups(self, place: Place) -> list[str]:
        return list(makers_of(place.module, place.sizes).values())


@dataclass(frozen=True)
class WithRoom:
    """A module that cannot be called before room is made: every call is one of a new text."""

    module: nn.Module
    decoder: Decoder

    def __call__(self, *inputs: Tensor, **more: Any) -> object:
        text, weights = self.decoder.new_cache(), next(self.module.parameters())
        self.decoder.begin(text, inputs[0], self.module, weights.dtype)
        assert text.module is not None
        return text.module(*inputs, **{**more, **self.decoder.given(text, inputs[0])})


def ways_with_room(place: Place) -> Iterator[WithRoom]:
    """Such calls; the new positions are told, and so are those of a whole text."""
    for decoder in SetUp().ways(place):
        if decoder.start is not None and not decoder.counted:
            yield WithRoom(place.module, decoder)
