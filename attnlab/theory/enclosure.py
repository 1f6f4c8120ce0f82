"""Certified arithmetic about 2π: whole numbers around it, and how near to its multiples they come.

Nothing here is rounded without being accounted for.
"""

import math
from fractions import Fraction

UNIT = 1 << 160  # numbers are counted in parts of 1/UNIT; 160 bits are far more than are needed


def two_pi() -> tuple[int, int]:
    """Whole numbers around 2π · UNIT, by Machin's π = 16 arctan(1/5) − 4 arctan(1/239)."""
    (low5, high5), (low239, high239) = _arctan_of_inverse(5), _arctan_of_inverse(239)
    return 2 * (16 * low5 - 4 * high239), 2 * (16 * high5 - 4 * low239)


def _arctan_of_inverse(x: int) -> tuple[int, int]:
    """Whole numbers around arctan(1/x) · UNIT, from 1/x − 1/(3x³) + 1/(5x⁵) − …

    Cutting off fractions loses less than 1 in every term; so do the terms that are left out
    together, since they alternate and fall, and the first of them is below 1.
    """
    power = UNIT // x
    terms: list[int] = []
    while power:
        terms.append(power // (2 * len(terms) + 1))
        power //= x * x
    middle = sum(terms[0::2]) - sum(terms[1::2])
    return middle - len(terms) - 1, middle + len(terms) + 1


def nearest(longest: int) -> list[tuple[int, int, Fraction, Fraction]]:
    """Offsets nearer to a multiple of 2π than all before: offset, turns, and bounds of how near.

    No offset up to `longest` is nearer than the last lower bound. With 2π · UNIT between tau and
    tau + width, and k turns taken off, the rest is too large by at most k · width: the margin.
    """
    tau, end = two_pi()
    rest, turns, best, unit, records = 0, 0, tau, UNIT, []
    for offset in range(1, longest + 1):
        rest += unit
        if rest >= tau:
            rest -= tau
            turns += 1
        distance = rest if 2 * rest < tau else tau - rest
        if distance < best:
            best = distance
            records.append((offset, turns + (2 * rest >= tau), distance))
    margin = (turns + 1) * (end - tau)
    return [(n, k, Fraction(d - margin, UNIT), Fraction(d + margin, UNIT)) for n, k, d in records]


def chord(low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    """Bounds of 2 sin(d/2) for those of d ≤ 1: sin x is from x − x³/6 to x − x³/6 + x⁵/120."""
    return low - low**3 / 24, high - high**3 / 24 + high**5 / 1920


def below(number: Fraction) -> float:
    """A float that is not above the number, so that a certified lower bound stays one."""
    return math.nextafter(float(number), -math.inf)
