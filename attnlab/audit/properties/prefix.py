"""Prefixes: what causal code gives for a beginning is what it gives for the whole text, cut there.

Axes: b batch, t time.

An output of causal code must not know how long the text is. Outputs divided by √t, scores times
log t, and a last block of one position that is lost pass every test that changes inputs only: the
length has to change. Scores times the logarithm of the query's own position are no such mistake.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.identify import constant, observe
from attnlab.audit.probe.probe import Probe, apart
from attnlab.audit.probe.tools import Tools
from attnlab.audit.properties.causality import cuts, moved_before
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import CannotTell, Result, Tool, amount, movement, replace_inputs

WHOLE = (37, 70, 129)  # lengths of whole texts; of beginnings, all that are tried
SOME = (11, 41, 53, 59, 77, 83, 89, 107, 113)  # and these, where blocks have no edge


def fails(
    run: Tool,
    draw: Tool,
    *,
    batch: int,
    length: int,
    longer: int,
    placed: bool,
    seed: int,
    tolerance: float,
) -> Result:
    """Run a text, and its first inputs alone: the outputs are the same, or later inputs matter."""
    x = draw(batch, longer, seed)
    places = torch.arange(longer).expand(batch, -1) if placed else None

    def run_start(text: Tensor) -> Tensor:
        return run(text, None, None if places is None else places[:, : text.shape[1]])[:, :length]

    whole = run_start(x)
    future = movement(
        run_start(replace_inputs(x, draw(batch, longer, seed + 100), length, longer - 1)), whole
    )
    if float(future.max()) > tolerance:
        return False, f"outputs before {length} move with later inputs: it is not causal", None
    change = movement(run_start(x[:, :length]), whole).amax(0)
    size, at = float(change.max()), int(change.argmax())
    text = f"output {at} is {amount(size)} off in a text of {length} from that in one of {longer}"
    later = f"input {length} does" if longer == length + 1 else f"inputs from {length} on do"
    return size > tolerance, f"{text}, though {later} not move it", size


class Prefix(Property):
    """A beginning is run alone, and as part of a longer text; some 35 lengths up to 128, the
    edges of blocks among them.

    Needs: a steady answer, and causality.
    Fails: an output that differs though no later input moves it, unless positions may be counted
      from the end.
    """

    name = "prefix"

    def excuse(self, probe: Probe) -> Finding | None:
        if probe.contract.causal is False:
            return self.finding("not applicable", "declared bidirectional")
        return super().excuse(probe)

    def cases(self, probe: Probe) -> Iterator[Case]:
        for length, longer in pairs(probe):
            yield self.case(probe, fails, batch=2, length=length, longer=longer, placed=False)

    def run(self, probe: Probe, case: Case) -> Result:
        """A beginning that is as in the whole text needs no look at what comes later."""
        length, longer = case.sizes["length"], case.sizes["longer"]
        if not case.sizes["placed"]:
            whole = probe.outputs(longer)[:, :length]
            off = apart(probe.run(probe.draw(2, longer)[:1, :length]), whole)
            if off <= case.tolerance:
                return False, f"a beginning of {length} gives what {longer} give", off
        return super().run(probe, case)

    def on_failure(self, probe: Probe, case: Case, result: Result) -> Finding | None:
        if leaks(
            probe, case.sizes["longer"]
        ):  # what later inputs choose (top-k) they need not move in every text
            detail = "outputs move with later inputs, in some texts: see causality"
            return self.finding("not applicable", detail)
        if probe.subject.block > 1:
            more = "; it takes whole blocks only, and their number may count"
            return self.finding("cannot tell", result[1] + more, measured=result[2])
        doubt = self._doubt(probe, case)
        if doubt:
            return self.finding("cannot tell", f"{result[1]}; {doubt}", measured=result[2])
        return super().on_failure(probe, case, result)

    def _doubt(self, probe: Probe, case: Case) -> str:
        """Absolute positions may be counted from the end, and that is somebody's choice."""
        placed = replace(case, sizes={**case.sizes, "placed": True})
        try:
            if probe.subject.placed:  # then it shows when they are given
                ends = not self.run(probe, placed)[0]
            else:
                ends = counts_from_the_end(probe)
        except (CannotTell, SubjectError):  # it cannot be seen, or not in so short a text
            ends = not scaled_by_length(probe, case)
        return "positions that are counted from the end of the text would do that" if ends else ""

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        if not tried:
            detail = f"two lengths are needed, one longer than the other{probe.taken.note}"
            return self.finding("cannot tell", detail)
        sizes = [size for _, (_, _, size) in tried if size is not None]
        if not sizes:
            return self.finding("not applicable", "outputs move with later inputs")
        text = f"{len(sizes)} beginnings give what the whole text gives: off by {max(sizes):.1e}"
        return self.finding("pass", text, measured=max(sizes))


def leaks(probe: Probe, length: int) -> bool:
    """Whether later inputs move outputs anywhere in texts of this length."""
    places = cuts(length, all_of_them=True)
    return any(moved_before(probe, length, places, 1.0, one, probe.tolerance) for one in (0, 1))


def pairs(probe: Probe) -> Iterator[tuple[int, int]]:
    """Lengths of beginnings, and of whole texts that are not much longer; one that is."""
    block, takes = probe.subject.block, probe.taken.takes
    if block > 1:  # else what fills a block up would count
        for count in (1, 2):
            if takes(count * block) and takes((count + 1) * block):
                yield count * block, (count + 1) * block
        return
    last = probe.lengths[-1]
    whole = [*(length for length in WHOLE if length < last and takes(length)), last]
    for length in sorted({*probe.lengths, *(one for one in SOME if one < last and takes(one))}):
        longer = next((one for one in whole if one > length), None)
        if longer is not None:
            yield length, longer
    if probe.usual < last:
        yield probe.usual, last


def counts_from_the_end(probe: Probe) -> bool:
    """Whether queries, keys and values are the same where the ends of two texts are aligned.

    The texts say the same everywhere, so only positions and lengths tell their places apart.
    """
    tools, short, long = Tools(probe), 5, 7
    texts = []
    for length in (short, long):
        one = observe(tools.run, constant(probe, 2, length), tools.heads, tools.watch)[0]
        texts.append([part.double() for part in (one.q, one.k, one.v)])  # heads may differ
    floor = 1e-6 * max(float(part.abs().max()) for part in texts[1])
    both = list(zip(*texts, strict=True))
    begins = max(float((one - other[:, :, :short]).abs().max()) for one, other in both)
    ends = max(float((one - other[:, :, -short:]).abs().max()) for one, other in both)
    return begins > floor and ends <= floor


def scaled_by_length(probe: Probe, case: Case) -> bool:
    """Whether outputs differ from those of the whole text by one factor, or not at the first."""
    length, longer = case.sizes["length"], case.sizes["longer"]
    x = probe.draw(2, longer)
    short, whole = probe.run(x[:, :length]), probe.run(x)[:, :length]
    if length > 1 and float(movement(short, whole)[:, 0].max()) <= probe.tolerance:
        return True
    factor = float((short * whole).sum() / whole.square().sum())
    return float(movement(short, factor * whole).max()) <= probe.tolerance
