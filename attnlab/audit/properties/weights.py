"""Attention weights add up to 1 over the keys, and are exactly 0 where nothing may be attended to.

Axes: b batch, h query heads, t time, d head width; query i, key j.

Other sums have their uses (a sink, no softmax at all) and are reported; a sum of 1 over anything
but the keys is a softmax over the wrong axis.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.contract import Finding
from attnlab.audit.probe.identify import SEEN_LENGTH, observe
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import CannotTell, Result, Shape, Tool
from attnlab.audit.subject.base import Attention

HALF = 2**-8  # what a sum of weights in a half precision is off by
AXES = {"queries": -2, "heads": 1, "rows of the batch": 0}  # over which sums of 1 are a mistake


def fails(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    *,
    causal: bool,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Weights are numbers, 0 after the query where causal, and add up to 1 over no other axis."""
    x = draw(batch, length, seed)
    if heads is not None and not linear_in_values(run, x, heads, tolerance):
        raise CannotTell("outputs are no weighted sums of the values")
    worst, lowest, most, seen, divided = 1.0, 0.0, 0.0, [1.0], True
    for one in observe(run, x, heads, watch):
        weights = one.weights.double()
        sums = weights.sum(-1)
        off = float(sums.flatten()[(sums - 1).abs().argmax()])
        worst = worst if abs(off - 1) <= abs(worst - 1) else off
        lowest, most = min(lowest, float(weights.min())), max(most, float(sums.max()))
        # exponentials against the largest of their row: a sum of more than 1 is divided by later
        divided &= bool((weights.amax(-1) != 1).any()) or most < 1 + HALF
        seen = [worst, lowest, most, divided]
        if not bool(weights.isfinite().all()):
            return True, "there are weights that are no finite numbers", seen
        future, eps = weights.triu(1).abs(), torch.finfo(one.weights.dtype).eps
        if causal and float(future.max()) > 16 * eps:
            _, head, i, j = (future == future.max()).nonzero()[0].tolist()
            text = f"query {i} of head {head} gives {float(future.max()):.2g} to key {j}, which it"
            text += " must not see: a weight that is masked is exactly 0"
            return True, text, seen
        if abs(off - 1) < HALF:
            continue
        for what, axis in AXES.items():
            total = weights.sum(axis)[(weights != 0).sum(axis) > 0]
            ones = bool(((total - 1).abs() < HALF).all()) and total.numel() > 0
            if weights.shape[axis] > 1 and ones:
                return True, f"weights add up to 1 over the {what}, not over the keys", seen
        one_sign = float(weights.min()) >= 0 or float(weights.max()) <= 0
        if float(sums.max() - sums.min()) < HALF and one_sign:
            text = f"rows add up to {off:.4g} everywhere: something multiplies them after softmax"
            return True, text, seen
        if heads is not None and exponentials(run, x, heads) and not has_sink(run, x, heads):
            text = f"weights are exponentials of scores, but rows add up to {off:.4g}"
            return True, text, seen
    return False, "weights add up to 1 over no other axis", seen


def linear_in_values(run: Tool, x: Tensor, heads: Shape, tolerance: float) -> bool:
    """Whether outputs are weights times values, so that unit vectors show the weights."""
    h, g, d = heads
    x, value = x.clone(), x[..., -d:]
    x[..., (h + g) * d :] = value.repeat(1, 1, g)  # one for all heads: which is read is for heads
    weights = observe(run, x, heads, None)[0].weights.double()
    wanted = weights @ value[:, None].double()
    off = (run(x).unflatten(-1, (h, d)).transpose(1, 2).double() - wanted).abs()
    return bool((off <= tolerance * (1 + float(value.abs().max()))).all())


def exponentials(run: Tool, x: Tensor, heads: Shape) -> bool:
    """Whether logarithms of weights, against those of the own key, grow in step with the query."""
    h, _, d = heads
    logs = []
    for size in (0.0, 1.0, 2.0):
        text = x.clone()
        text[..., : h * d] *= size
        found = observe(run, text, heads, None)[0].weights.double().log()
        logs.append(found - found.diagonal(dim1=-2, dim2=-1)[..., None])
    once, twice = logs[1] - logs[0], logs[2] - logs[0]
    known = once.isfinite() & twice.isfinite()
    if not bool(known.any()) or not bool((once[known] != 0).any()):
        return False
    off, most = float((twice - 2 * once)[known].abs().max()), float(once[known].abs().max())
    return off <= 100 * torch.finfo(x.dtype).eps ** 0.5 * (1 + most)


def has_sink(run: Tool, x: Tensor, heads: Shape) -> bool:
    """Whether what is missing from 1 goes to a key of constant score: a sink.

    With a first key of 0, what is missing is the same multiple of its weight in any text.
    """
    h, g, d = heads
    text = x.clone()
    text[:, 0, h * d : (h + g) * d] = 0
    weights = observe(run, text, heads, None)[0].weights.double()
    missing = (1 - weights.sum(-1)) / weights[..., 0]
    off = (missing[0] - missing[1]).abs() / missing.abs().amax(0)
    off = off[off.isfinite()]
    return bool(off.numel()) and float(off.max()) < 100 * torch.finfo(x.dtype).eps ** 0.5


class Weights(Property):
    """Sums of rows, weights of later keys.

    Needs: a look inside.
    Fails: a sum of 1 over another axis, or a weight on a masked key.
    """

    name = "weights"

    def cases(self, probe: Probe) -> Iterator[Case]:
        length = 23 if isinstance(probe.subject, Attention) else SEEN_LENGTH
        causal = bool(probe.contract.causal)
        yield self.case(probe, fails, causal=causal, batch=2, length=length)

    def on_failure(self, probe: Probe, case: Case, result: Result) -> Finding | None:
        _, sentence, measured = result
        return self.finding("fail", sentence, measured=measured[0], example=case)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        (_, (_, _, (worst, lowest, most, divided))) = tried[0]
        if not divided:
            detail = f"exponentials in a row add up to {most:.4g}; their division is not seen"
            return self.finding("cannot tell", detail, measured=worst)
        if abs(worst - 1) < HALF:
            detail = f"rows add up to 1 over the keys (worst {worst:.9g})"
        elif most < 1 + HALF and lowest >= 0:
            detail = f"rows add up to less than 1 (down to {worst:.4g}), as beside a sink"
        else:
            detail = f"rows add up to other than 1 ({worst:.4g}), as without a softmax"
        if lowest < -HALF:
            detail += f"; there are weights below 0, down to {lowest:.3g}"
        return self.finding("pass", detail, measured=worst)
