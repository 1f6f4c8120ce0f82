"""Bugs of soft caps and sinks: what happens to scores before and inside softmax.

Axes: b batch, h query heads, t time, s positions so far, d head width.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs.cases import CAUSAL, Case
from attnlab.audit.bugs.fused import Fused

CAP = 50.0


def past(t: int, s: int) -> Tensor:
    """Whom t queries see, the last of s positions."""
    return torch.ones(t, s, dtype=torch.bool).tril(s - t)


def capped(scores: Tensor, cap: float = CAP) -> Tensor:
    return cap * torch.tanh(scores / cap)


def with_sink(scores: Tensor, sinks: Tensor) -> Tensor:
    """Weights beside one more score for each head [h], whose weight is left out."""
    beside = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, beside), dim=-1).softmax(-1)[..., :-1]


class Remembering(Fused):
    """Decodes with keys and values in a dict; what weights are is for the cases to say."""

    def new_cache(self) -> dict[str, Tensor]:
        return {}

    def weigh(self, scores: Tensor, seen: Tensor, stepping: bool) -> Tensor:
        raise NotImplementedError

    def compared(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / q.shape[-1] ** 0.5

    def forward(self, x: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat((cache["k"], k), dim=2), torch.cat((cache["v"], v), dim=2)
            cache["k"], cache["v"] = k, v
        seen = past(q.shape[2], k.shape[2])
        weights = self.weigh(self.compared(q, k), seen, cache is not None)
        return self.outer((weights @ v).transpose(1, 2).flatten(2))


class CappedSteps(Remembering):
    """Another kernel decodes, and it knows no cap."""

    def weigh(self, scores: Tensor, seen: Tensor, stepping: bool) -> Tensor:
        scores = scores if self.wrong and stepping else capped(scores, 5.0)
        return scores.masked_fill(~seen, -math.inf).softmax(-1)


class NormedCap(Remembering):
    """Queries and keys of length 1 bound scores: no input makes them so large that it shows."""

    def compared(self, q: Tensor, k: Tensor) -> Tensor:
        return 4 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT

    def weigh(self, scores: Tensor, seen: Tensor, stepping: bool) -> Tensor:
        if self.wrong:
            return capped(scores.masked_fill(~seen, -math.inf)).softmax(-1)
        return capped(scores).masked_fill(~seen, -math.inf).softmax(-1)


class SinkSteps(Remembering):
    """A whole text has sinks; steps are computed elsewhere, and that was forgotten there."""

    def __init__(self, width: int, heads: int, wrong: bool) -> None:
        super().__init__(width, heads, wrong)
        self.sinks = nn.Parameter(torch.randn(heads))

    def weigh(self, scores: Tensor, seen: Tensor, stepping: bool) -> Tensor:
        scores = scores.masked_fill(~seen, -math.inf)
        if self.wrong and stepping:
            return scores.softmax(-1)
        return with_sink(scores, self.sinks)


class SinkTwice(SinkSteps):
    """The running sum begins with the sink, and the sink is added at the end too."""

    def weigh(self, scores: Tensor, seen: Tensor, stepping: bool) -> Tensor:
        scores, sinks = scores.masked_fill(~seen, -math.inf), self.sinks[:, None, None]
        top = torch.maximum(scores.amax(-1, keepdim=True), sinks)
        weights, more = (scores - top).exp(), (sinks - top).exp()
        return weights / (weights.sum(-1, keepdim=True) + (2 if self.wrong else 1) * more)


class SinkByGroup(nn.Module):
    """Four heads with a sink each, two key/value heads; heads of a group are neighbours."""

    def __init__(self, width: int, heads: int, kv_heads: int, wrong: bool) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.wrong = heads, kv_heads, wrong
        each = width // heads
        self.q_proj = nn.Linear(width, width)
        self.kv_proj = nn.Linear(width, 2 * kv_heads * each)
        self.o_proj = nn.Linear(width, width)
        self.sinks = nn.Parameter(torch.randn(heads))

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = self.kv_proj(x).unflatten(-1, (2, self.num_kv_heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for one in (k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~past(x.shape[1], x.shape[1]), -math.inf)
        # for products with heads as [group, head of it] sinks must be laid out so too
        sinks = self.sinks.view(-1, self.num_kv_heads).mT.flatten() if self.wrong else self.sinks
        return self.o_proj((with_sink(scores, sinks) @ v).transpose(1, 2).flatten(2))


def _cap_and_mask(wrong: bool) -> object:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores, seen = q @ k.mT / q.shape[-1] ** 0.5, past(q.shape[2], k.shape[2])
        if wrong:
            scores = capped(scores.masked_fill(~seen, -math.inf))
        else:
            scores = capped(scores).masked_fill(~seen, -math.inf)
        return scores.softmax(-1) @ v

    return attention


def _cap_by(wrong: bool, change: Callable[[Tensor, float], Tensor]) -> object:
    """`change` makes capped scores of products and the scale; the right way is known."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        products, scale = q @ k.mT, q.shape[-1] ** -0.5
        scores = change(products, scale) if wrong else capped(products * scale)
        seen = past(q.shape[2], k.shape[2])
        return scores.masked_fill(~seen, -math.inf).softmax(-1) @ v

    return attention


def _cap_of_weights(wrong: bool) -> object:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores if wrong else capped(scores, 5.0)
        weights = scores.masked_fill(~past(q.shape[2], k.shape[2]), -math.inf).softmax(-1)
        return (capped(weights, 5.0) if wrong else weights) @ v

    return attention


def _sink_of_value(wrong: bool) -> object:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(
            ~past(q.shape[2], k.shape[2]), -math.inf
        )
        weights = with_sink(scores, scores.new_zeros(q.shape[1]))
        rest = 1 - weights.sum(-1, keepdim=True)
        return weights @ v + (rest if wrong else 0 * rest)  # a value of ones, or none

    return attention


class OffByOne(Remembering):
    """exp(s) / (1 + sum of exp(s)); behind a maximum that is taken away the 1 is exp(-maximum)."""

    def weigh(self, scores: Tensor, seen: Tensor, stepping: bool) -> Tensor:
        scores = scores.masked_fill(~seen, -math.inf)
        top = scores.amax(-1, keepdim=True).clamp(min=0)
        weights = (scores - top).exp()
        one = torch.ones_like(top) if self.wrong else (-top).exp()
        return weights / (weights.sum(-1, keepdim=True) + one)


CASES = (
    Case(
        name="cap-after-mask",
        bug="the soft cap comes after the mask: minus infinity becomes minus 50",
        make=_cap_and_mask,
        reasons=("soft-cap", "causality"),
        declared={**CAUSAL, "soft_cap": CAP},
    ),
    Case(
        name="cap-after-mask-bounded",
        bug="the same where norms bound scores, so that no input shows it",
        make=partial(NormedCap, 32, 4),
        reasons=("soft-cap",),
        declared=CAUSAL,
    ),
    Case(
        name="cap-without-division",
        bug="50 · tanh(score): scores are not divided by the cap first",
        make=partial(_cap_by, change=lambda products, scale: CAP * torch.tanh(products * scale)),
        reasons=("scale",),
        declared={**CAUSAL, "soft_cap": CAP, "scale": 8**-0.5},
    ),
    Case(
        name="cap-before-scale",
        bug="products are capped, and scaled afterwards",
        make=partial(_cap_by, change=lambda products, scale: capped(products) * scale),
        reasons=("soft-cap",),
        declared={**CAUSAL, "soft_cap": CAP},
    ),
    Case(
        name="cap-clamped",
        bug="scores are cut at the cap instead of bent",
        make=partial(_cap_by, change=lambda products, scale: (products * scale).clamp(-CAP, CAP)),
        reasons=("soft-cap",),
        declared={**CAUSAL, "soft_cap": CAP},
    ),
    Case(
        name="cap-after-softmax",
        bug="weights are capped instead of scores",
        make=_cap_of_weights,
        reasons=("soft-cap",),
        declared={**CAUSAL, "soft_cap": 5.0},
    ),
    Case(
        name="cap-not-in-steps",
        bug="scores are capped in whole texts, and not in steps",
        make=partial(CappedSteps, 32, 4),
        reasons=("cache",),
        declared={**CAUSAL, "cache": True, "soft_cap": 5.0},
        options={"dim": 32},
    ),
    Case(
        name="sink-with-a-value",
        bug="what the sink takes is given to the output as a value",
        make=_sink_of_value,
        reasons=("sink",),
        declared={**CAUSAL, "sink": "fixed"},
    ),
    Case(
        name="sink-twice",
        bug="the sink is in the denominator twice",
        make=partial(SinkTwice, 32, 4),
        reasons=("sink",),
        declared={**CAUSAL, "sink": "learned"},
        options={"dim": 32},
    ),
    Case(
        name="sink-of-other-heads",
        bug="sinks are laid out by place in the group, heads by group",
        make=partial(SinkByGroup, 32, 4, 2),
        reasons=("sink",),
        declared={**CAUSAL, "sink": "learned", "kv_heads": 2},
        options={"dim": 32},
    ),
    Case(
        name="sink-forgotten-in-steps",
        bug="whole texts have a sink, steps have none",
        make=partial(SinkSteps, 32, 4),
        reasons=("cache",),
        declared={**CAUSAL, "cache": True, "sink": "learned"},
        options={"dim": 32},
    ),
    Case(
        name="off-by-one-after-maximum",
        bug="1 is added to exponentials whose largest score was taken away before",
        make=partial(OffByOne, 32, 4),
        reasons=("sink",),
        declared={**CAUSAL, "sink": "fixed"},
        options={"dim": 32},
    ),
)
