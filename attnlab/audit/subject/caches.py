"""Which protocol a module decodes by, found by experiment: a KV cache makes a beginning count.

Every way that names allow (`audit/subject/protocols.py`) is tried on short texts cut in three ways.
A way works if what was stepped through before moves what comes after, though the last inputs are
the same. The first way that gives the outputs of the whole text, however it is cut, is taken: code
that is right by one protocol was only called wrongly by the others. Where none is right throughout:

| the best way | what is said of it |
|---|---|
| is right for one cut, wrong for another | it is examined: the code is understood, and wrong |
| is wrong for all, and nothing was left untold | it is examined, and fails |
| is wrong for all, and a parameter about positions was never given | cannot tell |

So code is not called wrong for what its caller should have told it, and a parameter that is ignored
is no cache. Where the code has a method that makes a new cache, such as new_cache, and that cache
matters, only ways with it count: a cache of ours might hide what is wrong with it.
"""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.audit.errors import SubjectError
from attnlab.audit.repro.prelude import CACHES as CACHES
from attnlab.audit.subject.base import build_subject
from attnlab.audit.subject.convention import Convention
from attnlab.audit.subject.decoder import Decoder, Text
from attnlab.audit.subject.makers import Place, methods_of, sure_makers
from attnlab.audit.subject.protocols import STARTS as STARTS

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
RIGHT, PARTLY, WRONG, IDLE = 3, 2, 1, 0  # what a way gives; idle: the cache does not matter


def decoders(module: nn.Module, sizes: Mapping[str, int | None]) -> Iterator[Decoder]:
    """Every way that the names allow, the likeliest first."""
    protocols = [registry.load("protocol", one.name)() for one in registry.options("protocol")]
    for place in _places(module, sizes):
        for protocol in protocols:
            yield from protocol.ways(place)


def _places(module: nn.Module, sizes: Mapping[str, int | None]) -> Iterator[Place]:
    yield Place(module, sizes, inspect.signature(module.forward).parameters)
    for method in (one for one in methods_of(module) if STEPS.fullmatch(one)):
        try:
            parameters = inspect.signature(getattr(module, method)).parameters
        except (TypeError, ValueError):  # built-in code may not say what it takes
            continue
        yield from (Place(module, sizes, parameters, method, flat) for flat in (False, True))


def find_decoder(convention: Convention) -> Decoder | None:
    """The first way that is right, or else the best one; None if a cache matters in none."""
    assert convention.module is not None
    try:
        trial = Trial.of(convention)
    except (SubjectError, SystemExit):  # it takes no text as short as this
        return None
    own = sure_makers(convention.module, convention.cache_sizes)
    every = list(decoders(convention.module, convention.cache_sizes))
    every.sort(key=lambda one: not (one.words and one.make in own))
    best, rank, tried = None, IDLE, []
    for decoder in every:
        sure = bool(decoder.words) and decoder.make in own
        if best is not None and best.make in own and not sure:
            break  # it says how a cache is made, and what it makes matters
        tried.append((decoder, trial.rank(decoder)))
        if tried[-1][1] == RIGHT:
            return decoder
        if (tried[-1][1] or IDLE) > rank:
            best, rank = decoder, tried[-1][1] or IDLE
    if best is None:
        promised = [(found is None, n) for n, (one, found) in enumerate(tried) if one.make in own]
        return tried[min(promised)[1]][0] if promised else None
    untold = _untold(convention, [one for one, found in tried if found is not None])
    if rank == WRONG and untold:
        names = ", ".join(dict.fromkeys(one.protocol.name for one, found in tried if found))
        doubt = f"no known protocol gives the outputs of the whole text (tried: {names}), and it "
        doubt += f"is not known what {' or '.join(f'`{one}`' for one in untold[:3])} should be told"
        best = replace(best, doubt=f"{doubt}; give a Subject with new_cache and step")
    return best


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

    def rank(self, decoder: Decoder) -> int | None:
        """How right a way is; None if the code refuses it."""
        seen = [one for cut in CUTS if (one := self._rank(decoder, cut)) is not None]
        if not seen:
            return None
        if all(one == RIGHT for one in seen):
            return RIGHT
        works = any(one == RIGHT for one in seen)
        return PARTLY if works else max(seen)

    def _rank(self, decoder: Decoder, cut: Sequence[int]) -> int | None:
        """Of one way to cut the text."""
        convention = replace(self.convention, decoder=decoder)
        try:
            with torch.no_grad():
                right, last = self._steps(convention, cut)
                moved = not torch.equal(last, self._end(convention, cut, self.other, self.text))
                if moved and not right and decoder.protocol.whole:
                    # only code that reads no more than the end of the text is meant to be given all
                    near = self._end(convention, cut, self.text, self.other)
                    moved = _close(near, last)
        except (SubjectError, SystemExit):  # it decodes in another way, or not at all
            return None
        if not moved:
            return IDLE
        return RIGHT if right else WRONG

    def _steps(self, convention: Convention, cut: Sequence[int]) -> tuple[bool, Tensor]:
        """Whether every step gives the outputs of the whole text, and the last of them."""
        assert convention.decoder is not None
        cache, end, right = convention.decoder.new_cache(), 0, True
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
