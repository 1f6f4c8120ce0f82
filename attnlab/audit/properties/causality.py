"""Causality: an output does not move with a later input.

Axes: b batch, t time; output i, input j.
"""

from collections.abc import Iterator

import torch

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import SIZES, Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, amount, movement, replace_inputs

ALIKE = 0.8  # of as many earlier inputs as later ones that move an output, in two-way code


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
            return True, f"output {at} moves by {amount(size)} when {which}, of {length}", False
    return False, f"no output before a change moves, of {length}", True


SHORT = (2, 7)  # texts in which every place is changed in calls of their own
EVERY = 33  # up to here, and in the longest text, every place is changed; else some


class Causality(Property):
    """Inputs from j on are replaced: for all j in texts of up to 33 and of 129, for some j in
    those between; several texts; × 1 and × 1,000.

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
        found = super().excuse(probe)
        if found is None and probe.lengths[-1] < 2:
            detail = f"a text of one position has no future{probe.taken.note}"
            return self.finding("cannot tell", detail)
        return found

    def cases(self, probe: Probe) -> Iterator[Case]:
        """Short texts, then what many rows in one call show to be worth a look."""
        sizes = SIZES if probe.subject.continuous else SIZES[:1]
        short = sorted({probe.taken.fit(max(length, 2), low=2) for length in SHORT})
        for length in short:
            for seed in range(2):
                for factor in sizes:
                    every = list(range(1, length))
                    yield self._change_from(probe, length, every, factor, seed)
        last = probe.lengths[-1]
        for length in (one for one in probe.lengths if one > 1 and one not in short):
            places = cuts(length, all_of_them=length <= EVERY or length == last)
            for seed in range(2) if length == probe.usual else (0,):
                yield from self._suspects(probe, length, places, 1.0, seed)
            if length in (probe.usual, last):
                for factor in sizes[1:]:
                    yield from self._suspects(probe, length, cuts(length), factor, 1)

    def _change_from(
        self, probe: Probe, length: int, places: list[int], factor: float, seed: int
    ) -> Case:
        sizes = {"batch": 2, "length": length, "cuts": places, "changed": length}
        return self.case(probe, fails, **sizes, factor=factor, seed=seed)

    def _suspects(
        self, probe: Probe, length: int, places: list[int], factor: float, seed: int
    ) -> Iterator[Case]:
        """A case of the cuts that many rows in one call show; of some where it takes no rows.

        Rows might be mixed, so calls of their own decide.
        """
        try:
            found = moved_before(probe, length, places, factor, seed, self.tolerance(probe))
        except SubjectError:
            found = cuts(length)
        if found:
            yield self._change_from(probe, length, found, factor, seed)

    def on_failure(self, probe: Probe, case: Case, result: Result) -> Finding | None:
        if self.declared(probe) is None and is_bidirectional(probe):
            detail = f"bidirectional: {result[1]}; declare causal=true if it must not be"
            return self.finding("pass", detail + probe.taken.note, measured=False)
        wrong, sentence, measured = result
        return super().on_failure(probe, case, (wrong, sentence + probe.taken.note, measured))

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        how = probe.taken.tried_text
        if probe.subject.continuous:
            how += f", inputs up to ×{SIZES[-1]:g}"
        if probe.subject.causal_by:
            how += f"; its caller gives {probe.subject.causal_by}"
        detail = f"no output before a change moved ({how}){probe.taken.note}"
        return self.finding("pass", detail, measured=True)


def moved_before(
    probe: Probe, length: int, places: list[int], factor: float, seed: int, tolerance: float
) -> list[int]:
    """Cuts before which an output moves, of one text; each changed text is a row."""
    x, other = (probe.draw(2, length, one)[:1] for one in (seed, seed + 100))
    if x.is_floating_point():
        x, other = x * factor, other * factor
    changed = replace_inputs(x, other, 0, length - 1)
    found = []
    for some in torch.tensor(places).split(max(1, probe.room(length) - 1)):
        later = torch.arange(length) >= some[:, None]  # [rows, t]
        texts = torch.where(later if x.dim() == 2 else later[..., None], changed, x)
        before, after = probe.run(torch.cat((x, texts))).split([1, len(some)])
        off = movement(after, before).masked_fill(later, 0).amax(1)
        found += some[off > tolerance * factor].tolist()
    return found


def cuts(length: int, all_of_them: bool = False) -> list[int]:
    """Places to change a text from: all, or near its ends, in the middle, and at a last block."""
    if all_of_them:
        return list(range(1, length))
    near = {1, 2, length // 2, length - length % 32, length - 1}
    return sorted(place for place in near if 1 <= place < length)


def is_bidirectional(probe: Probe) -> bool:
    """Whether later inputs are read as earlier ones are: two-way attention, a two-sided window.

    Routing makes the reach ragged, so about as many of them will do; a leak in causal code reads
    few later ones, and a mask that is turned round few earlier ones.
    """
    seen = probe.influence(23) > probe.tolerance
    earlier, later = int(seen.tril(-1).sum()), int(seen.triu(1).sum())
    return bool((seen == seen.T).all()) or ALIKE * max(earlier, later) <= min(earlier, later)
