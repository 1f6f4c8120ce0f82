"""YaRN: rates of rotary positions for a context some times as long as the one of training.

Axes in the formulas: pair n of p turns by θₙ = base^(−n/p) from token to token, so rₙ times in the
C tokens of training; s is the factor by which the context grows.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from attnlab.config import refusal, setting, settings
from attnlab.reports.report import Plot, Series, Table
from attnlab.theory.claim import EQUAL, About, Claim, Evidence, Knob, Measure
from attnlab.theory.draw import Array, largest
from attnlab.theory.positions import frequencies

BASES = (1e4, 5e5, 1e6)
WIDTHS = (32, 64, 80, 128, 256)  # of heads
Rescale = Callable[["YarnKeepsFastPairs", float, int], Array]  # of a claim, a base, a width


def by_turns(claim: "YarnKeepsFastPairs", base: float, width: int) -> Array:
    """As the paper has it: between the ends γ is linear in how often a pair turns."""
    turns = claim.turns(base, width)
    kept = np.clip((turns - claim.slow) / (claim.fast - claim.slow), 0, 1)
    return claim.mix(base, width, kept)


def by_number(claim: "YarnKeepsFastPairs", base: float, width: int) -> Array:
    """As transformers has it: linear in the number of the pair, between two whole numbers."""

    def pair_of(turns: float) -> float:
        """The pair that turns so often, were there a pair at every fraction."""
        return width / 2 * math.log(claim.context / (2 * math.pi * turns)) / math.log(base)

    first, last = max(math.floor(pair_of(claim.fast)), 0), math.ceil(pair_of(claim.slow))
    passed = (np.arange(width // 2) - first) / (last - first)
    return claim.mix(base, width, 1 - np.clip(passed, 0, 1))


def all_divided(claim: "YarnKeepsFastPairs", base: float, width: int) -> Array:
    return claim.mix(base, width, np.zeros(width // 2))


def larger_base(claim: "YarnKeepsFastPairs", base: float, width: int) -> Array:
    """A base for which the first pair stays and the last one is divided by s."""
    return frequencies(width // 2, base * claim.factor ** (width / (width - 2)))


RESCALED: dict[str, Rescale] = {
    "by turns": by_turns,
    "by number": by_number,
    "all divided": all_divided,
    "a larger base": larger_base,
}


@settings
class YarnKeepsFastPairs(Claim):
    rates: Literal["YaRN", "all divided", "a larger base"] = setting(
        "YaRN", about="what is done to the rates"
    )
    factor: float = setting(8.0, low=1.5, high=64, about="s: how many times the context grows")
    context: int = setting(4096, low=256, high=32768, about="C: tokens of the old context")
    fast: float = setting(32.0, low=2, high=40, about="β: turns in C from which a pair is kept")
    slow: float = setting(1.0, low=0.25, high=4, about="α: turns in C up to which it is divided")

    about = About(
        statement="YaRN leaves the rates of pairs as they are that turn β times or more in the old "
        "context, and divides by the factor s those of pairs that turn α times or less: at the end "
        "of a context s times as long the angles of these are what they were at the end of the old "
        "one.",
        formula="rₙ = θₙ C/(2π),   θ′ₙ = γₙ θₙ + (1 − γₙ) θₙ/s\n"
        "γₙ = min(1, max(0, (rₙ − α) / (β − α)))\n"
        "rₙ ≥ β ⇒ θ′ₙ = θₙ,   rₙ ≤ α ⇒ θ′ₙ s C = θₙ C",
        derivation="""A pair that turns many times in C tokens has had every angle, and tells
            tokens apart that are near each other: its rate stays, so neighbours differ by the same
            angle as before. A pair that does not get round once in C tokens would come to angles
            never met in training if the context grew. Divided by s, its angle at token sC is the
            one that it had at token C.

            γ is 1 where r ≥ β and 0 where r ≤ α, so both follow by putting in. Between the ends the
            rate is a mean of θ and θ/s, and r falls with n, so γ does too: rates keep their order,
            and no two pairs change places.

            The paper makes γ linear in r. The library transformers makes it linear in the number n
            of the pair, from the last whole number at which r is β or more to the first at which it
            is α or less. The two differ between the ends and agree beyond them: both are tried.

            Dividing all rates by s changes what neighbours differ by, and so does a larger base:
            it keeps the first pair and divides the last one, with a change for all others.""",
        expected="holds",
        knob=Knob("all rates divided by s", {"rates": "all divided"}),
        remark="This is about angles alone. YaRN multiplies scores too, by (0.1 ln s + 1)², and "
        "whether a model reads a longer text well is a question for training.",
    )

    def check(self) -> None:
        if self.fast <= self.slow:
            raise refusal(self, "fast", f"it must be above slow = {self.slow}")

    def run(self) -> Evidence:
        names: list[str] = ["by turns", "by number"] if self.rates == "YaRN" else [self.rates]
        shapes = [(base, width) for base in BASES for width in WIDTHS]
        found = {name: [self._effects(name, *shape) for shape in shapes] for name in RESCALED}
        tried = np.concatenate([found[name] for name in names])
        kept, divided, outside, disorder = tried.max(axis=0).tolist()
        return Evidence(
            kind="construction",
            trials=len(tried),
            measures=[
                Measure("largest |θ′/θ − 1| where r ≥ β", kept, "=", 0),
                Measure("largest |θ′ sC/(θ C) − 1| where r ≤ α", divided, "≤", EQUAL),
                Measure("largest factor beyond those from 1/s to 1", outside, "≤", EQUAL),
                Measure("pairs that turn faster than the one before", disorder, "=", 0),
            ],
            picture=self._picture(names),
            details=[
                Table(
                    title="What is done to the rates",
                    columns=["γ, or rates", "fast pairs change by", "slow pairs miss by"],
                    rows=[[name, *np.max(found[name], axis=0)[:2].tolist()] for name in RESCALED],
                    note=f"Largest |θ′/θ − 1| where r ≥ {self.fast:g}, and |θ′s/θ − 1| where "
                    f"r ≤ {self.slow:g}; {len(shapes)} heads.",
                )
            ],
        )

    def turns(self, base: float, width: int) -> Array:
        """How often each pair turns in the old context."""
        return frequencies(width // 2, base) * self.context / (2 * np.pi)

    def mix(self, base: float, width: int, kept: Array) -> Array:
        rates = frequencies(width // 2, base)
        return kept * rates + (1 - kept) * rates / self.factor

    def _effects(self, name: str, base: float, width: int) -> list[float]:
        rates, turns = frequencies(width // 2, base), self.turns(base, width)
        after = RESCALED[name](self, base, width)
        part = after / rates
        fast, slow = part[turns >= self.fast], part[turns <= self.slow]
        return [
            largest(fast - 1) if len(fast) else 0.0,
            largest(slow * self.factor - 1) if len(slow) else 0.0,
            max(0.0, float((part - 1).max()), float((1 / self.factor - part).max())),
            float((np.diff(after) > 0).sum()),
        ]

    def _picture(self, names: list[str]) -> Plot:
        turns = self.turns(BASES[0], 128)
        rates = frequencies(64, BASES[0])
        others = [name for name in RESCALED if name not in names]
        return Plot(
            title=f"By what rates are multiplied, s = {self.factor:g}",
            x=f"turns in {self.context:,} tokens",
            y="θ′/θ",
            log_x=True,
            series=[
                Series(
                    name=name,
                    x=turns.tolist(),
                    y=(RESCALED[name](self, BASES[0], 128) / rates).tolist(),
                )
                for name in (*names, *others)
            ],
            note=f"Base {BASES[0]:,.0f}, 64 pairs; α = {self.slow:g}, β = {self.fast:g}.",
        )
