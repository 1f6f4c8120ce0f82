"""Positions are what they are declared to be: none, absolute, relative, rotary or ALiBi.

Axes: b batch, h query heads, g key/value heads, t time, d head width; query i, key j.

First the kind is measured, and reported (`audit/properties/position_kinds.py`). Where that is not
what is declared, or wrong in any reading, the scores of a text that says the same everywhere are
compared with what they should be: what differs in it comes of positions alone. In long texts they
must count on (`audit/properties/position_steps.py`). Rotations are also compared far from the
beginning, where angles in a half precision are rounded.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention.positions import alibi_slopes
from attnlab.audit.contract import Contract, Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.identify import Applied, observe, slack
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import Tools
from attnlab.audit.properties.position_kinds import (
    Found,
    base_of,
    identify_positions,
    order_moves,
    shift_moves,
    wrong_slopes,
)
from attnlab.audit.properties.position_rates import (
    asks_for_rates,
    held_to,
    rates_fail,
    slowed,
    temperature,
)
from attnlab.audit.properties.position_steps import (
    CLOSE,
    against_own,
    stops_counting,
    unevenness,
)
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.properties.scale import Scale
from attnlab.audit.repro.prelude import CannotTell, Result, Shape, Tool, in_precision
from attnlab.audit.subject.adapters import HEADS, LAYERS

FAR = 300  # from 256 on bfloat16 cannot count
ROUNDED = "no failure unless dtype=bfloat16 is declared: "
STARTS = (300, 20_000, 100_000)  # positions that are given, where they can be
LENGTH = 7
LONGER = 37  # past blocks of 8, 16 and 32: what is weighed twice or lost at their borders shows
BASES = (1e4, 5e5, 1e6, 1e3, 100.0)  # that are tried where none is declared

OUTSIDE = ("unmoved", "orderless", "ordered")  # what outputs must be
FITS = {
    "none": ("none",),
    "absolute": ("absolute",),
    "relative": ("relative", "rotary", "alibi"),
    "rotary": ("rotary",),
    "alibi": ("alibi",),
}


def fails(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    *,
    wanted: str,
    rotary: tuple[str | None, float | None, float | None],
    slopes: list[float],
    layer: int,
    start: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """In a text that says the same everywhere, scores are those of the positions wanted."""
    x = draw(2, 1, seed)
    x = x.expand(-1, length, *x.shape[2:]).clone()
    if wanted in ("added", "not added"):
        out = run(x)
        size = float((out - out[:, :1]).abs().max())
        text = f"outputs of a text that says the same everywhere differ by {size:.2g}"
        return (size > tolerance) != (wanted == "added"), text, None
    found = observe(run, x, heads, watch)
    one = found[min(layer, len(found) - 1)]
    logs = one.weights.double()[..., start:, start:].log()
    table = logs - logs.diagonal(dim1=-2, dim2=-1)[..., None]  # against the query's own key
    table = torch.where(table.isfinite(), table, 0).tril()
    floor, size = 10 * torch.finfo(one.weights.dtype).eps ** 0.5, float(table.abs().max())
    if wanted == "none":
        return size > floor, f"scores differ by up to {size:.2g} between positions", None
    if wanted == "falling":
        grows = float(table.max())
        return grows > floor, f"scores grow by up to {grows:.2g} with the distance", None
    if wanted == "alibi":
        assert table.shape[1] == len(slopes), "slopes are of another number of heads"
        far = torch.arange(table.shape[-1])
        far = (far[:, None] - far).clamp(min=0)
        line = -torch.tensor(slopes, dtype=torch.float64)[:, None, None] * far
        first = [-round(float(table[0, head, 1, 0]), 6) for head in range(table.shape[1])]
        off = (table - line).abs() > floor + 1e-2 * line.abs()
        return bool(off.any()), f"the bias falls by {first} (by head), and {slopes} is right", None
    by_distance = [table.diagonal(-n, -2, -1) for n in range(table.shape[-1] - 1)]
    uneven = max(float((one - one[..., :1]).abs().max()) for one in by_distance)
    text = f"at equal distances scores differ by {uneven:.2g}, of {size:.2g}"
    if uneven > max(CLOSE * size, floor):
        return True, text, None
    if wanted == "relative":
        return False, text, None
    if size <= floor:
        return True, "scores do not depend on positions: nothing turns", None
    return turned_otherwise(one, table, start, rotary)


def turned_otherwise(
    one: Applied, table: Tensor, start: int, rotary: tuple[str | None, float | None, float | None]
) -> Result:
    """Whether scores are not those of queries and keys that turn as it is declared."""
    layout, base, fraction = rotary
    q, k = one.q[:, :, start].double(), one.k[:, :, start].double()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    width, length = q.shape[-1], table.shape[-1]
    count = int(width * (fraction or 1.0)) // 2
    best = float("inf")
    for kind in [layout] if layout else ["half-split", "interleaved"]:
        n = torch.arange(count)
        first, second = (n, n + count) if kind == "half-split" else (2 * n, 2 * n + 1)
        # what two coordinates add at each distance is a cosine of it; its speed is the base's
        real = q[..., first] * k[..., first] + q[..., second] * k[..., second]
        cross = q[..., first] * k[..., second] - q[..., second] * k[..., first]
        for speed in [base] if base else BASES:
            angles = torch.arange(length)[:, None] * speed ** (-n.double() / count)
            for sign in (1, -1):  # turning backwards is as good
                by_far = torch.einsum("bhn,tn->bht", real, angles.cos() - 1)
                by_far = by_far + sign * torch.einsum("bhn,tn->bht", cross, angles.sin())
                seen = table[..., -1, :].flip(-1)
                factor = float((by_far * seen).sum() / by_far.square().sum())
                off = float((seen - factor * by_far).abs().max() / seen.abs().max())
                best = min(best, off)
    what = ", ".join(str(part) for part in (layout, base, fraction) if part) or "pairs"
    text = f"scores differ by {best:.2g} of their size from those of rotations ({what})"
    return best > 4 * CLOSE, text, None


def outside_fails(
    run: Tool, draw: Tool, *, wanted: str, length: int, seed: int, tolerance: float
) -> Result:
    """Where scores cannot be seen: outputs are unmoved by a shift, orderless, or ordered."""
    if wanted == "unmoved":
        off = shift_moves(run, draw, length, seed)
        text = f"outputs move by {off:.2g} of their size when all positions move"
        return off > slack(2 * length), text, None
    own, turned = order_moves(run, draw, length, seed)
    text = f"the last output moves by {turned:.2g} when the inputs before it are turned round"
    orderless = own > tolerance >= turned
    return orderless != (wanted == "orderless"), text, None


def drift_fails(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    model: nn.Module | None,
    *,
    begin: int,
    placed: bool,
    dtype: str,
    layer: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Far from the beginning scores of near keys still are by distance: angles are exact."""
    tables = []
    with in_precision(model, getattr(torch, dtype)):
        for first in (0, begin):
            length = LENGTH if placed else first + LENGTH
            x = draw(2, 1, seed)
            x = x.to(getattr(torch, dtype)) if x.is_floating_point() else x
            x = x.expand(-1, length, *x.shape[2:]).clone()
            places = (first + torch.arange(length)).expand(len(x), -1) if placed else None

            def run_at(text: Tensor, at: Tensor | None = places) -> Tensor:
                return run(text, None, None if at is None else at[: len(text)])

            found = observe(run_at, x, heads, watch, length - LENGTH)
            one = found[min(layer, len(found) - 1)]
            if heads is not None:
                scores = one.weights[:, :, -LENGTH:].double().log()
            else:
                scores = one.q[:, :, -LENGTH:].double() @ one.k[:, :, -LENGTH:].double().mT
            tables.append(against_own(scores).tril())
    near, far = tables
    size = float(near.nan_to_num(0).abs().max()) or 1.0
    # other frequencies than in a short text are somebody's choice, as long as they are even; what
    # is uneven at the beginning already comes of the first tokens, as where a convolution begins
    off = float((unevenness(far) - unevenness(near)).max()) / size
    text = f"from position {begin} on scores of equal distances differ by {off:.2g} of their size"
    if float(far.nan_to_num(0).abs().max()) < CLOSE * size:
        text = f"positions stop before {begin}: there all are compared as if at one place"
        return True, f"{text} (in {dtype})", None
    return off > 0.1, f"{text} in {dtype}: angles are rounded", None


class Positions(Property):
    """Texts that say the same everywhere: are they turned, biased or added to?

    Needs: a look inside, or positions.
    Fails: another kind than declared; q and k turned differently; growing frequencies; a bias
      that grows; positions that start again or stop; rounded angles.
    """

    name = "positions"
    field = "positions"
    fixed = (HEADS, LAYERS)

    def find(self, probe: Probe) -> Finding:
        """What is measured is told in any case; what is wrong, in the words of the check."""
        excuse = self.excuse(probe)
        if excuse is not None:
            return excuse
        found = identify_positions(probe)
        suspect = found.wrong or find_breach(probe.contract, found)
        measured = found.plain()
        steps = list(self._steps(probe, found))
        others = (self._drifts(probe, found), self._borders(probe, found))
        usual = itertools.chain(steps[:1], *others, steps[1:])
        counted = ""
        for case in (*steps[:1], *self._suspects(probe, found)) if suspect else usual:
            if counted and case.fails is stops_counting:
                continue  # it was asked for less before
            wrong, sentence, seen = self.run(probe, case)
            if wrong:
                detail = f"{sentence}; {suspect}" if suspect not in ("", sentence) else sentence
                return self.finding("fail", detail, measured=measured, example=case)
            counted = sentence if seen else counted
        unknown = find_doubt(probe.contract, found)
        if suspect:
            unknown = f"{suspect}; but texts that say the same everywhere do not show it"
        if unknown:
            return self.finding("cannot tell", unknown, measured=measured)
        note = self._note(probe, found)
        warmer = self._temperature(probe, found)
        detail = "; ".join(one for one in (found.detail, warmer, counted) if one)
        detail = f"{detail}; {ROUNDED}{note}" if note else detail
        return self.finding("pass", detail, measured=measured)

    def cases(self, probe: Probe) -> Iterator[Case]:
        found = identify_positions(probe)
        yield from self._steps(probe, found)
        yield from self._suspects(probe, found)
        yield from self._drifts(probe, found)
        yield from self._borders(probe, found)

    def _steps(self, probe: Probe, found: Found) -> Iterator[Case]:
        """In the longest text, of odd length: no head is as wide."""
        if found.kind not in ("rotary", "turned", "alibi", "relative"):
            return
        longest = probe.lengths[-1]
        length = probe.taken.fit(longest - 1 + longest % 2, high=longest)
        if found.outside or found.bent or length < LENGTH + found.start:
            return
        # rotations are by distance; what a bias depends on besides is somebody's choice
        for named in (True, False) if found.kind == "rotary" else (True,):
            sizes = {"layer": found.layer, "start": found.start, "named": named, "length": length}
            yield self.case(probe, stops_counting, **sizes)

    def _suspects(self, probe: Probe, found: Found) -> Iterator[Case]:
        """The checks that would show what is suspected."""
        contract = probe.contract
        if asks_for_rates(contract) and found.kind == "rotary":
            declared: dict[str, Any] = {"kind": contract.rope_scaling}
            declared |= {"slower": contract.rope_factor, "base": contract.rope_base}
            at = {"layer": found.layer, "start": found.start, "length": LENGTH}
            yield self.case(probe, rates_fail, **declared, **at, seed=3)
        slopes = alibi_slopes(found.heads).tolist()
        how: dict[str, Any] = {"slopes": slopes, "layer": found.layer}
        how["rotary"] = (contract.rope_layout, contract.rope_base, contract.rope_fraction)
        for wanted in checks(contract, found):
            if wanted in OUTSIDE:
                yield self.case(probe, outside_fails, wanted=wanted, length=LENGTH, seed=3)
            else:
                # slow rotations show at some distance only
                length = LONGER if wanted == "rotary" and contract.rope_base else LENGTH
                sizes = {"wanted": wanted, "start": found.start, "length": length + found.start}
                yield self.case(probe, fails, **sizes, **how)

    def _borders(self, probe: Probe, found: Found) -> Iterator[Case]:
        """Without positions all keys of a text that says the same everywhere weigh the same."""
        if found.kind != "none" or found.outside or probe.contract.positions != "none":
            return
        how = {"slopes": [], "layer": found.layer, "rotary": (None, None, None)}
        sizes = {"wanted": "none", "start": found.start, "length": LONGER + found.start}
        yield self.case(probe, fails, **sizes, **how)

    def _drifts(self, probe: Probe, found: Found) -> Iterator[Case]:
        """In its own precision, and in one that it is declared to stand."""
        own = str(probe.subject.dtype).removeprefix("torch.")
        for dtype in dict.fromkeys([own, probe.contract.dtype or own]):
            yield from self._drifts_in(probe, found, dtype)

    def _drifts_in(self, probe: Probe, found: Found, dtype: str) -> Iterator[Case]:
        if found.kind != "rotary" or found.bent:
            return
        placed = probe.subject.placed
        for begin in STARTS if placed else STARTS[:1]:
            how = {"begin": begin, "placed": placed, "dtype": dtype, "layer": found.layer}
            yield replace(self.case(probe, drift_fails, **how), fixed=())

    def _temperature(self, probe: Probe, found: Found) -> str:
        """Of rotations that are slower: what they do to the size of scores."""
        if not slowed(found):
            return ""
        try:
            scale = Scale().examine(probe)
        except (SubjectError, CannotTell):
            return ""
        assert found.turned is not None
        known = scale.verdict == "pass" and isinstance(scale.measured, float)
        return temperature(found, scale.measured, found.turned.width) if known else ""

    def _note(self, probe: Probe, found: Found) -> str:
        """What would be wrong in bfloat16, in which nobody said that it would run."""
        results = (self.run(probe, case) for case in self._drifts_in(probe, found, "bfloat16"))
        return next((sentence for wrong, sentence, _ in results if wrong), "")

    def run(self, probe: Probe, case: Case) -> Result:
        if case.fails is drift_fails:
            return self._drift(probe, case)
        try:
            return super().run(probe, case)
        except CannotTell as reason:
            return False, str(reason), None

    def _drift(self, probe: Probe, case: Case) -> Result:
        """No such precision, or no such positions: then there is no such error."""
        dtype, begin = case.sizes["dtype"], case.sizes["begin"]
        other = Probe(probe.subject.in_dtype(getattr(torch, dtype)), probe.contract)
        try:
            return case.run(Tools(other))
        except (SubjectError, CannotTell) as error:
            if dtype == probe.contract.dtype and begin == STARTS[0]:
                raise  # it is declared to work
            return False, str(error), None


def find_breach(contract: Contract, found: Found) -> str:
    """What is declared and is not so."""
    if found.kind is None or kind_unseen(contract, found):
        return ""
    if contract.positions is not None and found.kind not in FITS[contract.positions]:
        return f"declared to be {contract.positions}; {found.detail}"
    if contract.positions == "alibi":
        return wrong_slopes(found.slopes)
    layout, base, fraction = contract.rope_layout, contract.rope_base, contract.rope_fraction
    scaled = asks_for_rates(contract)
    if layout is None and base is None and fraction is None and not scaled:
        return ""
    turned = found.turned
    if found.kind != "rotary" or turned is None:
        return f"rotations are declared; {found.detail}"
    if layout is not None and turned.layout not in (None, layout):
        return f"pairs are {turned.layout}, and {layout} is declared"
    if fraction is not None and abs(2 * turned.count - turned.width * fraction) >= 2:
        return f"a fraction of {turned.fraction:.3g} turns, and {fraction} is declared"
    if scaled:
        return held_to(contract, found)[0]
    seen = len(turned.frequencies)
    if base is None or seen < 2:
        return ""
    wanted = [base ** (-n / turned.count) for n in range(seen)]
    same = [abs(a / b - 1) < 1e-2 for a, b in zip(turned.frequencies, wanted, strict=True)]
    # models stretched to longer texts keep their fast pairs and slow the others down
    slower = all(a < 1.01 * b for a, b in zip(turned.frequencies, wanted, strict=True))
    if all(same) or (same[0] and same[1] and slower):
        return ""
    return f"the base of the rotations is {base_of(turned)}, and {base:.6g} is declared"


def kind_unseen(contract: Contract, found: Found) -> bool:
    """Whether outputs show that positions are relative, and not of which kind."""
    rotary = (contract.rope_layout, contract.rope_base, contract.rope_fraction)
    wanted = contract.positions in ("rotary", "alibi") or any(one is not None for one in rotary)
    wanted |= asks_for_rates(contract)
    return found.outside and found.kind == "relative" and wanted


def find_doubt(contract: Contract, found: Found) -> str:
    """What is declared and cannot be told, or why nothing can be."""
    if found.kind is None:
        return found.detail
    if kind_unseen(contract, found):
        return f"{found.detail}; which kind they are of cannot be seen"
    if found.turned is None or found.kind != "rotary":
        return ""
    if contract.rope_layout is not None and found.turned.layout is None:
        return f"the layout shows only where two pairs or more turn; {found.detail}"
    if contract.rope_base is not None and len(found.turned.pairs) < 2:
        return f"one pair of coordinates turns alike for every base; {found.detail}"
    doubt = held_to(contract, found)[1]
    if doubt:
        return f"the scaling that is declared cannot be told: {doubt}"
    if contract.dtype is not None and found.bent:
        return f"weights after the rotation hide how angles are rounded; {found.detail}"
    return ""


def checks(contract: Contract, found: Found) -> list[str]:
    """What scores should be, or outputs where scores cannot be seen; the likeliest first."""
    if contract.positions == "absolute":
        return ["added"]
    if found.outside and contract.positions == "none":
        return ["orderless"]
    if found.outside:
        return ["unmoved"] if found.kind == "absolute" else ["ordered"]
    turns = any((contract.rope_layout, contract.rope_base, contract.rope_fraction))
    turns |= asks_for_rates(contract)
    usual = "rotary" if turns else "relative"
    declared = contract.positions if contract.positions in ("none", "alibi", "rotary") else usual
    if found.kind == "absolute":
        return ["not added", declared]
    if found.kind == "alibi":
        return ["falling", declared]
    if found.kind in ("rotary", "turned"):
        return list(dict.fromkeys(["relative", declared, "rotary"]))
    return [declared]
