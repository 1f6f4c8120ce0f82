"""KV cache: decoding in pieces of any size gives the outputs of the whole text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from attnlab.audit.contract import Finding, Verdict
from attnlab.audit.errors import LONGEST, SubjectError
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import CannotTell, Result, Tool, amount, movement

# past blocks of 32 and 64, a single step at each edge
LONGEST_BEGINNING = [124, 1, 1, 1, 1]  # where keys are dropped that the whole text has
LONG = [31, 1, 1, 1, 29, 1, 1, 1, 1]
STEPS, CHUNKS, AFTER = "single steps", "chunks on a warm cache", "a second text"
AGAINST = "chunks against single steps"
AFTER_BEGINNING = "single steps after a beginning"


def fails(
    run: Tool,
    draw: Tool,
    step: Tool,
    new_cache: Callable[..., Any],
    *,
    batch: int,
    pieces: list[int],
    warm: bool,
    seed: int,
    tolerance: float,
) -> Result:
    """Decode a text in pieces, after another text if warm: the outputs are those of the whole."""
    x, worst, before = draw(batch, sum(pieces), seed), 0.0, None
    whole = run(x)
    if warm:
        other, before = draw(batch, sum(pieces), seed + 100), new_cache()
        for piece in other.split(pieces, dim=1):
            step(piece, before)
    cache, end = new_cache(before), 0
    for piece in x.split(pieces, dim=1):
        end += piece.shape[1]
        found = step(piece, cache)[:, -piece.shape[1] :]  # some give the last one only
        change = movement(found, whole[:, end - found.shape[1] : end]).amax(0)
        worst = max(worst, float(change.max()))
        if worst > tolerance:
            at = int((change > tolerance).nonzero()[0])
            place, size = end - found.shape[1] + at, float(change[at])
            name = "a second text" if warm else "the text"
            seen = f"differs by {amount(size)} at position {place} from the whole"
            return True, f"{name} in pieces of {shorten(pieces)} {seen}", size
    return False, f"in pieces of {pieces} the outputs are those of the whole text", worst


def chunks_fail(
    run: Tool,
    draw: Tool,
    step: Tool,
    new_cache: Callable[[], Any],
    *,
    batch: int,
    pieces: list[int],
    seed: int,
    tolerance: float,
) -> Result:
    """Decode a text in pieces, and in single steps: where a piece has several positions, its
    outputs are those of the steps, or else those of the whole text."""
    x, cache, singles = draw(batch, sum(pieces), seed), new_cache(), new_cache()
    whole, end, worst = run(x), 0, 0.0
    for piece in x.split(pieces, dim=1):
        begin, end = end, end + piece.shape[1]
        found = step(piece, cache)[:, -piece.shape[1] :]
        one = torch.cat([step(single, singles)[:, -1:] for single in piece.split(1, dim=1)], dim=1)
        change = torch.minimum(
            movement(found, one[:, -found.shape[1] :]).amax(0),
            movement(found, whole[:, end - found.shape[1] : end]).amax(0),
        )
        if begin == 0 or end - begin == 1:  # a beginning, or a single step itself
            continue
        worst = max(worst, float(change.max()))
        if worst > tolerance:
            at = int((change > tolerance).nonzero()[0])
            place, size = end - found.shape[1] + at, float(change[at])
            text = f"the text in pieces of {shorten(pieces)} differs by {amount(size)} at position"
            return True, f"{text} {place} from single steps, and from the whole", size
    return False, f"in pieces of {shorten(pieces)} the outputs are those of single steps", worst


def cut(case: Case, length: int) -> Case:
    """The same way to decode a text, of the beginning of it."""
    pieces: list[int] = []
    for piece in case.sizes["pieces"]:
        pieces += [min(piece, length - sum(pieces))] * (sum(pieces) < length)
    return replace(case, sizes={**case.sizes, "pieces": pieces, "warm": False})


def aspect_of(pieces: list[int]) -> str:
    """Which way to decode it is."""
    if max(pieces[1:], default=1) > 1:
        return CHUNKS
    return STEPS if pieces[0] == 1 else AFTER_BEGINNING


def shorten(pieces: list[int]) -> str:
    return ", ".join(map(str, pieces[:6])) + (", …" if len(pieces) > 6 else "")


class Cache(Property):
    """In pieces of 1, 2, 3, w, and w − 1, w, w + 1, 2w + 1 with singles or the rest after; after
    another text; past 32 and 64.

    Needs: new_cache, step.
    Fails: a piece that differs from the whole text. Single steps, single steps after a beginning,
      chunks on a warm cache and a second text are findings of their own, the later ones where they
      fail on a text so short that the earlier ones get it right, or where chunks agree neither with
      the whole text nor with single steps that go wrong late.
    """

    name = "cache"
    field = "cache"

    def excuse(self, probe: Probe) -> Finding | None:
        if not probe.subject.caches:
            verdict: Verdict = "cannot tell" if self.declared(probe) else "not applicable"
            detail = "no cache was found to step it with; give a Subject with new_cache and step"
            return self.finding(verdict, detail)
        decoder = getattr(probe.subject, "decoder", None)
        if decoder is not None and decoder.doubt:
            return self.finding("cannot tell", decoder.doubt)
        return super().excuse(probe)

    def cases(self, probe: Probe) -> Iterator[Case]:
        """After another text, of which nothing may be left; single steps that follow a beginning
        are many, and left over is what single steps show already."""
        window = probe.contract.window or 4
        for pieces in chunkings(3 * window + 5, window):
            aspect = aspect_of(pieces)
            after = aspect == AFTER_BEGINNING
            warm = not after and not unsure_of(probe)
            sizes = {"batch": 3 if after else 2, "pieces": pieces, "warm": warm}
            yield self.case(probe, fails, aspect, **sizes)
        for pieces in (LONG, LONGEST_BEGINNING):
            if probe.lengths[-1] >= sum(pieces):
                yield self.case(probe, fails, aspect_of(pieces), batch=1, pieces=pieces, warm=False)
        length = 3 * window + 5
        yield self.case(probe, chunks_fail, AGAINST, batch=2, pieces=even(length, 3))

    def run(self, probe: Probe, case: Case) -> Result:
        """Not every code takes pieces of every size: what it refuses does not fail."""
        try:
            return super().run(probe, case)
        except SubjectError as error:
            return False, error.sentence()[:LONGEST], None
        except CannotTell as reason:  # of the shapes of its steps
            return False, str(reason), None

    def _fails(self, probe: Probe, case: Case) -> bool:
        """Asked to name a failure, never to pass: what was asked before is not run again."""
        known = (case.fails, repr(case.sizes), case.tolerance)
        if known not in probe.results:  # of shorter texts many ways to cut them are the same
            probe.results[known] = self.run(probe, case)
        return probe.results[known][0]

    def on_failure(self, probe: Probe, case: Case, result: Result) -> Finding | None:
        """Only after another text? Then that is what is wrong, whatever the pieces."""
        fails, sentence, measured = result
        result = fails, sentence + protocol_of(probe), measured
        found = super().on_failure(probe, case, result)
        if case.fails is chunks_fail:
            return found
        cold = replace(case, sizes={**case.sizes, "warm": False})
        if found is None or self._fails(probe, cold):
            return found
        return replace(found, aspect=AFTER)

    def distinct(self, probe: Probe, found: Finding, before: Sequence[Finding]) -> bool:
        """Whether it fails on a text so short that the ways that failed before it get it right.

        Where single steps are right at first, and wrong later (a window that whole texts do not
        have), chunks must agree with them or with the whole.
        """
        case = found.example
        if found.aspect == AFTER:
            return True
        known = {one.aspect: one.example for one in before if one.aspect != AFTER}
        if found.aspect == AGAINST:
            late = STEPS in known and CHUNKS not in known
            return late and not self._fails(probe, cut(known[STEPS], 3))
        for length in range(1, sum(case.sizes["pieces"]) + 1):
            if self._fails(probe, cut(case, length)):
                return not any(self._fails(probe, cut(one, length)) for one in known.values())
        return False

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        sizes = [size for _, (_, _, size) in tried if size is not None]
        refused = [(case, why) for case, (_, why, size) in tried if size is None]
        if not sizes:
            return self.finding("cannot tell", f"it takes no pieces: {refused[0][1]}")
        window = probe.contract.window or 4
        detail = f"stepped by 1, 2, 3, {window} and after long beginnings: off by {max(sizes):.1e}"
        if refused:
            case, why = refused[0]
            detail += f"; {len(refused)} of {len(tried)} ways to cut the text are refused, as in "
            detail += f"pieces of {shorten(case.sizes['pieces'])} ({why})"
        detail += protocol_of(probe)
        unsure = unsure_of(probe)
        if unsure:
            advice = "give it a method such as reset_cache, or a Subject with new_cache and step"
            detail = f"{unsure}; {advice}; one text is right: {detail}"
            return self.finding("cannot tell", detail, measured=max(sizes))
        return self.finding("pass", detail, measured=max(sizes))


def unsure_of(probe: Probe) -> str:
    """Why a second text in the same module cannot be tried; empty if it can."""
    decoder = getattr(probe.subject, "decoder", None)
    return "" if decoder is None else decoder.unsure


def protocol_of(probe: Probe) -> str:
    """The end of a sentence: how the code is stepped, where that was found out by trying."""
    decoder = getattr(probe.subject, "decoder", None)
    return "" if decoder is None else f"; protocol: {decoder}"


def even(length: int, size: int) -> list[int]:
    return [size] * (length // size) + ([length % size] if length % size else [])


def chunkings(length: int, window: int) -> Iterator[list[int]]:
    """Pieces that add up to the length: even ones, and long beginnings with single steps after."""
    for size in sorted({1, 2, 3, window}):
        yield even(length, size)
    for first in sorted({2, window - 1, window, window + 1, 2 * window + 1} - {0}):
        if first < length:
            yield [first] + [1] * (length - first)
            yield [first, length - first]
