"""What positions are: none, absolute, a bias by distance, or rotations, and of which kind.

Axes: b batch, h query heads, t time, d head width, p pairs of coordinates; query i, key j.

Texts that say the same everywhere are told apart by positions alone. Of a function the scores are
measured, of a module they are watched (`audit/probe/identify.py`); where that shows nothing, only
what the outputs betray is claimed.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention.positions import alibi_slopes
from attnlab.audit.contract import Contract, Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.identify import (
    CLOSE,
    SEEN_LENGTH,
    Applied,
    Turning,
    attend,
    constant,
    differ,
    floor_of,
    forms_of,
    grain,
    maps_seen,
    observe,
    slack,
    strip_weights,
    turning,
    unlike,
)
from attnlab.audit.probe.probe import Probe, apart, replaced
from attnlab.audit.properties.property import Property, unsteady
from attnlab.audit.subject.base import Attention, Subject, normal

ROWS = 8  # texts that are compared: more than two coordinates could be explained by
FAR = 300  # from 256 on bfloat16 cannot count
STARTS = (300, 20_000, 100_000)  # positions that are given, where they can be
UNEVEN = 0.1  # radians that steps may differ by: rounded tables do less, rounded angles more
KNOWN_BASES = (10_000.0, 500_000.0, 1_000_000.0)

FITS = {
    "none": ("none",),
    "absolute": ("absolute",),
    "relative": ("relative", "rotary", "alibi"),
    "rotary": ("rotary",),
    "alibi": ("alibi",),
}


@dataclass(frozen=True)
class Found:
    """`kind` is a word of the contract, "turned" for rotations not by distance, or None."""

    kind: str | None
    detail: str
    wrong: str = ""  # in any reading
    turned: Turning | None = None
    slopes: tuple[float, ...] = ()
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
        if self.slopes:
            facts["slopes"] = list(self.slopes)
        return facts


@dataclass(frozen=True)
class Positions(Property):
    name = "positions"
    field = "positions"

    def examine(self, probe: Probe) -> Finding:
        declared = self.declared(probe)
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason, declared=declared)
        found = identified(probe)
        facts: dict[str, Any] = {"measured": found.plain(), "declared": declared}
        wrong = found.wrong or self._broken(probe.contract, found)
        note, drifts = "", False
        if not wrong and found.kind == "rotary" and not found.bent:
            wrong = drift(probe, found, probe.subject.dtype)
            note = drift(probe, found, torch.bfloat16)
            if probe.contract.dtype == "bfloat16":
                wrong = wrong or note
            drifts = bool(wrong)
        if wrong:
            met = {"kind": found.kind, "layer": found.layer, "heads": len(found.slopes)}
            return self.finding("fail", wrong, example={**met, "drifts": drifts}, **facts)
        unknown = self._open(probe.contract, found)
        if unknown:
            return self.finding("cannot tell", unknown, **facts)
        # nobody said that it would run in bfloat16
        detail = f"{found.detail}; mind that {note}" if note else found.detail
        return self.finding("pass", detail, **facts)

    def _broken(self, contract: Contract, found: Found) -> str:
        """What is declared and is not so."""
        if found.kind is None:
            return ""
        if self._hidden(contract, found):
            return ""
        if contract.positions is not None and found.kind not in FITS[contract.positions]:
            return f"declared to be {contract.positions}; {found.detail}"
        if contract.positions == "alibi":
            return wrong_slopes(found.slopes)
        return _rope_broken(contract, found)

    def _hidden(self, contract: Contract, found: Found) -> bool:
        rotary = (contract.rope_layout, contract.rope_base, contract.rope_fraction)
        asked = contract.positions in ("rotary", "alibi") or any(one is not None for one in rotary)
        return found.outside and found.kind == "relative" and asked

    def _open(self, contract: Contract, found: Found) -> str:
        """What is declared and cannot be told, or why nothing can be."""
        if found.kind is None:
            return found.detail
        if self._hidden(contract, found):
            return f"{found.detail}; which kind they are of cannot be seen"
        if found.turned is None or found.kind != "rotary":
            return ""
        if contract.rope_layout is not None and found.turned.layout is None:
            return f"the layout shows only where two pairs or more turn; {found.detail}"
        if contract.rope_base is not None and len(found.turned.pairs) < 2:
            return f"one pair of coordinates turns alike for every base; {found.detail}"
        if contract.dtype is not None and found.bent:
            return f"weights after the rotation hide how angles are rounded; {found.detail}"
        return ""


def _rope_broken(contract: Contract, found: Found) -> str:
    asked = (contract.rope_layout, contract.rope_base, contract.rope_fraction)
    if all(one is None for one in asked):
        return ""
    turned = found.turned
    if found.kind != "rotary" or turned is None:
        return f"rotations are declared; {found.detail}"
    layout, base, fraction = asked
    if layout is not None and turned.layout not in (None, layout):
        return f"pairs are {turned.layout}, and {layout} is declared"
    if fraction is not None and abs(2 * turned.count - turned.width * fraction) >= 2:
        return f"a fraction of {turned.fraction:.3g} turns, and {fraction} is declared"
    seen = len(turned.frequencies)
    if base is None or seen < 2:
        return ""
    wanted = [base ** (-n / turned.count) for n in range(seen)]
    same = [abs(a / b - 1) < 1e-2 for a, b in zip(turned.frequencies, wanted, strict=True)]
    # models stretched to longer texts keep their fast pairs and slow the others down
    slower = all(a < 1.01 * b for a, b in zip(turned.frequencies, wanted, strict=True))
    if all(same) or (same[0] and same[1] and slower):
        return ""
    known = f"{_round(turned.base)}" if turned.base else f"none ({_listed(turned.frequencies)})"
    return f"the base of the rotations is {known}, and {base:.6g} is declared"


def _round(base: float) -> str:
    """Frequencies in float32 give a base to five digits or so."""
    near = float(f"{base:.3g}")
    return f"{near if abs(base / near - 1) < 1e-3 else base:.6g}"


def identified(probe: Probe) -> Found:
    if isinstance(probe.subject, Attention):
        return _of_function(probe, probe.subject)
    x = constant(probe, ROWS, SEEN_LENGTH)
    seen = observe(probe, x)
    if not seen:
        return _from_outside(probe)
    start = _edge(probe, x, seen[0])
    if start > SEEN_LENGTH - 3:
        return Found(None, "something before attention mixes positions, and hides them")
    found = [
        replace(_of_layer(probe, one, n, start), layer=n, start=start)
        for n, one in enumerate(seen if start == 0 else seen[:1])  # the edge grows with each layer
    ]
    if found[0].kind == "absolute" or found[0].kind is None:
        return found[0]
    # layers without positions may stand between others that have them
    kinds = [one for one in found if one.kind not in ("none", None)]
    return next((one for one in kinds if one.wrong), kinds[0] if kinds else found[0])


def _of_function(probe: Probe, subject: Attention) -> Found:
    forms = forms_of(subject)
    if forms is None:
        if blind(probe):
            return Found("none", "the order of earlier inputs does not matter")
        return Found(None, "weights are no softmax of products of queries and keys")
    turned = [turning(matrix, forms.floor) for matrix in forms.matrix]
    return _named(turned, forms.bias, forms.floor)


def _edge(probe: Probe, x: Tensor, before: Applied) -> int:
    """From where on equal inputs have equal pasts: a convolution before attention looks back."""
    changed = observe(probe, replaced(x, probe.draw(ROWS, SEEN_LENGTH, 9), slice(0, 1)))
    if not changed:
        return SEEN_LENGTH
    parts = [(getattr(before, what), getattr(changed[0], what)) for what in ("q", "k", "v")]
    moved = torch.stack([differ(one, two).any(1).any(0) for one, two in parts]).any(0)
    return max(int(moved.nonzero().max()), 0) if moved.any() else 0


def _of_layer(probe: Probe, one: Applied, layer: int, start: int) -> Found:
    floor = floor_of(probe.subject)
    if not _steady(one.v[:, :, start:], floor):
        if layer:
            return Found(None, "what comes before this layer tells positions apart")
        return Found("absolute", "positions are added to what attention reads")
    turned: list[Turning | None] = []
    bent = False
    for head in range(one.q.shape[1]):
        queries, keys = (maps_seen(part[:, head, start:], floor) for part in (one.q, one.k))
        if queries is None or keys is None:
            moved = one.q[:, head] - one.q[:, head, :1]
            if _steady(moved.transpose(0, 1)[None], floor, one.q):
                return Found("absolute", "positions are added to queries and keys")
            return Found(None, "queries or keys depend on positions in a way of their own")
        wrong = unlike(queries, keys)
        if not wrong:
            plain, queries, keys = queries, strip_weights(queries), strip_weights(keys)
            bent |= float((plain - queries).abs().max()) > CLOSE / 4
        form = turning(torch.einsum("imd,jme->ijde", queries, keys), floor)
        turned.append(form and replace(form, paired=wrong))
    if (one.weights < 0).any() and all(form is not None and form.still for form in turned):
        return Found(None, "weights below 0 are no softmax, and show no bias")
    logs = one.weights[0, :, start:, start:].double().log()
    bias = logs - logs.diagonal(dim1=-2, dim2=-1)[..., None]
    bias = torch.where(bias.isfinite(), bias, torch.nan)
    return replace(_named(turned, bias, grain(one.weights, floor)), bent=bent)


def _steady(parts: Tensor, floor: float, like: Tensor | None = None) -> bool:
    """Whether [b, h, t, e] is the same at all t."""
    size = float((parts if like is None else like).abs().max()) or 1.0
    return float((parts - parts[:, :, :1]).abs().max()) <= floor * size


def _named(turned: list[Turning | None], bias: Tensor, floor: float) -> Found:
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
    base = f"base {_round(one.base)}" if one.base else f"frequencies {_listed(one.frequencies)}"
    detail = f"rotary: {layout}, {base}, {one.fraction:.3g} of the head width"
    return Found("rotary", detail, wrong=growing(one), turned=one)


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
        return Found(None, "no query sees its own key, against which others are compared")
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
    detail = f"a bias falls by {_listed(slopes)} with each position (by head)"
    wrong = ""
    if min(slopes) < -floor:
        wrong = (
            f"the bias grows with the distance, by {_listed([-one for one in slopes])} (by head)"
        )
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
    return f"slopes are {_listed(slopes)}, and for {heads} heads {_listed(families[0])}"


def _listed(numbers: Any) -> str:
    shown = [f"{number:.4g}" for number in list(numbers)[:6]]
    return ", ".join(shown) + (", …" if len(numbers) > 6 else "")


def blind(probe: Probe) -> bool:
    """Whether the last output does not care about the order of the inputs before it."""
    for length in (3, 7):
        x = probe.draw(2, length, 3)
        order = [*reversed(range(length - 1)), length - 1]
        before = probe.run(x)[:, -1:]
        other = replaced(x, probe.draw(2, length, 4), slice(0, length - 1))
        if apart(probe.run(other)[:, -1:], before) <= probe.tolerance:
            return False  # nothing that is done to them would show
        if apart(probe.run(x[:, order])[:, -1:], before) > probe.tolerance:
            return False
    return True


def _from_outside(probe: Probe) -> Found:
    """Without a look inside: what outputs betray."""
    if blind(probe):
        return Found("none", "the order of earlier inputs does not matter to the last output")
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
    """How far outputs move, as a part of their size, when all positions move; None if they may not.

    By little: what many do at large positions is asked elsewhere.
    """
    x = probe.draw(2, SEEN_LENGTH, 3)
    places = torch.arange(SEEN_LENGTH).expand(2, -1)
    try:
        here, there = probe.run(x, positions=places), probe.run(x, positions=places + 5)
    except SubjectError:
        return None
    return apart(here, there) / (float(here.abs().max()) or 1.0)


def drift(probe: Probe, found: Found, dtype: torch.dtype) -> str:
    """Whether angles lose their precision far from the start, as those in half precisions do."""
    subject = probe.subject
    try:
        with in_precision(subject, dtype) as other:
            if isinstance(other, Attention):
                said = _drift_of(other)
            else:
                said = _drift_seen(Probe(other, probe.contract, probe.seed), found)
    except SubjectError:  # no such precision, or no such positions: then there is no such error
        if probe.contract.dtype == str(dtype).removeprefix("torch."):
            raise  # it was declared to stand it
        return ""
    return f"{said} in {str(dtype).removeprefix('torch.')}: angles are rounded" if said else ""


def _drift_of(subject: Attention) -> str:
    """Scores by distance at the end of a long text, against those of a short one."""
    slots = min(subject.head_width, 8)
    assert subject.heads is not None and subject.kv_heads is not None
    width, scores = subject.head_width, []
    for length in (slots + 1, FAR):
        far = torch.arange(length - 1, -1, -1)
        u, w = (normal(seed, ROWS, 1, 1, width) for seed in (31, 32))
        parts = [w * (far % 2 == parity).double()[:, None] for parity in (0, 1)]
        k = torch.cat(parts).expand(-1, subject.kv_heads, -1, -1)
        q = u.repeat(2, 1, 1, 1).expand(-1, subject.heads, length, -1)
        v = torch.zeros(2 * ROWS, subject.kv_heads, length, width, dtype=torch.float64)
        v[:, :, -slots:, :slots] = torch.eye(slots, dtype=torch.float64)
        logs = attend(subject, q, k, v)[:, :, -1, :slots].double().log()
        scores.append((logs[..., 1:] - logs[..., :-1]).nan_to_num(0, 0, 0))
    short, long = scores
    off = float((short - long).abs().max() / short.abs().max())
    return f"scores at position {FAR} differ by {off:.2g} of their size" if off > 4 * CLOSE else ""


def _drift_seen(probe: Probe, found: Found) -> str:
    """Steps from position to position must be equal, and not all 0 where they were not."""
    assert found.turned is not None
    if not probe.subject.placed:
        return _uneven(observe(probe, constant(probe, ROWS, FAR)), found, 0)
    x = constant(probe, ROWS, SEEN_LENGTH)
    for start in STARTS:
        places = (start + torch.arange(SEEN_LENGTH)).expand(ROWS, -1)
        said = _uneven(observe(probe, x, positions=places), found, start)
        if said:
            return said
    return ""


def _uneven(seen: list[Applied], found: Found, start: int) -> str:
    assert found.turned is not None
    if found.layer >= len(seen):
        return ""
    firsts, seconds = zip(*found.turned.pairs, strict=True)
    early = torch.tensor(found.turned.frequencies, dtype=torch.float64)
    for part in (seen[found.layer].q, seen[found.layer].k):
        head = part[:, 0].double()
        around = torch.complex(head[..., list(firsts)], head[..., list(seconds)])
        steps = (around[:, 1:] * around[:, :-1].conj()).sum(0).angle()[found.start :]  # [t, p]
        off = (steps - steps[:1] + math.pi).remainder(2 * math.pi) - math.pi
        worst = off.abs().amax(1)
        if float(worst.max()) > UNEVEN:
            at = start + found.start + int(worst.argmax())
            return (
                f"from position {at} to the next queries or keys turn {float(worst.max()):.2g} off"
            )
        stopped = (early > 2 * UNEVEN) & (steps.abs().amax(0) < early / 10)
        if stopped.any():
            return f"from position {start} on some pairs do not turn any more"
    return ""


@contextmanager
def in_precision(subject: Subject, dtype: torch.dtype) -> Iterator[Subject]:
    """The subject in another precision for a while; afterwards its module is as it was."""
    modules = [] if subject.module is None else list(subject.module.modules())
    kept = [(one, dict(one.__dict__), dict(one._parameters), dict(one._buffers)) for one in modules]
    try:
        for one in modules:
            for name, value in one._parameters.items():
                if value is not None and value.is_floating_point():
                    one._parameters[name] = nn.Parameter(value.to(dtype), requires_grad=False)
            for name, buffer in one._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    one._buffers[name] = buffer.to(dtype)
        yield subject.in_dtype(dtype)
    finally:
        for one, attributes, parameters, buffers in kept:
            one.__dict__.clear()  # tables made meanwhile would be in that precision
            one.__dict__.update(attributes)
            one._parameters.clear()
            one._parameters.update(parameters)
            one._buffers.clear()
            one._buffers.update(buffers)
