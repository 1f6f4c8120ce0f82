"""How weights follow from scores of any size: straight or bent by a soft cap; what a sink takes.

Axes: b batch, h query heads, t time; query i, key j.

Products of queries and keys are made smaller and larger on the way (`observe` with a gain), and
logarithms of weights are compared: with products of 0 they are the bias, with small ones the scores
as they are before any bending, with large ones the scores as they are bent. Of a function the
scores of small queries are measured, every second key being 0; of a module they are the products
that were seen, times a factor for each row.

It is printed into scripts, so it takes torch and functions that do the same.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.probe.identify import NO_SOFTMAX, Applied, observe
from attnlab.audit.repro.prelude import CannotTell, Shape, Tool

LEAST = 5  # positions
TOO_SHORT = "of so few positions too few scores can be compared"
SCORES = (4.0, 16.0, 64.0, 256.0)  # the largest in their texts: caps in use are between 5 and 100
CAPS = (0.05, 2e5)  # that are looked for
FINE = 2.0**-6  # a measured bend may be off by this part of the scores


@dataclass(frozen=True)
class Bent:
    """One application of attention, with products of several sizes.

    Scores are against a key of 0, or of a product of 0; what is not known is NaN.
    """

    scores: Tensor  # [b, h, t, t] as they are before they are bent
    bias: Tensor  # [b, h, t, t] against that of the query's own key
    silent: Tensor  # [b, h, t, t] weights where all products are 0
    larger: tuple[tuple[float, Tensor], ...]  # gain, and the weights with it
    slopes: Tensor  # [b, h, t] between products and scores; NaN of a function
    later: float  # the most that a query gives to a key after it, at any size; 0 if that is allowed
    fine: float  # what measured scores are exact to, as a part

    @cached_property
    def curves(self) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
        """By gain: scores of keys and of one they are compared with, and what the weights say of
        the difference, all [n]."""
        found = []
        silent = logarithms(self.silent)
        for gain, weights in self.larger:
            moved = logarithms(weights) - silent
            # against the likeliest key, whose weight is known best
            known = moved.isfinite() & self.scores.isfinite()
            best = torch.where(known, weights, -1.0).argmax(-1, keepdim=True)
            known &= known.gather(-1, best)
            parts = (gain * self.scores, moved)
            score, seen = (one[known] for one in parts)
            other, beside = (one.gather(-1, best).expand_as(one)[known] for one in parts)
            if score.numel():
                found.append((score, other, seen - beside))
        if not found:
            raise CannotTell("with larger products no two weights are seen")
        return tuple(found)

    @property
    def largest(self) -> float:
        """Of the scores that were tried."""
        return max(float(torch.cat(one[:2]).abs().max()) for one in self.curves)

    @property
    def biased(self) -> bool:
        """Whether keys have scores where all products are 0."""
        known = self.bias[self.bias.isfinite()]
        return known.numel() == 0 or float(known.abs().max()) > self.fine

    def off(self, cap: float) -> float:
        """How far weights are from those of a cap, as a part of the scores; inf for none at all."""
        worst = 0.0
        for score, other, seen in self.curves:
            one, two = bend(score, cap), bend(other, cap)
            size = 1 + min(float(torch.cat((score, other)).abs().max()), cap)
            worst = max(worst, float((seen - (one - two)).abs().max()) / size)
        return worst


def bend(score: Tensor, cap: float) -> Tensor:
    return score if cap == math.inf else cap * torch.tanh(score / cap)


def logarithms(weights: Tensor) -> Tensor:
    """Of weights that are known well; others are as if masked."""
    tiny = 1e-30 if weights.dtype is not torch.float64 or narrow(weights) else 1e-280
    return torch.where(weights > tiny, weights.double().log(), -math.inf)


def narrow(weights: Tensor) -> bool:
    """Whether they are numbers of float32 in float64."""
    return torch.equal(weights.float().double(), weights.double())


def bent_scores(
    run: Tool,
    x: Tensor,
    heads: Shape | None,
    watch: Any,
    causal: bool,
    plain: list[Applied],
    layer: int = 0,
) -> Bent:
    """Of an application of attention in `plain` runs, from runs with products of several sizes.

    Of causal code the weights of later keys are kept apart: a mask that is no longer one shows.
    """
    if x.shape[1] < LEAST:
        raise CannotTell(TOO_SHORT)
    text, later = x.clone(), [0.0]

    def at_gain(gain: float) -> Applied:
        found = observe(run, text, heads, watch, gain=gain, at=plain[layer].numbers)
        if layer >= len(found):
            raise CannotTell("attention is applied another number of times")
        weights = found[layer].weights
        if causal:
            later.append(float(weights.triu(1).max()))
            weights = weights.tril()
        return replace(found[layer], weights=weights)

    if heads is not None:  # every second key is 0: there scores are 0, whatever turns them
        h, g, d = heads
        text[:, 1::2, h * d : (h + g) * d] = 0
    silent = at_gain(0.0)
    if not bool(silent.weights.isfinite().all()):
        raise CannotTell("with products of 0 weights are no finite numbers")
    coarse = narrow(silent.weights) or silent.weights.dtype is not torch.float64
    eps = torch.finfo(torch.float32 if coarse else torch.float64).eps
    products = (
        silent.q.double()
        @ silent.k.double().repeat_interleave(silent.q.shape[1] // silent.k.shape[1], dim=1).mT
    )
    size = float(products.abs().max())
    if not 0 < size < math.inf:
        raise CannotTell("products of queries and keys are 0 or infinite")
    # small enough for a straight line, large enough to be told from rounding
    step = eps**0.25 / size
    once, twice = (logarithms(at_gain(gain).weights) for gain in (step, 2 * step))
    zero = logarithms(silent.weights)
    moved = (8 * (once - zero) - (twice - zero)) / (6 * step)  # without what a bend adds at first
    bias = zero - zero.diagonal(dim1=-2, dim2=-1)[..., None]
    fine = 64 * eps**0.5
    if heads is not None:
        scores, slopes = by_zero_key(moved), moved.new_full(moved.shape[:3], math.nan)
        check_zero_keys(run, text, heads, fine)
    else:
        scores, slopes = by_products(moved, products, fine * size)
    known = scores[scores.isfinite()]
    most = float(known.abs().max()) if known.numel() else 0.0
    if most <= fine * size:
        raise CannotTell("weights do not depend on products of queries and keys")
    larger = []
    for wanted in SCORES:
        gain = wanted / most
        larger.append((gain, at_gain(gain).weights.double()))
    bias = torch.where(bias.isfinite(), bias, torch.nan)
    seen_later = max(later) if max(later) > 16 * torch.finfo(silent.weights.dtype).eps else 0.0
    return Bent(scores, bias, silent.weights.double(), tuple(larger), slopes, seen_later, fine)


def by_zero_key(moved: Tensor) -> Tensor:
    """Scores [b, h, t, t] of a function, against a key of 0: the own one, or that before."""
    t = moved.shape[-1]
    beside = torch.arange(t) - 1 + torch.arange(t) % 2
    against = moved.gather(-1, beside.clamp(min=0).expand(*moved.shape[:-2], t)[..., None])
    against[..., 0, :] = math.nan  # the first query sees no key of 0
    scores = moved - against
    return torch.where(scores.isfinite(), scores, torch.nan)


def check_zero_keys(run: Tool, x: Tensor, heads: Shape, fine: float) -> None:
    """Whether keys of 0 have scores of 0, with which others can be compared."""
    h, g, d = heads
    blank = x.clone()
    blank[..., h * d : (h + g) * d] = 0
    found = [observe(run, blank, heads, None, gain=gain)[0].weights for gain in (0.0, 1.0)]
    shown = [logarithms(one) for one in found]
    off = (shown[1] - shown[0]).tril()  # which keys are masked is not asked here
    off = off[off.isfinite()]
    if not off.numel() or float(off.abs().max()) > fine:
        raise CannotTell(NO_SOFTMAX)


def by_products(moved: Tensor, products: Tensor, close: float) -> tuple[Tensor, Tensor]:
    """Scores [b, h, t, t] of a module: its products times a factor for each row, [b, h, t]."""
    known = moved.isfinite()
    if not bool((known.sum(-1) > 1).any()):
        raise CannotTell("no query attends to two keys")

    def centred(part: Tensor) -> Tensor:
        mean = torch.where(known, part, 0).sum(-1, keepdim=True) / known.sum(-1, keepdim=True)
        return torch.where(known, part - mean, 0)

    y, z = centred(moved), centred(products)
    slopes = (y * z).sum(-1) / z.square().sum(-1)
    if float((y - slopes.nan_to_num(0)[..., None] * z).abs().max()) > close:
        raise CannotTell(NO_SOFTMAX)
    seen = slopes[..., None] * products
    return torch.where(known & seen.isfinite(), seen, torch.nan), slopes


@dataclass(frozen=True)
class Cap:
    """A soft cap, or that there is none; with what else may be said of it."""

    value: float | None  # None: scores are as they were, up to `tried`
    error: float = 0.0
    tried: float = 0.0
    beyond: float = 0.0  # a cap that is higher could not be seen


def find_cap(bent: Bent) -> Cap | None:
    """The cap that weights show; None if they are bent in another way."""
    limit = 8 * bent.fine
    tried = bent.largest
    if bent.off(math.inf) <= limit:
        # a cap bends a score by score³ / 3 cap²
        beyond = math.sqrt(tried**3 / (3 * limit * (1 + tried)))
        return Cap(None, tried=tried, beyond=beyond)
    cap = best_cap(bent)
    off = bent.off(cap)
    if off > limit or cap > CAPS[1] / 2:
        return None
    # how far another cap may be until the weights are no longer these
    apart = max(bent.off(cap * (1 + FINE)) - off, off, 1e-300)
    return Cap(cap, cap * FINE * max(off, 1e-16) / apart, tried)


def best_cap(bent: Bent) -> float:
    """The cap that comes nearest, by halving the grid that is looked through."""
    low, high = (math.log(one) for one in CAPS)
    for _ in range(12):
        grid = torch.linspace(low, high, 33, dtype=torch.float64).exp().tolist()
        found = min(range(33), key=lambda n: bent.off(grid[n]))
        low, high = math.log(grid[max(found - 2, 0)]), math.log(grid[min(found + 2, 32)])
    return grid[found]


@dataclass(frozen=True)
class Sink:
    """What takes the weight that keys do not: scores [h] of a key that is not there."""

    scores: tuple[float, ...]
    error: float
    spread: tuple[float, float] | None = None  # of what changes with the text: no sink, then
    biased: bool = False  # scores are against that of the own key, which may have a bias


def missing(weights: Tensor) -> bool:
    """Whether rows add up to other than 1."""
    return float((weights.double().sum(-1) - 1).abs().max()) > unseen(weights)


def unseen(weights: Tensor) -> float:
    """What a sum of a row may be off by."""
    coarse = weights.dtype is not torch.float64 or narrow(weights)
    return 64 * torch.finfo(torch.float32 if coarse else torch.float64).eps * weights.shape[-1]


def find_sink(bent: Bent, cap: float) -> Sink | None:
    """The sink of each head; None if weights add up to 1."""
    if not missing(bent.silent):
        return None
    least = unseen(bent.silent)
    shown = []
    for gain, weights in ((0.0, bent.silent), bent.larger[0]):
        rest, score = 1 - weights.sum(-1), gain * bent.scores
        score = torch.where(score.isnan() & (gain == 0), 0.0, score)
        own = bend(score, cap).diagonal(dim1=-2, dim2=-1)
        logs = logarithms(weights).diagonal(dim1=-2, dim2=-1)
        known = (rest > least) & logs.isfinite() & own.isfinite()
        shown.append(torch.where(known, rest.clamp(min=1e-300).log() - logs + own, torch.nan))
    every = torch.stack(shown, -1).transpose(0, 1).flatten(1)  # [h, …]
    known = ~every.isnan()
    if not bool(known.any(1).all()):
        raise CannotTell("rows add up to other than 1, and no key takes the rest")
    first = [float(row[some].median()) for row, some in zip(every, known, strict=True)]
    spread = (every - torch.tensor(first)[:, None].double()).abs()[known].max()
    # of what is missing from 1, the last bits are those of 1
    error = max(float(spread), least)
    lies = (
        (float(every[known].min()), float(every[known].max())) if error > 1e3 * bent.fine else None
    )
    return Sink(tuple(first), error, lies, bent.biased)


def exact(value: float, error: float) -> str:
    """A number with the digits that its error leaves."""
    digits = 12 if error <= 0 else max(0, math.floor(-math.log10(error)))
    return f"{round(value, min(digits, 12)) + 0.0:.12g}"
