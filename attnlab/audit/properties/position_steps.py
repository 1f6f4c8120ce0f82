"""Positions count on: from the first place of a long text to its last, each is one further.

Axes: b batch, h query heads, t time; query i, key j.

In a text that says the same everywhere, scores of equal distances are equal wherever relative
positions count on. A table that is too short and read from its start again, or only to its end,
shows as soon as a text is longer than the table.
"""

from typing import Any

import torch
from torch import Tensor

from attnlab.audit.probe.identify import observe
from attnlab.audit.repro.prelude import Result, Shape, Tool

CLOSE = 2.0**-6  # of the scores' size; tables may be in a half precision


def stops_counting(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    *,
    layer: int,
    start: int,
    named: bool,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """In a long text that says the same everywhere, equal distances have equal scores.

    With `named` they fail only if positions start again, or stop."""
    x = draw(2, 1, seed)
    x = x.expand(-1, length, *x.shape[2:]).clone()
    found = observe(run, x, heads, watch)
    one = found[min(layer, len(found) - 1)]
    table = against_own(one.weights.double()[..., start:, start:].log())
    floor = 10 * torch.finfo(one.weights.dtype).eps ** 0.5
    size = float(table.tril().nan_to_num(0).abs().max())
    limit = max(CLOSE * size, floor)
    by_row = unevenness(table)
    off = float(by_row.max())
    text = f"scores of equal distances are equal in texts of up to {length}"
    if off <= limit:
        return False, text, length
    restart, end = restart_of(table, limit), end_of(table, limit)
    if restart is not None:
        place = restart + start
        text = f"positions start again at {place}: position {place} is compared as position {start}"
    elif end is not None:
        place = end + start
        text = f"positions stop at {place}: from there on all are compared as if at one place"
    else:
        text = f"positions do not count on evenly in texts of {length}: at equal distances scores"
        text += f" differ by {off:.2g}, of {size:.2g}"
    return restart is not None or end is not None or not named, text, None


def against_own(scores: Tensor) -> Tensor:
    """Scores [..., t, t] against that of the query's own key; NaN where one is not known."""
    table = scores - scores.diagonal(dim1=-2, dim2=-1)[..., None]
    return torch.where(table.isfinite(), table, torch.nan)


def unevenness(table: Tensor) -> Tensor:
    """How far each row of scores [b, h, t, t] is from the last one at the same distances, [t].

    A factor for all keys of a row is a temperature by the query's own position.
    """
    length, off = table.shape[-1], []
    last = table[..., -1, :]
    for row in range(length - 1):
        here, there = table[..., row, : row + 1], last[..., length - 1 - row :]
        known = ~(here.isnan() | there.isnan())
        here, there = (torch.where(known, one, 0) for one in (here, there))
        factor = (here * there).sum((0, -1)) / there.square().sum((0, -1))
        factor = torch.where(factor.isfinite() & (factor > 0), factor, 1.0)[:, None]
        off.append((here - factor * there).abs().max())
    return torch.stack(off)


def restart_of(table: Tensor, limit: float) -> int | None:
    """The position that is compared as position 0 is, and so those after it; None without one."""
    length = table.shape[-1]
    for n in range(1, length):
        off = (table[..., n:, : length - n] - table[..., : length - n, : length - n]).tril()
        known = ~off.isnan() & torch.ones_like(off, dtype=torch.bool).tril()
        if known.any() and float(off[known].abs().max()) <= limit:
            return n
    return None


def end_of(table: Tensor, limit: float) -> int | None:
    """From where on all keys have the scores of one place; None if there is no such."""
    length = table.shape[-1]
    for n in range(length - 1):
        off = table[..., n:, n:]
        known = ~off.isnan() & torch.ones_like(off, dtype=torch.bool).tril(-1)
        if known.any() and float(off[known].abs().max()) <= limit:
            return n
    return None
