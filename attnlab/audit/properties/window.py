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
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, influence
from attnlab.audit.subject.adapters import LAYERS

LONGEST = 100  # of the texts in which a window is looked for


def fails(
    run: Tool, draw: Tool, *, length: int, wanted: int | None, seed: int, tolerance: float
) -> Result:
    """Replace every input: those that move an output are the last `wanted`, up to its own."""
    moves = influence(run, draw, length, seed)
    seen, back = moves > tolerance, torch.arange(length)[:, None] - torch.arange(length)
    width, gap = width_of(seen), first_gap(seen)
    if wanted is None:
        band = not gap and width < length and not bool(seen.triu(1).any())
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
    if width == wanted + 1 and not gap:
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
    keys = "1 key, its own" if width == 1 else f"{width} keys, including its own"
    if bool(seen.triu(1).any()):
        return f"no window: besides later inputs a query attends to {keys}"
    names = f"window={width} here and in Hugging Face, ({width - 1}, 0) in FlashAttention"
    return f"a query attends to {keys}; declared as {names}"


class Window(Property):
    """Every input is replaced three times, and every output watched.

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
            return self.finding("cannot tell", detail)
        return super().excuse(probe)

    def cases(self, probe: Probe) -> Iterator[Case]:
        yield self.case(probe, fails, length=text_length(probe), wanted=reach(probe))


def reach(probe: Probe) -> int | None:
    """How many inputs a declared window shows, through all layers; None if none is declared."""
    keys, layers = probe.contract.window, probe.subject.layers
    return None if keys is None else layers * (keys - 1) + 1


def text_length(probe: Probe) -> int:
    return min(max(3 * (probe.contract.window or 0) + 2, 23), LONGEST)
