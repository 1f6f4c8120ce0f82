"""Attention weights add up to 1 over the keys, and are exactly 0 where nothing may be attended to.

Axes: b batch, h query heads, t time, d head width; query i, key j.

Other sums have their uses (a sink, no softmax at all) and are reported; a sum of 1 over anything
but the keys is a softmax over the wrong axis. Sums below 1 need a sink that can be measured: a key
that takes the rest, and the same share of it in every text.
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

SMALL = 2.0**-9  # of scores that a cap leaves as they are
HALF = 2**-8  # what a sum of weights in a half precision is off by
AXES = {"queries": -2, "heads": 1, "rows of the batch": 0}  # over which sums of 1 are a mistake


def fails(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    *,
    causal: bool,
    block: int,
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
        if heads is not None and exponentials(run, x, heads) and not has_sink(run, x, heads, block):
            text = f"weights are exponentials of scores, but rows add up to {off:.4g}"
            return True, f"{text}, without a sink", seen
        if float(weights.min()) >= 0 and float(sums.max()) < 1 + HALF:
            known = shows_sink(one) if heads is None else has_sink(run, x, heads, block)
            if not known:
                below = f"rows add up to less than 1 (down to {off:.4g})"
                raise CannotTell(f"{below}, and no sink takes the rest")
    return False, "weights add up to 1 over no other axis", seen


def padded_fails(
    run: Tool,
    draw: Tool,
    heads: Shape,
    *,
    side: str,
    real: int,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Behind a padding mask: the weights of real queries are 0 at padding, and add up to 1."""
    x = draw(batch, length, seed)
    padding = torch.arange(length).expand(batch, -1) >= real

    def run_masked(text: Tensor) -> Tensor:
        return run(text, padding[:, : text.shape[1]])

    if not linear_in_values(run_masked, x, heads, tolerance):
        raise CannotTell("outputs are no weighted sums of the values")
    weights = observe(run_masked, x, heads, None)[0].weights[:, :, :real]
    sums, eps = weights.double().sum(-1), torch.finfo(weights.dtype).eps
    off = float(sums.flatten()[(sums - 1).abs().argmax()])
    read = float(weights[..., real:].abs().max())
    if read > 16 * eps:
        return True, f"behind a padding mask a real query gives {read:.2g} to a key of padding", off
    alone = observe(run, x[:, :real], heads, None)[0].weights.double().sum(-1)
    size = float((sums - alone).abs().max())  # whatever they add up to without padding
    text = f"behind a padding mask rows add up to {off:.4g}"
    return size > HALF and abs(off - 1) > HALF, f"{text}, and without padding they do not", off


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

    def logarithms(size: float) -> Tensor:
        text = x.clone()
        text[..., : h * d] *= size
        found = observe(run, text, heads, None)[0].weights.double().log()
        return found - found.diagonal(dim1=-2, dim2=-1)[..., None]

    # a cap bends scores, but not small ones; where weights are no exponentials, they bend at once
    for size, small in ((1.0, False), (SMALL, True))[: 2 if x.dtype is torch.float64 else 1]:
        zero, once, twice = (logarithms(one) for one in (0.0, size, 2 * size))
        once, twice = once - zero, twice - zero
        known = once.isfinite() & twice.isfinite()
        if not bool(known.any()) or not bool((once[known] != 0).any()):
            return False
        off, most = float((twice - 2 * once)[known].abs().max()), float(once[known].abs().max())
        if off <= (
            SMALL / 8 * most if small else 100 * torch.finfo(x.dtype).eps ** 0.5 * (1 + most)
        ):
            return True
    return False


def has_sink(run: Tool, x: Tensor, heads: Shape, block: int) -> bool:
    """Whether what is missing from 1 goes to a key of constant score: a sink.

    With a first key of 0, what is missing is the same multiple of its weight in any text, and in a
    shorter one: zeros that fill up a block are no sink.
    """
    h, g, d = heads
    text = x.clone()
    text[:, 0, h * d : (h + g) * d] = 0
    shares = []
    for one in (text, text[:, : x.shape[1] - block]):
        weights = observe(run, one, heads, None)[0].weights.double()
        shares.append((1 - weights.sum(-1)) / weights[..., 0])
    whole, part = shares
    same = constant_shares(whole[0], whole[1], x.dtype)
    return same and constant_shares(whole[..., : part.shape[-1]], part, x.dtype)


def constant_shares(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    off = (one - other).abs() / torch.maximum(one.abs(), other.abs())
    off = off[off.isfinite()]
    return bool(off.numel()) and float(off.max()) < 100 * torch.finfo(dtype).eps ** 0.5


def shows_sink(one: Any) -> bool:
    """The same of a module, from the products that were watched.

    log weight = scale * q·k - log of the row's sum; what is missing from 1 is the sink over that
    sum, so with the scale that fits best it gives the sink: one number for each head.
    """
    weights, scores = one.weights.double(), one.q.double() @ one.k.double().mT
    logs = weights.log() - weights.diagonal(dim1=-2, dim2=-1).log()[..., None]
    steps = scores - scores.diagonal(dim1=-2, dim2=-1)[..., None]
    known = logs.isfinite() & (steps != 0)
    if not bool(known.any()):
        return False
    scale = (logs[known] * steps[known]).sum() / steps[known].square().sum()
    close = 100 * torch.finfo(one.weights.dtype).eps ** 0.5
    if float((logs - scale * steps)[known].abs().max()) > close:
        return False
    sinks = (1 - weights.sum(-1)).log() - weights.diagonal(dim1=-2, dim2=-1).log()
    sinks += scale * scores.diagonal(dim1=-2, dim2=-1)
    spread = sinks.amax((0, 2)) - sinks.amin((0, 2))
    return bool((spread < close * (1 + sinks.abs().amax())).all())


class Weights(Property):
    """Sums of rows, weights of later keys and of padding.

    Needs: a look inside.
    Fails: a sum of 1 over another axis, a weight on a masked key, or exponentials that add up to
      less than 1 without a sink. Other sums below 1 without one cannot be told.
    """

    name = "weights"

    def cases(self, probe: Probe) -> Iterator[Case]:
        subject, block = probe.subject, probe.subject.block
        length = 23 if isinstance(subject, Attention) else SEEN_LENGTH
        if block > 1:  # whole blocks, as what fills one up would be read
            length = block if subject.parts else 2 * block
        causal = bool(probe.contract.causal)
        yield self.case(probe, fails, causal=causal, block=block, batch=2, length=length)
        if isinstance(subject, Attention) and subject.pads and block == 1:
            how = {"side": "right", "real": 8, "batch": 2, "length": 13}
            yield self.case(probe, padded_fails, "behind a padding mask", **how)

    def on_failure(self, probe: Probe, case: Case, result: Result) -> Finding | None:
        _, sentence, measured = result
        worst = measured[0] if isinstance(measured, list) else measured
        return self.finding("fail", sentence, measured=worst, example=case)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        (_, (_, _, (worst, lowest, most, divided))) = tried[0]
        if not divided:
            detail = f"exponentials in a row add up to {most:.4g}; their division is not seen"
            return self.finding("cannot tell", detail, measured=worst)
        if abs(worst - 1) < HALF:
            detail = f"rows add up to 1 over the keys (worst {worst:.9g})"
        elif most < 1 + HALF and lowest >= 0:
            detail = f"rows add up to less than 1 (down to {worst:.4g}): a sink takes the rest"
        else:
            detail = f"rows add up to other than 1 ({worst:.4g}), as without a softmax"
        if lowest < -HALF:
            detail += f"; there are weights below 0, down to {lowest:.3g}"
        return self.finding("pass", detail, measured=worst)
