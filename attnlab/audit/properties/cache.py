"""KV cache: decoding in pieces of any size gives the outputs of the whole text."""

from collections.abc import Callable, Iterator
from typing import Any

from attnlab.audit.contract import Finding, Verdict
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import CannotTell, Result, Tool, movement

# past blocks of 32 and 64, a single step at each edge
LONG = [31, 1, 1, 1, 29, 1, 1, 1, 1]


def fails(
    run: Tool,
    draw: Tool,
    step: Tool,
    new_cache: Callable[[], Any],
    *,
    batch: int,
    pieces: list[int],
    warm: bool,
    seed: int,
    tolerance: float,
) -> Result:
    """Decode a text in pieces, after another text if warm: the outputs are those of the whole."""
    x, worst = draw(batch, sum(pieces), seed), 0.0
    whole = run(x)
    if warm:
        other, cache = draw(batch, sum(pieces), seed + 100), new_cache()
        for piece in other.split(pieces, dim=1):
            step(piece, cache)
    cache, end = new_cache(), 0
    for piece in x.split(pieces, dim=1):
        end += piece.shape[1]
        found = step(piece, cache)[:, -piece.shape[1] :]  # some give the last one only
        change = movement(found, whole[:, end - found.shape[1] : end]).amax(0)
        worst = max(worst, float(change.max()))
        if worst > tolerance:
            at = int((change > tolerance).nonzero()[0])
            place, size = end - found.shape[1] + at, float(change[at])
            name = "a second text" if warm else "the text"
            seen = f"differs by {size:.2g} at position {place} from the whole"
            return True, f"{name} in pieces of {shorten(pieces)} {seen}", size
    return False, f"in pieces of {pieces} the outputs are those of the whole text", worst


def shorten(pieces: list[int]) -> str:
    return ", ".join(map(str, pieces[:6])) + (", …" if len(pieces) > 6 else "")


class Cache(Property):
    """In pieces of 1, 2, 3, w, and w − 1, w, w + 1, 2w + 1 with singles or the rest after; after
    another text; past 32 and 64.

    Needs: new_cache, step.
    Fails: a piece that differs from the whole text.
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
        """After another text each: nothing may be left of it."""
        window = probe.contract.window or 4
        for pieces in chunkings(3 * window + 5, window):
            yield self.case(probe, fails, batch=2, pieces=pieces, warm=True)
        if probe.lengths[-1] >= sum(LONG):
            yield self.case(probe, fails, batch=1, pieces=LONG, warm=False)

    def run(self, probe: Probe, case: Case) -> Result:
        """Not every code takes pieces of every size: what it refuses does not fail."""
        try:
            return super().run(probe, case)
        except SubjectError as error:
            return False, error.reason[:100], None
        except CannotTell as reason:  # of the shapes of its steps
            return False, str(reason), None

    def on_failure(self, probe: Probe, case: Case, result: Result) -> Finding | None:
        fails, sentence, measured = result
        return super().on_failure(probe, case, (fails, sentence + protocol_of(probe), measured))

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
        return self.finding("pass", detail + protocol_of(probe), measured=max(sizes))


def protocol_of(probe: Probe) -> str:
    """The end of a sentence: how the code is stepped, where that was found out by trying."""
    decoder = getattr(probe.subject, "decoder", None)
    return "" if decoder is None else f"; protocol: {decoder}"


def chunkings(length: int, window: int) -> Iterator[list[int]]:
    """Pieces that add up to the length: even ones, and long beginnings with single steps after."""
    for size in sorted({1, 2, 3, window}):
        yield [size] * (length // size) + ([length % size] if length % size else [])
    for first in sorted({2, window - 1, window, window + 1, 2 * window + 1} - {0}):
        if first < length:
            yield [first] + [1] * (length - first)
            yield [first, length - first]
