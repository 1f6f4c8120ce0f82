"""Codes of sines and cosines: whether two positions can have the same one.

Axes in the formulas: positions t, width d; pair n of d/2 turns by tθₙ with θₙ = base^(−2n/d).
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch

from attnlab.attention.positions import Shape, Sinusoidal
from attnlab.config import setting, settings
from attnlab.reports.report import Plot, Series, Table
from attnlab.theory.claim import (
    EQUAL,
    About,
    Answer,
    Claim,
    Evidence,
    Judgement,
    Knob,
    Mark,
    Measure,
    mark,
)
from attnlab.theory.enclosure import UNIT, below, chord, nearest, two_pi

VISIBLE = 0.01  # two values that differ by less are one point of a picture
# a certified bound, (offsets, distances of pairs, of codes), …
Found = tuple[float, tuple[list[int], list[float], list[float]], Table, list[Measure]]


@settings
class SinusoidUnique(Claim):
    longest: int = setting(
        10**6, low=1, high=10**7, about="last position; the first is 0", metadata={"live": 500_000}
    )
    periods: tuple[int, ...] = setting(
        (),
        low=1,
        high=10**9,
        because="each is a whole number of positions",
        about="whole periods; empty: the usual frequencies",
    )

    about = About(
        statement="No two whole positions have the same code of sines and cosines.",
        formula="‖Φ(t₁) − Φ(t₂)‖ ≥ |e^(it₁) − e^(it₂)| = 2 |sin((t₁ − t₂)/2)| > 0\n"
        "d = min |n − 2πk|   ⇒   2 |sin(n/2)| = 2 sin(d/2) ≥ d − d³/24",
        derivation="""The first pair of every code is (sin t, cos t): its frequency is
            base⁰ = 1. Two codes can only be equal if these pairs are, so if t₁ − t₂ = 2πk. With
            k ≠ 0 this would make π = (t₁ − t₂)/(2k) a fraction, and π is irrational; so k = 0 and
            t₁ = t₂. The other frequencies are not needed.

            That leaves how nearly. The distance of two first pairs depends on the offset
            n = t₁ − t₂ only: it is 2 sin(d/2), where d ≤ π is how far n is from the nearest
            multiple of 2π. Here π is enclosed by whole numbers (Machin's formula in units of 2⁻¹⁶⁰,
            with all that is cut off), all n are reduced one by one in whole numbers, and the
            smallest d gives a lower bound with sin x ≥ x − x³/6. There is no rounding in it.

            With frequencies 2π/P and whole P, codes do repeat when n is a multiple of all P.""",
        expected="holds",
        questions=("A4 2(b)ii",),
        answers=[
            Answer(
                document="000",
                part="2(b)ii",
                line=94,
                quote="在同一列里面，如果句子长度够长是可以出现重复编码的 … 存在相同编码的情况的",
                conclusion="two positions can have the same code",
                reason="in a picture of the code, a single column comes back to an earlier value",
            ),
            Answer(
                document="001",
                part="2(b)ii",
                line=174,
                quote="由于 π 是无理数，两个整数之差永远不可能等于 2π 的非零整数倍",
                conclusion="no two positions have the same code",
                reason="the first pair alone would need a difference of 2πk, and π is irrational",
            ),
            Answer(
                document="003",
                part="2(b)ii",
                line=43,
                quote="denom so large (i.e. $\\gg T=1$ ), values never $\\gg 2\\pi$ , so safe.",
                conclusion="no two positions have the same code",
                reason="the denominators are so large that no angle goes far above 2π",
            ),
        ],
        knob=Knob("frequencies 2π/6, 2π/10 and 2π/15", {"periods": (6, 10, 15)}),
        remark="003 is right for a wrong reason: the first denominator is 1, and that angle passes "
        "2π at position 7. The nearest misses are fractions near 2π: 710/113, then "
        "103,993/16,551, then 312,689/49,766; there the other pairs are far off, so a column that "
        "comes back, as 000 saw it in a picture, is not yet a code that does.",
    )

    def run(self) -> Evidence:
        found = self._whole_periods() if self.periods else self._usual()
        bound, (offsets, pairs, codes), table, checks = found
        first = Measure("distance of any two codes, certified to be at least", bound, ">", 0)
        return Evidence(
            kind="exact",
            trials=self.longest,
            measures=[first, *checks],
            judgements={
                "000 2(b)ii": Judgement(mark(bound == 0), self._column_returns(pairs, codes)),
                "001 2(b)ii": Judgement(mark(bound > 0), mark(bound > 0)),
                # far above: ten turns; the first denominator is 1, so the angle is the position
                "003 2(b)ii": Judgement(
                    mark(bound > 0), mark(self.longest * UNIT <= 10 * two_pi()[0])
                ),
            },
            picture=Plot(
                title="Distance of codes" if self.periods else "The nearest misses of a repeat",
                x="offset t₁ − t₂",
                y="distance of the codes",
                log_x=not self.periods,
                log_y=not self.periods,
                series=[
                    Series(name="first pair", x=offsets, y=pairs),
                    Series(name="whole code", x=offsets, y=codes),
                ],
            ),
            details=[table],
        )

    def _column_returns(self, pairs: Sequence[float], codes: Sequence[float]) -> Mark:
        """Whether a pair returns to nearly the same value; complete if the whole code does."""
        there = [code for pair, code in zip(pairs, codes, strict=True) if pair <= VISIBLE]
        return mark(bool(there), complete=any(code <= VISIBLE for code in there))

    def _usual(self) -> Found:
        records = nearest(self.longest)
        offsets = [offset for offset, *_ in records]
        pairs, codes = self._module(2, offsets), self._module(64, offsets)
        least, most = chord(*records[-1][2:])
        outside = max(float(least) - pairs[-1], pairs[-1] - float(most), 0.0)
        table = Table(
            title=f"Offsets up to {self.longest:,} nearest to multiples of 2π",
            columns=["offset", "turns", "off by", "first pair, at least", "our code of width 64"],
            rows=[
                (offset, turns, float(low), below(chord(low, high)[0]), code)
                for (offset, turns, low, high), code in zip(records, codes, strict=True)
            ],
            note="The first angle passes 2π at 7." if self.longest * UNIT > two_pi()[1] else "",
        )
        check = Measure("our module's distance, outside certified bounds", outside, "≤", EQUAL)
        return below(least), (offsets, pairs, codes), table, [check]

    def _module(self, width: int, offsets: Sequence[int]) -> list[float]:
        """Distances of our module's position vectors from that of position 0."""
        scheme = Sinusoidal().build(Shape(width=width, heads=1, head_width=width, context=1))
        empty = torch.zeros(1, len(offsets) + 1, width, dtype=torch.float64)
        first, *others = scheme.add_to(empty, torch.tensor([[0, *offsets]]))[0]
        return [float((other - first).norm()) for other in others]

    def _whole_periods(self) -> Found:
        offsets, multiple = np.arange(1, self.longest + 1), math.lcm(*self.periods)
        same = np.logical_and.reduce([offsets % period == 0 for period in self.periods])
        repeat = int(offsets[same][0]) if same.any() else None
        # n mod P = r ≠ 0 for some P: that pair is 2 sin(πr/P) ≥ 2 sin(π/P) ≥ 4/P away (P ≥ 2)
        bound = 0.0 if repeat else below(Fraction(4, max(self.periods)))
        shown = offsets[: min(2 * (repeat or 50), 200)]
        apart = np.array([2 * np.abs(np.sin(np.pi * shown / period)) for period in self.periods])
        distances = shown.tolist(), apart[0].tolist(), np.linalg.norm(apart, axis=0).tolist()
        table = Table(
            title=f"Codes are equal where all remainders are 0: every {multiple:,} positions",
            columns=["offset", *(f"mod {period}" for period in self.periods)],
            rows=[
                (offset, *(offset % period for period in self.periods))
                for offset in sorted({*self.periods, multiple})
            ],
        )
        return bound, distances, table, []
