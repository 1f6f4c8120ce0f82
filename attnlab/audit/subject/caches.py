"""Which protocol a module decodes by, found by experiment: a KV cache makes a beginning count.

Every way that names allow (`audit/subject/protocols.py`) is tried on a short text, cut in three.
A way works if what was stepped through before moves what comes after, though the last inputs are
the same. The first way that gives the outputs of the whole text, however it is cut, is taken: code
that is right by one protocol was only called wrongly by the others. If there is none:

| there is a way that | what is said of it |
|---|---|
| is right for all cuts that it takes, and no other is wrong for one that it refuses | it is taken |
| is right for one cut, wrong for another | it is taken: the code is understood, and will fail |
| is wrong for all, and nothing was left untold | it is taken, and the code will fail |
| is wrong for all, and a parameter about positions was never given | cannot tell |

So code is not called wrong for what its caller should have told it, and a parameter that is ignored
is no cache. Where the code has a method that makes a new cache, such as new_cache, and that cache
matters, only ways with it count: a cache of ours might hide what is wrong with it. Calls of the
module come first; a method that takes one position counts where they have no cache.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.audit.errors import SubjectError
from attnlab.audit.repro.prelude import CACHES as CACHES
from attnlab.audit.signature import signature
from attnlab.audit.subject.base import build_subject
from attnlab.audit.subject.convention import Convention
from attnlab.audit.subject.decoder import Decoder, Text
from attnlab.audit.subject.makers import Place, methods_of, resets_of, sure_makers
from attnlab.audit.subject.protocols import STARTS as STARTS
from attnlab.audit.subject.protocols import ways_with_room

STEPS = re.compile(  # methods that take one position at a time
    r"(forward_)?(step|recurrent)|decode|(step|decode|forward)_(one|single|token|step)"
    r"|(decoding|inference|recurrent|incremental|generate)_(step|token|forward)"
)
# parameters by which a caller says where the new positions are
HINTS = re.compile(
    r"(\w+_)?(pos|positions?|offsets?|rope|rotary|freqs?|cos|sin|lens?|lengths?)(_\w+)?"
)
LENGTH = 4
CUTS = ((3, 1), (1, 1, 1, 1), (2, 2))  # some code takes single steps only, some a first piece
KEPT = "the module keeps its cache, and how it is emptied for a second text is not known"
Outcome = Literal["right", "wrong", "idle", "refused"]  # idle: the cache does not matter


def _places(module: nn.Module, sizes: Mapping[str, int | None]) -> Iterator[list[Place]]:
    """The module, and its methods that take one position: with an axis of time, and without."""
    yield [Place(module, sizes, signature(module.forward).parameters)]
    for method in (one for one in methods_of(module) if STEPS.fullmatch(one)):
        try:
            parameters = signature(getattr(module, method)).parameters
        except (TypeError, ValueError):  # built-in code may not say what it takes
            continue
        yield [Place(module, sizes, parameters, method, flat) for flat in (False, True)]


def with_room(convention: Convention) -> Iterator[Convention]:
    """For code that cannot be called before a method such as setup_caches made room."""
    assert convention.module is not None
    for (place,) in itertools.islice(_places(convention.module, convention.cache_sizes), 1):
        for code in ways_with_room(place):
            constants = {k: v for k, v in convention.constants.items() if k != code.decoder.start}
            yield replace(convention, code=code, constants=constants)


def find_decoder(convention: Convention) -> Decoder | None:
    """The first way that is right, or else the best one; None if a cache matters in none."""
    assert convention.module is not None
    try:
        trial = Trial.of(convention)
    except (SubjectError, SystemExit):  # it takes no text as short as this
        return None
    protocols = [registry.load("protocol", one.name)() for one in registry.options("protocol")]
    own = sure_makers(convention.module, convention.cache_sizes)
    last: Decoder | None = None
    for flat_or_not in _places(convention.module, convention.cache_sizes):
        ways = [way for one in flat_or_not for every in protocols for way in every.ways(one)]
        ways.sort(key=lambda one: not (one.words and one.make in own))
        found = _choose(trial, ways, own)
        if found is not None and not found.doubt:
            return begin_anew(trial, found)
        last = last or found
    return last


def begin_anew(trial: "Trial", decoder: Decoder) -> Decoder:
    """Of a module that keeps its cache: what its caller does before a second text.

    A method such as reset_cache is called where there is one, else the method that made room; code
    that is told positions is told that they begin at 0. The first way by which the second text is
    right is taken. If there is none, the code is understood, and will fail.
    """
    if not decoder.protocol.copies:
        return decoder
    assert trial.convention.module is not None
    resets = resets_of(trial.convention.module, trial.convention.cache_sizes)
    room = [(decoder.setup,)] if decoder.setup else []
    ways: list[tuple[str, ...]] = [(*one, *more) for one in _each(resets) for more in [(), *room]]
    told = any(one is not None for one in (decoder.start, decoder.end, decoder.places))
    if not ways:
        ways = [*room, *([()] if told else [])]
    if not ways:
        return replace(decoder, unsure=KEPT)
    tried = [(one, trial.second(replace(decoder, renew=one))) for one in ways]
    for wanted in ({"right"}, {"right", "wrong"}):
        for renew, found in tried:
            if found and found <= wanted:
                return replace(decoder, renew=renew)
    return replace(decoder, unsure=f"{KEPT}: `{ways[0][0]}` is no such call, or raises")


def _each(resets: Sequence[str]) -> list[tuple[str, ...]]:
    """One by one, and all of them."""
    return [*((one,) for one in resets), *([tuple(resets)] if len(resets) > 1 else [])]


def _choose(trial: "Trial", ways: Sequence[Decoder], own: Sequence[str]) -> Decoder | None:
    """Of the ways to call one method."""
    tried: list[tuple[Decoder, list[Outcome]]] = []
    for decoder in ways:
        sure = bool(decoder.words) and decoder.make in own
        if not sure and any(_works(found) and one.make in own for one, found in tried):
            break  # it says how a cache is made, and what it makes matters
        tried.append((decoder, trial.outcomes(decoder)))
        if set(tried[-1][1]) == {"right"}:
            untold = replace(decoder, start=None, end=None, places=None, counted=False)
            needed = any(one == untold and "wrong" in found for one, found in tried[:-1])
            return replace(decoder, needed=needed)
    working = [(one, found) for one, found in tried if _works(found)]
    if not working:
        promised = [one for one in tried if one[0].words and one[0].make in own]
        promised.sort(key=lambda one: set(one[1]) == {"refused"})
        return promised[0][0] if promised else None
    partly = [(one, found) for one, found in working if not {"right", "refused"} >= set(found)]
    partly = [(one, found) for one, found in partly if "right" in found]
    for decoder, found in working:
        others = [pair for _, other in partly for pair in zip(found, other, strict=True)]
        if set(found) == {"right", "refused"} and ("refused", "wrong") not in others:
            return decoder
    if partly:
        return partly[0][0]
    return replace(working[0][0], doubt=_doubt(trial.convention, tried))


def _works(found: Sequence[Outcome]) -> bool:
    return "right" in found or "wrong" in found


def _doubt(convention: Convention, tried: Sequence[tuple[Decoder, list[Outcome]]]) -> str:
    """Why code that is wrong in every way may be called wrongly; empty if it cannot be."""
    untold = _untold(convention, [one for one, found in tried if set(found) != {"refused"}])
    if not untold:
        return ""
    names = ", ".join(dict.fromkeys(one.protocol.name for one, found in tried if _works(found)))
    return (
        f"no known protocol gives the outputs of the whole text (tried: {names}), and it is not "
        f"known what {' or '.join(f'`{one}`' for one in untold[:3])} should be told; give a "
        "Subject with new_cache and step"
    )


def _untold(convention: Convention, tried: Sequence[Decoder]) -> list[str]:
    """Parameters about positions that the code was never given."""
    mask = () if convention.mask is None else (convention.mask.name,)
    given = {*convention.constants, *convention.contexts, *convention.switches, *mask}
    for one in tried:
        given |= {*one.words, *one.flags, one.start or "", one.end or "", one.places or ""}
    return [one for one in convention.parameters[1:] if HINTS.fullmatch(one) and one not in given]


@dataclass(frozen=True)
class Trial:
    """A text with its outputs, and another text, whose cache must matter to the first."""

    convention: Convention
    text: Tensor
    other: Tensor
    whole: Tensor  # outputs of the text

    @classmethod
    def of(cls, convention: Convention) -> "Trial":
        subject = build_subject(convention)
        text, other = (subject.draw(2, LENGTH, seed) for seed in (0, 1))
        with torch.no_grad():
            return cls(convention, text, other, subject.run(text))

    def outcomes(self, decoder: Decoder) -> list[Outcome]:
        """Of one way to decode, for every way to cut the text."""
        return [self._outcome(decoder, cut) for cut in CUTS]

    def second(self, decoder: Decoder) -> set[Outcome]:
        """Of the text after the other one in the same module, for cuts that the code takes."""
        convention, found = replace(self.convention, decoder=decoder), set[Outcome]()
        for cut in CUTS:
            cache = decoder.new_cache()
            try:
                with torch.no_grad():
                    for piece in self.other.split(list(cut), dim=1):
                        convention.step(piece, cache)
            except (SubjectError, SystemExit):
                continue
            try:
                with torch.no_grad():
                    right, _ = self._steps(convention, cut, decoder.new_cache(cache))
            except (SubjectError, SystemExit):
                found.add("refused")
            else:
                found.add("right" if right else "wrong")
        return found

    def _outcome(self, decoder: Decoder, cut: Sequence[int]) -> Outcome:
        convention = replace(self.convention, decoder=decoder)
        try:
            with torch.no_grad():
                right, last = self._steps(convention, cut)
                moved = not torch.equal(last, self._end(convention, cut, self.other, self.text))
                if moved and decoder.protocol.whole:
                    # only code that reads no more than the end of the text is meant to be given all
                    near = self._end(convention, cut, self.text, self.other)
                    moved = _close(near, last)
        except (SubjectError, SystemExit):  # it decodes in another way, or not at all
            return "refused"
        if not moved:
            return "idle"
        return "right" if right else "wrong"

    def _steps(
        self, convention: Convention, cut: Sequence[int], cache: Text | None = None
    ) -> tuple[bool, Tensor]:
        """Whether every step gives the outputs of the whole text, and the last of them."""
        assert convention.decoder is not None
        cache, end, right = cache or convention.decoder.new_cache(), 0, True
        for piece in self.text.split(list(cut), dim=1):
            end += piece.shape[1]
            found = convention.step(piece, cache)[:, -piece.shape[1] :]
            if found.dtype is not self.whole.dtype or not found.shape[1]:
                raise SubjectError(f"a step gave {list(found.shape)} of {found.dtype}")
            right = right and _close(found, self.whole[:, end - found.shape[1] : end])
        return right, found[:, -1:]

    def _end(
        self, convention: Convention, cut: Sequence[int], before: Tensor, text: Tensor
    ) -> Tensor:
        """The last output with the cache of another beginning and, where it is given, a text."""
        assert convention.decoder is not None
        cache: Text = convention.decoder.new_cache()
        for piece in before.split(list(cut), dim=1)[:-1]:
            convention.step(piece, cache)
        if cache.inputs is not None:
            cache.inputs = text[:, : cache.seen]
        return convention.step(self.text[:, -cut[-1] :], cache)[:, -1:]


def _close(one: Tensor, other: Tensor) -> bool:
    """Each within a part of its own size, or of rounding."""
    if one.shape != other.shape:
        return False
    small = 1e-6 * float(other.abs().nan_to_num(posinf=0).max())
    return torch.allclose(one, other, rtol=1e-4, atol=small, equal_nan=True)
