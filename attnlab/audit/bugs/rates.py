"""Bugs of rotations that are slower for longer texts: linear scaling, YaRN, its temperature.

Axes: b batch, h heads, t time, s positions so far, d head width, p pairs of coordinates.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.audit.bugs.cases import CAUSAL, Case
from attnlab.audit.bugs.fused import Fused
from attnlab.audit.bugs.scores import past

BASE = 10000.0
FACTOR = 8.0
ROTARY = {**CAUSAL, "positions": "rotary"}


def plain_rates(pairs: int) -> Tensor:
    return BASE ** (-torch.arange(pairs, dtype=torch.float64) / pairs)


def yarn_rates(pairs: int, reversed_ramp: bool = False) -> Tensor:
    """Pairs that turn more than 32 times in 4,096 positions as they are, less than once slower."""
    rates, index = plain_rates(pairs), torch.arange(pairs)
    first, last = (
        pairs * math.log(4096 / (2 * math.pi * turns)) / math.log(BASE) for turns in (32, 1)
    )
    slower = ((index - math.floor(first)) / (math.ceil(last) - math.floor(first))).clamp(0, 1)
    slower = 1 - slower if reversed_ramp else slower
    return rates * (1 - slower) + rates / FACTOR * slower


def turn(x: Tensor, rates: Tensor, start: int = 0, length: float = 1.0) -> Tensor:
    """Halves paired; cosines and sines are longer by a temperature."""
    angle = torch.arange(start, start + x.shape[-2])[:, None] * rates
    cos, sin = ((part * length).to(x.dtype) for part in (angle.cos(), angle.sin()))
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Scaled(Fused):
    """Linear scaling: `wrong` is for the cases to say."""

    bias = False

    def rates_of(self, pairs: int, queries: bool, stepping: bool) -> Tensor:
        return plain_rates(pairs) / FACTOR

    temperatures = (1.0, 1.0)  # of queries and of keys

    def new_cache(self) -> dict[str, Tensor]:
        return {}

    def forward(self, x: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        start = cache["k"].shape[2] if cache else 0
        pairs, stepping = q.shape[-1] // 2, cache is not None
        q = turn(q, self.rates_of(pairs, True, stepping), start, self.temperatures[0])
        k = turn(k, self.rates_of(pairs, False, stepping), start, self.temperatures[1])
        if cache is not None:
            if cache:
                k, v = torch.cat((cache["k"], k), dim=2), torch.cat((cache["v"], v), dim=2)
            cache["k"], cache["v"] = k, v
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=past(q.shape[2], k.shape[2]))
        return self.outer(y.transpose(1, 2).flatten(2))


class PlainSteps(Scaled):
    def rates_of(self, pairs: int, queries: bool, stepping: bool) -> Tensor:
        rates = plain_rates(pairs)
        return rates if self.wrong and stepping else rates / FACTOR


class ScaledQueries(Scaled):
    def rates_of(self, pairs: int, queries: bool, stepping: bool) -> Tensor:
        rates = plain_rates(pairs)
        return rates if self.wrong and not queries else rates / FACTOR


class Multiplied(Scaled):
    def rates_of(self, pairs: int, queries: bool, stepping: bool) -> Tensor:
        return plain_rates(pairs) * (FACTOR if self.wrong else 1 / FACTOR)


class Unscaled(Scaled):
    def rates_of(self, pairs: int, queries: bool, stepping: bool) -> Tensor:
        return plain_rates(pairs) / (1.0 if self.wrong else FACTOR)


class Ramp(Scaled):
    def rates_of(self, pairs: int, queries: bool, stepping: bool) -> Tensor:
        return yarn_rates(pairs, self.wrong)


class Temperature(Scaled):
    """YaRN's is on queries and on keys."""

    def __init__(self, width: int, heads: int, wrong: bool) -> None:
        super().__init__(width, heads, wrong)
        longer = 0.1 * math.log(FACTOR) + 1
        self.temperatures = (longer, 1.0 if wrong else longer)

    def rates_of(self, pairs: int, queries: bool, stepping: bool) -> Tensor:
        return yarn_rates(pairs)


CASES = (
    Case(
        name="scaled-in-whole-texts-only",
        bug="rotations are scaled in whole texts, and not in steps",
        make=partial(PlainSteps, 32, 4),
        reasons=("cache",),
        declared={**ROTARY, "cache": True},
        options={"dim": 32},
    ),
    Case(
        name="scaled-queries-only",
        bug="rotations of queries are scaled, those of keys are not",
        make=partial(ScaledQueries, 32, 4),
        reasons=("positions",),
        declared=ROTARY,
        options={"dim": 32},
    ),
    Case(
        name="rates-multiplied",
        bug="rates are multiplied by the factor instead of divided",
        make=partial(Multiplied, 32, 4),
        reasons=("positions",),
        declared={**ROTARY, "rope_scaling": "linear", "rope_factor": FACTOR},
        options={"dim": 32},
    ),
    Case(
        name="scaling-ignored",
        bug="a scaling is in the settings, and the rotations do not know it",
        make=partial(Unscaled, 32, 4),
        reasons=("positions",),
        declared={**ROTARY, "rope_scaling": "linear", "rope_factor": FACTOR},
        options={"dim": 32},
    ),
    Case(
        name="yarn-turned-round",
        bug="fast pairs are made slower, and slow ones are left as they are",
        make=partial(Ramp, 64, 2),
        reasons=("positions",),
        declared={**ROTARY, "rope_scaling": "yarn", "rope_factor": FACTOR},
        options={"dim": 64, "heads": 2},
    ),
    Case(
        name="temperature-on-one-side",
        bug="YaRN's temperature is on queries, and not on keys",
        make=partial(Temperature, 64, 2),
        reasons=("scale",),
        declared={
            **ROTARY,
            "rope_scaling": "yarn",
            "scale": 32**-0.5 * (0.1 * math.log(FACTOR) + 1) ** 2,
        },
        options={"dim": 64, "heads": 2},
    ),
)
