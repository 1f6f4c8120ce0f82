"""Causality: an output does not move with a later input.

Axes: b batch, t time; output i, input j.
"""

from collections.abc import Iterator

from attnlab.audit.contract import Finding
from attnlab.audit.probe.probe import BLOCK_EDGES, LENGTHS, SIZES, Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, movement, replace_inputs


def fails(
    run: Tool,
    draw: Tool,
    *,
    batch: int,
    length: int,
    cuts: list[int],
    changed: int,
    factor: float,
    seed: int,
    tolerance: float,
) -> Result:
    """Change so many inputs from each cut on: no output before the cut may move."""
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    if x.is_floating_point():  # large inputs show a mask that large scores beat
        x, other = x * factor, other * factor
    before = run(x)
    for cut in cuts:
        last = min(cut + changed, length) - 1
        change = movement(run(replace_inputs(x, other, cut, last)), before)[:, :cut].amax(0)
        size, at = float(change.max()), int(change.argmax())
        if size > tolerance * factor:
            which = f"input {cut} changes" if cut == last else f"inputs {cut} to {last} change"
            return True, f"output {at} moves by {size:.2g} when {which}, of {length}", False
    return False, f"no output before a change moves, of {length}", True


class Causality(Property):
    """Inputs from j on are replaced: for all j, two texts, × 1 and × 1,000 in short texts; at
    edges of blocks up to length 129.

    Needs: a steady answer.
    Fails: an output before j that moves; undeclared: unless it attends both ways alike.
    """

    name = "causality"
    alike = True
    field = "causal"

    def tolerance(self, probe: Probe) -> float:
        return probe.fine

    def excuse(self, probe: Probe) -> Finding | None:
        if self.declared(probe) is False:
            return self.finding("not applicable", "declared bidirectional")
        return super().excuse(probe)

    def cases(self, probe: Probe) -> Iterator[Case]:
        """Everything from some place on changes: in short texts from every place."""
        for length in sorted({*LENGTHS, 3, 5} - {1}):
            for seed in range(2):
                for factor in SIZES if probe.subject.continuous else SIZES[:1]:
                    yield self._change_from(probe, length, cuts(length), factor, seed)
        for length in probe.lengths:
            if length in BLOCK_EDGES:
                yield self._change_from(probe, length, edges(length), 1.0, 0)

    def _change_from(
        self, probe: Probe, length: int, places: list[int], factor: float, seed: int
    ) -> Case:
        sizes = {"batch": 2, "length": length, "cuts": places, "changed": length}
        return self.case(probe, fails, **sizes, factor=factor, seed=seed)

    def on_failure(self, probe: Probe, case: Case, result: Result) -> Finding | None:
        if self.declared(probe) is None and is_bidirectional(probe):
            detail = f"bidirectional: {result[1]}; declare causal=true if it must not be"
            return self.finding("pass", detail, measured=False)
        return super().on_failure(probe, case, result)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        how = f"{len(probe.lengths)} lengths up to {probe.lengths[-1]}"
        if probe.subject.continuous:
            how += f", inputs up to ×{SIZES[-1]:g}"
        return self.finding("pass", f"no output before a change moved ({how})", measured=True)


def cuts(length: int) -> list[int]:
    """All places to change a short text from; of a long one those where blocks would end."""
    if length <= 23:
        return list(range(1, length))
    near = {1, 2, 3, length - 1, length - 2}
    return sorted(near | {p + d for p in (4, 8, 16, 32, 64) for d in (-1, 0, 1) if p + d < length})


def edges(length: int) -> list[int]:
    """Few places: the second, the last, and where the last whole block would end."""
    block = max(one for one in (8, 16, 32, 64) if one < length)
    return sorted({1, block, length - 1})


def is_bidirectional(probe: Probe) -> bool:
    """Whether the reach is symmetric, as with two-way attention or a two-sided window."""
    seen = probe.influence(23) > probe.tolerance
    return bool((seen == seen.T).all())
