"""Rotations turn as it is declared: by one base, or some of them slower, as longer texts need it.

Axes: b batch, h query heads, t time, d head width.

The rates of all pairs of coordinates are measured in texts that say the same everywhere, and held
to the base, the scaling and the factor that are declared (`audit/probe/rates.py`).
"""

import math
from typing import Any

from torch import Tensor

from attnlab.audit.contract import Contract
from attnlab.audit.probe.identify import Turning, floor_of, forms_of, observe, turned_heads, turning
from attnlab.audit.probe.rates import Rates, other_rates, short
from attnlab.audit.properties.position_kinds import Found, rates_of
from attnlab.audit.repro.prelude import CannotTell, Result, Shape, Tool

ROWS = 8  # texts that are compared: more than two coordinates could be explained by


def rates_fail(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    *,
    kind: str | None,
    slower: float | None,
    base: float | None,
    layer: int,
    start: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """The rates of pairs of coordinates are those of the base and the scaling that are declared."""
    x = draw(ROWS, 1, seed)
    x = x.expand(-1, length, *x.shape[2:]).clone()
    one = turning_seen(run, x, heads, watch, layer, start)
    if one is None or not one.frequencies:
        raise CannotTell("nothing is seen to turn")
    wrong, doubt = other_rates(one.frequencies, one.count, one.limit, kind, slower, base)
    if doubt:
        raise CannotTell(doubt)
    return bool(wrong), wrong or "pairs turn as it is declared", list(one.frequencies)


def turning_seen(
    run: Tool, x: Tensor, heads: Shape | None, watch: Any, layer: int, start: int
) -> Turning | None:
    """How the first head that turns does."""
    if heads is not None:
        forms = forms_of(run, heads, x.dtype)
        found = [] if forms is None else [turning(one, forms.floor) for one in forms.matrix]
    else:
        one = observe(run, x, heads, watch)[layer]
        found = turned_heads(one, start, floor_of(one.q.dtype))[0]
    return next((one for one in found if one is not None and not one.still), None)


def asks_for_rates(contract: Contract) -> bool:
    return contract.rope_scaling is not None or contract.rope_factor is not None


def held_to(contract: Contract, found: Found) -> tuple[str, str]:
    """How rates are not as declared, or why that cannot be told."""
    one = found.turned
    if not asks_for_rates(contract) or found.kind != "rotary" or one is None:
        return "", ""
    kind, factor, base = contract.rope_scaling, contract.rope_factor, contract.rope_base
    return other_rates(one.frequencies, one.count, one.limit, kind, factor, base)


def slowed(found: Found) -> Rates | None:
    """The rates of rotations of which some are slower, and by how much is known."""
    rates = None if found.turned is None else rates_of(found.turned)
    known = rates is not None and rates.scaled and rates.ramp != "linear" and rates.slower > 1
    return rates if known else None


def temperature(found: Found, scale: float, width: int) -> str:
    """What the factor on query · key says beside rates that are slower; empty for nothing.

    YaRN makes queries and keys longer by 0.1 · ln(factor) + 1. The factor may be chosen otherwise
    too, so it is named only where it is that or 1/√(head width).
    """
    rates = slowed(found)
    if rates is None:
        return ""
    longer = 0.1 * math.log(rates.slower) + 1
    times = scale * width**0.5
    if abs(times / longer**2 - 1) < 1e-3:
        each = f"queries and keys are {longer:.5g} times as long (± {abs(times**0.5 - longer):.1g})"
        return f"{each}, the temperature of YaRN for {short(rates.slower)}"
    return "no temperature" if abs(times - 1) < 1e-3 else ""
