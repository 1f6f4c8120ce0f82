"""Decoding: with a cache, in pieces of any size, the outputs are those of the whole text."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from attnlab.audit.contract import Finding, Verdict
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe, apart
from attnlab.audit.properties.property import Property, unsteady


@dataclass(frozen=True)
class Cache(Property):
    name = "cache"
    field = "cache"

    def examine(self, probe: Probe) -> Finding:
        subject, declared = probe.subject, self.declared(probe)
        if not subject.caches:
            verdict: Verdict = "cannot tell" if declared else "not applicable"
            detail = "no cache was found to step it with; give a Subject with new_cache and step"
            return self.finding(verdict, detail, declared=declared)
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason, declared=declared)
        window = probe.contract.window or 4
        length = 3 * window + 5
        worst = 0.0
        refused: dict[str, str] = {}
        tried = 0
        for seed in range(2):  # a second text, after a first: nothing may be left of it
            x = probe.draw(2, length, seed)
            whole = probe.run(x)
            for sizes in chunkings(length, window):
                try:
                    found = in_pieces(probe, x, whole, sizes)
                except SubjectError as error:  # not every code takes pieces of every size
                    refused.setdefault(_pieces(sizes), error.reason[:100])
                    continue
                tried += 1
                worst = max(worst, found[1])
                if found[0] is not None:
                    return self._failed(found[0], found[1], sizes, seed, declared)
        if not tried:
            detail = f"it takes no pieces: {next(iter(refused.values()))}"
            return self.finding("cannot tell", detail, declared=declared)
        detail = f"stepped by 1, 2, 3, {window} and after long beginnings: off by {worst:.1e}"
        if refused:
            first, why = next(iter(refused.items()))
            detail += f"; {len(refused)} of {tried // 2 + len(refused)} ways to cut the text are "
            detail += f"refused, as in pieces of {first} ({why})"
        return self.finding("pass", detail, measured=worst, declared=declared)

    def _failed(
        self, step: int, size: float, sizes: list[int], seed: int, declared: object
    ) -> Finding:
        pieces = _pieces(sizes)
        text = "the second text" if seed else "the text"
        detail = f"{text} in pieces of {pieces} differs by {size:.2g} from position {step} on"
        example = {"pieces": sizes, "position": step, "size": size, "text": seed}
        return self.finding("fail", detail, measured=size, declared=declared, example=example)


def _pieces(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes[:4])) + (", …" if len(sizes) > 4 else "")


def chunkings(length: int, window: int) -> Iterator[list[int]]:
    """Pieces that add up to the length: even ones, and long beginnings with single steps after."""
    for size in sorted({1, 2, 3, window}):
        yield [size] * (length // size) + ([length % size] if length % size else [])
    for first in sorted({2, window - 1, window, window + 1, 2 * window + 1} - {0}):
        if first < length:
            yield [first] + [1] * (length - first)
            yield [first, length - first]


def in_pieces(probe: Probe, x: Tensor, whole: Tensor, sizes: list[int]) -> tuple[int | None, float]:
    """The first position that differs from the whole text's, and the largest difference so far."""
    cache, start, worst = probe.subject.new_cache(), 0, 0.0
    for size in sizes:
        piece = slice(start, start + size)
        found = probe.step(x[:, piece], cache)
        given = min(found.shape[1], size)  # all that it has, or the last position only
        off = apart(found[:, -given:], whole[:, piece][:, -given:])
        worst = max(worst, off)
        if off > probe.tolerance:
            return start, off
        start += size
    return None, worst
