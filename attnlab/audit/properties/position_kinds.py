"""Which kind of positions code has: none, absolute, a bias by distance, or rotations.

Axes: b batch, h query heads, t time, d head width, p pairs of coordinates; query i, key j.

Texts that say the same everywhere are told apart by positions alone. Of a function the scores are
measured, of a module they are observed (`audit/probe/identify.py`); where that shows nothing, only
what the outputs betray is claimed. What is measured here is reported; whether it is right is for
`audit/properties/positions.py`.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.positions import alibi_slopes
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.identify import (
    SEEN_LENGTH,
    Applied,
    Turning,
    constant,
    differ,
    floor_of,
    forms_of,
    grain,
    observe,
    slack,
    turned_heads,
    turning,
)
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.rates import Rates, read_rates
from attnlab.audit.probe.tools import Tools
from attnlab.audit.repro.prelude import CannotTell, Tool, movement, replace_inputs
from attnlab.audit.subject.base import Attention

ROWS = 8  # texts that are compared: more than two coordinates could be explained by
KNOWN_BASES = (10_000.0, 500_000.0, 1_000_000.0)


@dataclass(frozen=True)
class Found:
    """`kind` is a word of the contract, "turned" for rotations not by distance, or None."""

    kind: str | None
    detail: str
    wrong: str = ""  # in any reading
    turned: Turning | None = None
    slopes: tuple[float, ...] = ()
    heads: int = 1  # that were looked at
    layer: int = 0
    start: int = 0  # the first position that shows it
    bent: bool = False  # a weight for each coordinate comes after the rotation
    outside: bool = False  # from outputs alone, which show no more than that

    def plain(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"kind": self.kind}
        if self.kind == "rotary" and self.turned is not None:
            facts["layout"], facts["base"] = self.turned.layout, self.turned.base
            facts["fraction"] = self.turned.fraction
            facts["frequencies"] = list(self.turned.frequencies)
            rates = rates_of(self.turned)
            if rates is not None and rates.scaling:
                facts["scaling"] = asdict(rates)
        if self.slopes:
            facts["slopes"] = list(self.slopes)
        return facts


def base_of(turned: Turning) -> str:
    """Frequencies in float32 give a base to five digits or so."""
    base = turned.base
    if not base:
        return f"none ({_list(turned.frequencies)})"
    near = float(f"{base:.3g}")
    return f"{near if abs(base / near - 1) < 1e-3 else base:.6g}"


def identify_positions(probe: Probe) -> Found:
    if isinstance(probe.subject, Attention):
        return _of_function(probe, probe.subject)
    x = constant(probe, ROWS, SEEN_LENGTH)
    try:
        seen = _observe(probe, x)
    except CannotTell:
        return _from_outside(probe)
    start = _edge(probe, x, seen[0])
    if start > SEEN_LENGTH - 3:
        return Found(None, "something before attention mixes positions, and hides them")
    found = [
        replace(_of_layer(probe, one, n, start), layer=n, start=start, heads=one.q.shape[1])
        for n, one in enumerate(seen if start == 0 else seen[:1])  # the edge grows with each layer
    ]
    if found[0].kind == "absolute" or found[0].kind is None:
        return found[0]
    # layers without positions may stand between others that have them
    kinds = [one for one in found if one.kind not in ("none", None)]
    return next((one for one in kinds if one.wrong), kinds[0] if kinds else found[0])


def _observe(probe: Probe, x: Tensor) -> list[Applied]:
    tools = Tools(probe)
    return observe(tools.run, x, tools.heads, tools.watch)


def _of_function(probe: Probe, subject: Attention) -> Found:
    tools = Tools(probe)
    assert tools.heads is not None
    forms = forms_of(tools.run, tools.heads, subject.dtype)
    if forms is None:
        if blind(probe):
            return Found("none", "the order of earlier inputs does not matter")
        return Found(None, "weights are no softmax of products of queries and keys")
    turned = [turning(matrix, forms.floor) for matrix in forms.matrix]
    return replace(_name_kind(turned, forms.bias, forms.floor), heads=len(turned))


def _edge(probe: Probe, x: Tensor, before: Applied) -> int:
    """From where on equal inputs have equal pasts: a convolution before attention looks back."""
    try:
        changed = _observe(probe, replace_inputs(x, probe.draw(ROWS, SEEN_LENGTH, 9), 0, 0))
    except CannotTell:
        return SEEN_LENGTH
    parts = [(getattr(before, what), getattr(changed[0], what)) for what in ("q", "k", "v")]
    moved = torch.stack([differ(one, two).any(1).any(0) for one, two in parts]).any(0)
    return max(int(moved.nonzero().max()), 0) if moved.any() else 0


def _of_layer(probe: Probe, one: Applied, layer: int, start: int) -> Found:
    floor = floor_of(probe.subject.dtype)
    if not _steady(one.v[:, :, start:], floor):
        if layer:
            return Found(None, "what comes before this layer tells positions apart")
        return Found("absolute", "positions are added to what attention reads")
    turned, bent, other = turned_heads(one, start, floor)
    if other is not None:
        moved = one.q[:, other] - one.q[:, other, :1]
        if _steady(moved.transpose(0, 1)[None], floor, one.q):
            return Found("absolute", "positions are added to queries and keys")
        return Found(None, "queries or keys depend on positions in a way of their own")
    if (one.weights < 0).any() and all(form is not None and form.still for form in turned):
        return Found(None, "weights below 0 are no softmax, and show no bias")
    logs = one.weights[0, :, start:, start:].double().log()
    bias = logs - logs.diagonal(dim1=-2, dim2=-1)[..., None]
    bias = torch.where(bias.isfinite(), bias, torch.nan)
    return replace(_name_kind(turned, bias, grain(one.weights, floor)), bent=bent)


def _steady(parts: Tensor, floor: float, like: Tensor | None = None) -> bool:
    """Whether [b, h, t, e] is the same at all t."""
    size = float((parts if like is None else like).abs().max()) or 1.0
    return float((parts - parts[:, :, :1]).abs().max()) <= floor * size


def _name_kind(turned: list[Turning | None], bias: Tensor, floor: float) -> Found:
    """From the forms of each head, and from biases [h, t, t] against the own key's."""
    known = [one for one in turned if one is not None]
    if len(known) < len(turned):
        return Found(None, "too few keys are seen to compare distances")
    still = [one for one in known if one.still]
    if len(still) == len(known):
        return _bias(bias, floor)
    one = next(one for one in known if not one.still)
    if not all(one.relative for one in known):
        one = next(one for one in known if not one.relative)
        off = f"at equal distances they differ by {one.uneven:.2g} of their size"
        if one.plain:
            return Found("turned", f"queries and keys turn, but not by distance: {off}")
        wrong = f"queries and keys do not turn alike, so scores are not relative: {off}"
        return Found("turned", wrong, wrong=wrong if one.paired else "")
    if not one.pairs:
        return Found("relative", "scores depend on the distance of query and key")
    what = {"half-split": "coordinates n and n + half", "interleaved": "coordinates 2n and 2n + 1"}
    layout = f"{one.layout} ({what[one.layout]})" if one.layout else "in pairs"
    detail = f"rotary: {layout}, {_speed(one)}, {one.fraction:.3g} of the head width"
    return Found("rotary", detail, wrong=growing(one), turned=one)


def rates_of(turned: Turning) -> Rates | None:
    """By what base and scaling it turns, if there is one."""
    return read_rates(turned.frequencies, turned.count, turned.limit)


def _speed(turned: Turning) -> str:
    rates = rates_of(turned)
    if rates is not None and rates.scaling:
        return rates.text
    return f"base {base_of(turned)}" if turned.base else f"frequencies {_list(turned.frequencies)}"


def growing(turned: Turning) -> str:
    """The slip of a sign: frequencies 1, base^(1/n), base^(2/n) …, seen modulo a turn."""
    count = len(turned.frequencies)
    for base in KNOWN_BASES:
        wanted = [abs(math.remainder(base ** (n / count), 2 * math.pi)) for n in range(count)]
        near = [abs(a - b) < 1e-4 for a, b in zip(turned.frequencies, wanted, strict=True)]
        if count > 1 and all(near):
            return f"frequencies grow from pair to pair, as powers of +1/{count} of {base:.6g}"
    return ""


def _bias(bias: Tensor, floor: float) -> Found:
    known = ~bias.isnan()
    if not known.any():
        return Found(None, "no query attends to its own key, against which others are compared")
    if float(bias[known].abs().max()) <= 10 * floor:
        return Found("none", "scores do not depend on positions")
    length = bias.shape[-1]
    far = torch.arange(length)[:, None] - torch.arange(length)
    back = known & (far > 0)
    if not back.any():
        return Found(None, "no earlier key is seen")
    by_distance = [bias[:, far == n] for n in range(length)]
    spread = max(
        (float((one - one[:, -1:]).abs().nan_to_num(0).max()) for one in by_distance), default=0.0
    )
    if spread > 10 * floor * (1 + float(bias[back].abs().max())):
        return Found("absolute", "scores have a bias that depends on more than the distance")
    slopes = []
    for head in range(len(bias)):
        at = back[head]
        slopes.append(float((bias[head][at] / far[at]).median()))
    line = torch.tensor(slopes, dtype=torch.float64)[:, None, None] * far
    if float((bias - line)[back].abs().max()) > 10 * floor * length:
        return Found("relative", "scores have a bias by distance, another one for each")
    slopes = [-slope for slope in slopes]
    detail = f"a bias falls by {_list(slopes)} with each position (by head)"
    wrong = ""
    if min(slopes) < -floor:
        wrong = f"the bias grows with the distance, by {_list([-one for one in slopes])} (by head)"
    return Found("alibi", detail, wrong=wrong, slopes=tuple(slopes))


def wrong_slopes(slopes: tuple[float, ...]) -> str:
    """They are published for every number of heads; another largest exponent is a setting."""
    heads = len(slopes)
    above = 2 ** math.ceil(math.log2(heads))
    all_above = alibi_slopes(above).tolist()
    ratio = slopes[0]
    families = [
        alibi_slopes(heads).tolist(),
        (all_above[1::2] + all_above[0::2])[:heads],
        [ratio ** (n + 1) for n in range(heads)],
    ]
    for wanted in families:
        if all(abs(a / b - 1) < 1e-2 for a, b in zip(slopes, wanted, strict=True)) and ratio < 1:
            return ""
    return f"slopes are {_list(slopes)}, and for {heads} heads {_list(families[0])}"


def _list(numbers: Any) -> str:
    shown = [f"{number:.4g}" for number in list(numbers)[:6]]
    return ", ".join(shown) + (", …" if len(numbers) > 6 else "")


def blind(probe: Probe) -> bool:
    """Whether the last output does not care about the order of the inputs before it."""
    lengths = dict.fromkeys(probe.taken.fit(length, low=3) for length in (3, 7))
    orders = [order_moves(probe.run, probe.draw, length, 3) for length in lengths]
    return all(own > probe.tolerance >= turned for own, turned in orders)


def order_moves(run: Tool, draw: Tool, length: int, seed: int) -> tuple[float, float]:
    """How far the last output moves when the inputs before it change, or are in another order."""
    x, other = draw(2, length, seed), draw(2, length, seed + 100)
    order = [*reversed(range(length - 1)), length - 1]
    before, turned = run(x)[:, -1:], run(x[:, order])[:, -1:]
    changed = run(replace_inputs(x, other, 0, length - 2))[:, -1:]
    return float(movement(changed, before).max()), float(movement(turned, before).max())


def _from_outside(probe: Probe) -> Found:
    """Without a look inside: what outputs betray."""
    if blind(probe):
        same = "the order of earlier inputs does not matter to the last output"
        return Found("none", same, outside=True)
    if probe.subject.placed:
        moved = _shift(probe)
        if moved is not None and moved <= slack(2 * SEEN_LENGTH):
            same = "moving all positions leaves the outputs as they are"
            return Found("relative", same, outside=True)
        if moved is not None:
            detail = f"outputs move by {moved:.2g} of their size with all positions"
            return Found("absolute", detail, outside=True)
    return Found(None, "queries and keys are compared where it cannot be seen")


def _shift(probe: Probe) -> float | None:
    """How far outputs move when all positions move; None if it does not take such positions."""
    try:
        return shift_moves(Tools(probe).run, probe.draw, SEEN_LENGTH, 3)
    except (SubjectError, CannotTell):
        return None


def shift_moves(run: Tool, draw: Tool, length: int, seed: int) -> float:
    """How far outputs move, as a part of their size, when all positions move by a little."""
    x, places = draw(2, length, seed), torch.arange(length).expand(2, -1)
    here, there = run(x, None, places), run(x, None, places + 5)
    return float(movement(here, there).max()) / (float(here.abs().max()) or 1.0)
