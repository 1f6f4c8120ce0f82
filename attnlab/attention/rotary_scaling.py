"""Rotary scaling: slower rotations, so that a model reads past the context it was trained on.

Axes: p pairs of coordinates.

A scaling changes how far each pair turns from one position to the next, its rate, once and for all:
no rate depends on the length of the text, since keys in a KV cache were turned when they were
written. So NTK-aware scaling here has a fixed base, not one that grows with the text ("dynamic"),
and LongRoPE takes its long factors by the context of the model, not by the length of the text.

Cost: none. The tables of cosines and sines hold other numbers.
"""

import math
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.config import refusal, setting, settings

SLOWER = "rates are divided by it"
FACTOR = "how many times longer than the original context a text may be"
ORIGINAL = "context of the training before; rates are scaled by how often a pair turns in it"
NONE_ORIGINAL = "the model's context / factor"
TURNS = "it counts turns in the original context"
LENGTHENS = "cos and sin are multiplied by it"


class Frequencies(NamedTuple):
    """How a rotation turns."""

    rates: Float[Tensor, " p"]  # radians from one position to the next
    length: float = 1.0  # cos and sin are multiplied by it, so scores by its square


@runtime_checkable
class ScalingSettings(Protocol):
    """The settings of a scaling: what `scaling` in the registry names."""

    def apply(self, rates: Float[Tensor, " p"], base: float, context: int) -> Frequencies:
        """In place of the rates base^(-n / pairs); `context` is that of the model."""
        ...


@settings
class NoScaling:
    def apply(self, rates: Float[Tensor, " p"], base: float, context: int) -> Frequencies:
        return Frequencies(rates)


@settings
class Linear:
    """Every rate / factor: positions are interpolated (Chen et al. 2023)."""

    factor: float = setting(4.0, low=1, because=SLOWER, about=FACTOR)

    def apply(self, rates: Float[Tensor, " p"], base: float, context: int) -> Frequencies:
        return Frequencies(rates / self.factor)


@settings
class Ntk:
    """The base · factor^(p / (p - 1)): the first rate stays, and the last is divided by factor.

    "Dynamic" scaling is this one with factor · length / context - (factor - 1) as its factor.
    """

    factor: float = setting(4.0, low=1, because=SLOWER, about=FACTOR)

    def apply(self, rates: Float[Tensor, " p"], base: float, context: int) -> Frequencies:
        pairs = len(rates)
        if pairs < 2:
            raise ValueError(
                "positions.scaling=ntk keeps the rate of the first pair and divides that of the "
                "last, and there is one pair; use wider heads, or scaling=linear"
            )
        shares = torch.arange(pairs, device=rates.device, dtype=rates.dtype) / (pairs - 1)
        return Frequencies(rates * self.factor**-shares)


@settings
class Yarn:
    """Rates of slow pairs / factor, those of fast pairs as they are, a ramp over pairs between.

    Cosines and sines are longer by attention_factor, which makes up for more keys (Peng et al.
    2023; gpt-oss with truncate=false).
    """

    factor: float = setting(4.0, low=1, because=SLOWER, about=FACTOR)
    original: int | None = setting(None, low=1, none=NONE_ORIGINAL, about=ORIGINAL)
    fast: float = setting(
        32.0, above=0, because=TURNS, about="beta_fast: pairs that turn more often are not scaled"
    )
    slow: float = setting(
        1.0, above=0, because=TURNS, about="beta_slow: pairs that turn less often are fully scaled"
    )
    attention_factor: float | None = setting(
        None,
        above=0,
        because=LENGTHENS,
        none="0.1 · ln(factor) + 1",
        about="factor of cos and sin; scores grow by its square",
    )
    truncate: bool = setting(
        True, about="the ramp begins and ends at whole pairs, as in the first YaRN models"
    )

    def check(self) -> None:
        if self.fast <= self.slow:
            raise refusal(self, "fast", f"use more than scaling.slow, {self.slow}")

    def apply(self, rates: Float[Tensor, " p"], base: float, context: int) -> Frequencies:
        if base <= 1:
            raise ValueError(
                f"positions.base {base} with scaling=yarn: rates must fall from pair to pair; use "
                "a base of more than 1, such as 10000.0"
            )
        original = context / self.factor if self.original is None else self.original
        pairs = len(rates)
        # the pair, as a fraction, that turns so many times in the original context
        first, last = (
            pairs * math.log(original / (2 * math.pi * turns)) / math.log(base)
            for turns in (self.fast, self.slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        # the published code ends the ramp at the last coordinate, not at the last pair
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        if last <= first:
            last = first + 1e-3  # a step
        index = torch.arange(pairs, device=rates.device, dtype=rates.dtype)
        scaled = ((index - first) / (last - first)).clamp(0, 1)
        length = self.attention_factor or 0.1 * math.log(self.factor) + 1
        return Frequencies(rates * (1 - scaled) + rates / self.factor * scaled, length)


@settings
class Llama3:
    """Rates of slow pairs / factor, those of fast pairs as they are, a ramp over turns between."""

    factor: float = setting(8.0, low=1, because=SLOWER, about=FACTOR)
    original: int | None = setting(None, low=1, none=NONE_ORIGINAL, about=ORIGINAL)
    low: float = setting(
        1.0,
        above=0,
        because=TURNS,
        about="low_freq_factor: pairs that turn less often are fully scaled",
    )
    high: float = setting(
        4.0,
        above=0,
        because=TURNS,
        about="high_freq_factor: pairs that turn more often are not scaled",
    )

    def check(self) -> None:
        if self.high <= self.low:
            raise refusal(self, "high", f"use more than scaling.low, {self.low}")

    def apply(self, rates: Float[Tensor, " p"], base: float, context: int) -> Frequencies:
        original = context / self.factor if self.original is None else self.original
        turns = original * rates / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return Frequencies(rates * kept + rates / self.factor * (1 - kept))


@settings
class LongRope:
    """Each rate / a factor of its own, found by search (Ding et al. 2024; Phi-3).

    The long factors count if the model's context is longer than the original one.
    """

    short: tuple[float, ...] = setting(
        (1.0,), above=0, because=SLOWER, about="a factor for each pair, or one for all"
    )
    long: tuple[float, ...] = setting(
        (1.0,), above=0, because=SLOWER, about="the same where the context is longer"
    )
    original: int | None = setting(
        None, low=2, none="the model's context", about="context of the training before"
    )
    attention_factor: float | None = setting(
        None,
        above=0,
        because=LENGTHENS,
        none="√(1 + ln(context / original) / ln(original))",
        about="factor of cos and sin; scores grow by its square",
    )

    def check(self) -> None:
        if self.original is None and set(self.long) != {1.0}:
            raise refusal(
                self, "original", "long factors count beyond it; give the context that was trained"
            )

    def apply(self, rates: Float[Tensor, " p"], base: float, context: int) -> Frequencies:
        for name in ("short", "long"):
            given = len(getattr(self, name))
            if given not in (1, len(rates)):
                raise ValueError(
                    f"positions.scaling.{name} has {given} factors, and {len(rates)} pairs turn; "
                    "give one for each pair, or one for all"
                )
        original = context if self.original is None else self.original
        factors = self.long if context > original else self.short
        length = self.attention_factor
        if length is None:
            longer = max(context / original, 1.0)
            length = math.sqrt(1 + math.log(longer) / math.log(max(original, 2)))
        scaled = rates / torch.tensor(factors, device=rates.device, dtype=rates.dtype)
        return Frequencies(scaled, length)


@settings
class Proportional:
    """The slowest pairs do not turn, so they compare content alone (p-RoPE, Barbero et al. 2024).

    Unlike positions.fraction, which leaves out coordinates, this leaves the other rates as they
    are.
    """

    turning: float = setting(
        0.25, above=0, high=1, because="it is a part of the pairs", about="fraction that turns"
    )
    factor: float = setting(1.0, low=1, because=SLOWER, about="divides the rates of the others")

    def apply(self, rates: Float[Tensor, " p"], base: float, context: int) -> Frequencies:
        count = int(self.turning * len(rates))
        if count < 1:
            raise ValueError(
                f"positions.scaling.turning {self.turning} of {len(rates)} pairs is less than one; "
                "use wider heads or a larger fraction"
            )
        turns = torch.arange(len(rates), device=rates.device) < count
        return Frequencies(rates / self.factor * turns)
