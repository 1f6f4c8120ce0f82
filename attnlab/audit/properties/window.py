"""Sliding windows: how many keys a query attends to, including its own.

Axes: t time; output i, input j.

Every input is replaced in turn, and every output watched: that is who moves whom [t, t]. With a
window of w, input j moves output i if and only if 0 ≤ i − j < w. Later inputs are left to
causality. Through n layers a window reaches n (w − 1) + 1 inputs.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnlab.audit.contract import Finding
from attnlab.audit.probe.lengths import LONGEST
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, influence, movement, replace_inputs
from attnlab.audit.subject.adapters import LAYERS

FIRST = (0, 1, 40)  # inputs of a long text whose last reader is looked for


def fails(
    run: Tool,
    draw: Tool,
    *,
    length: int,
    wanted: int | None,
    rows: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Replace every input: those that move an output are the last `wanted`, up to its own."""
    moves = influence(run, draw, length, seed, rows)
    seen, back = moves > tolerance, torch.arange(length)[:, None] - torch.arange(length)
    width, gap = width_of(seen), first_gap(seen)
    if wanted is None:
        band = width < length and bool((seen == ((back < width) & (back >= 0))).all())
        return False, describe(seen, width, gap), width if band else None
    wrong = (seen != (back < wanted)) & (back >= 0)
    if not bool(wrong.any()):
        text = f"exactly the last {wanted} inputs move an output, at all {length} positions"
        return False, text, width
    i, j = wrong.nonzero()[0].tolist()
    text = f"output {i} does not move when input {j} changes, inside its {wanted} keys"
    if bool(seen[i, j]):
        text = f"output {i} moves by {float(moves[i, j]):.2g} when input {j} changes"
        text += f", outside its {wanted} keys"
    if width == wanted + 1 < length and not gap:  # in a shorter text full attention has as many
        text += "; one key too many, as where a window of w means w before the query"
    return True, text, None if gap else width


def width_of(seen: Tensor) -> int:
    """The most keys of an output: from the earliest input that moves it, up to its own."""
    places = torch.arange(len(seen))
    earliest = torch.where(seen, places, len(seen)).min(dim=1).values
    return int((places - earliest + 1).clamp(min=0).max())


def first_gap(seen: Tensor) -> list[int]:
    """An output, and an input from the earliest that moves it to its own that does not."""
    places = torch.arange(len(seen))
    earliest = torch.where(seen, places, len(seen)).min(dim=1).values.minimum(places)
    between = (places >= earliest[:, None]) & (places <= places[:, None])
    missing: list[list[int]] = (between & ~seen).nonzero().tolist()
    return missing[0] if missing else []


def describe(seen: Tensor, width: int, gap: list[int]) -> str:
    """Where no window is declared: what there is."""
    if gap:
        text = f"no window: inputs up to {max(width - 1, 0)} before an output move it, but not"
        return f"{text} all of them; input {gap[1]} does not move output {gap[0]}"
    if width >= len(seen):
        return f"every earlier input is attended to, up to {width} of them"
    counts = seen.tril().sum(1)[width - 1 :]
    if int(counts.min()) < width:
        return f"no window: of late outputs some attend to {width} keys, some to {counts.min()}"
    keys = "1 key, its own" if width == 1 else f"{width} keys, including its own"
    if bool(seen.triu(1).any()):
        return f"no window: besides later inputs a query attends to {keys}"
    names = f"window={width} here and in Hugging Face, ({width - 1}, 0) in FlashAttention"
    return f"a query attends to {keys}; declared as {names}"


class Window(Property):
    """Every input is replaced three times, and every output watched, in a text of 23 or of three
    declared windows; of 129 where the first inputs of it do not move its end.

    Needs: a steady answer.
    Fails: another number of keys than declared.
    """

    name = "window"
    field = "window"
    fixed = (LAYERS,)

    def excuse(self, probe: Probe) -> Finding | None:
        wanted, length = reach(probe), text_length(probe)
        if wanted is not None and wanted >= length:
            detail = f"a window that reaches {wanted} inputs is no narrower than a text of {length}"
            return self.finding("cannot tell", detail + probe.taken.note)
        return super().excuse(probe)

    def cases(self, probe: Probe) -> Iterator[Case]:
        wanted, length = reach(probe), text_length(probe)
        if wanted is None and probe.lengths[-1] > length and ends_later(probe, length):
            length = probe.lengths[-1]
        yield self.case(probe, fails, length=length, wanted=wanted, rows=probe.rows(length))


def reach(probe: Probe) -> int | None:
    """How many inputs a declared window shows, through all layers; None if none is declared."""
    keys, layers = probe.contract.window, probe.subject.layers
    return None if keys is None else layers * (keys - 1) + 1


def text_length(probe: Probe) -> int:
    """Three windows and more, if one is declared, within what the code takes."""
    return probe.taken.fit(min(max(3 * (probe.contract.window or 0) + 2, 23), LONGEST))


def ends_later(probe: Probe, short: int) -> bool:
    """Whether a short text shows no window, and the longest one might: some of its inputs all move
    the same number of outputs, and not all.

    What fades with the distance ends here and there instead.
    """
    if not bool((probe.influence(short) > probe.tolerance)[-1].all()):
        return False
    length = probe.lengths[-1]
    x, other = probe.draw(1, length), probe.draw(1, length, 100)
    before, counts = probe.run(x), set()
    for j in (one for one in FIRST if one < length // 2):
        moved = movement(probe.run(replace_inputs(x, other, j, j)), before)[0, j:]
        seen = moved > probe.tolerance
        counts.add(int(seen.sum()) if bool(seen[: int(seen.sum())].all()) else 0)
    return len(counts) == 1 and 0 < max(counts) < length - length // 2
