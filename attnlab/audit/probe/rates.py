"""What the rates of rotations are: those of one base, or of one base and some of them slower.

Axes: p pairs of coordinates, from the fastest to the slowest.

A base gives the rates 1, base^(-1/p), base^(-2/p) … Scalings for longer texts change them: linear
ones divide all of them, YaRN and Llama 3 the slow ones only, with a ramp between. YaRN's ramp is
even from pair to pair, that of Llama 3 even in turns, so three pairs on it tell which it is. A
larger base ("NTK-aware") cannot be told from a base that was chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

NEAR = 1e-3  # rates that agree so well, as a part: tables may be in float32
ON_RAMP = 5e-3  # how near to its ramp a pair is; the whole is 1
OFF_RAMP = 4 * ON_RAMP
SMALLEST = 1e-200  # of rates: no base in use is so large
ENOUGH = 3  # pairs on a ramp that tell which it is


@dataclass(frozen=True)
class Rates:
    """How rates differ from those of a base. `slower` is the largest factor between them."""

    base: float
    slower: float = 1.0
    ramp: str = ""  # "linear", "yarn" or "llama3"; empty: rates alone do not tell
    kept: int = 0  # first pairs that turn as the base has it
    scaled: int = 0  # last pairs that turn slower by the whole factor; 0: that is not seen
    between: int = 0
    still: int = 0  # last pairs that do not turn, though by the base they would

    @property
    def scaling(self) -> bool:
        """Whether they are other than the base alone has it."""
        return self.slower > 1 or self.still > 0

    @property
    def text(self) -> str:
        parts = [f"base {short(self.base)}"]
        if self.ramp == "linear":
            parts.append(f"all rates divided by {short(self.slower)}, as linear scaling does")
        elif self.slower > 1:
            first = f"the first {self.kept} pairs as the base has it"
            if self.scaled:
                parts.append(f"{first}, the last {self.scaled} slower by {short(self.slower)}")
                parts.append(self._ramp())
            else:
                parts.append(f"{first}, others slower by up to {short(self.slower)}")
        if self.still:
            parts.append(f"the last {self.still} pairs do not turn")
        return ", ".join(parts)

    def _ramp(self) -> str:
        names = {"yarn": "on YaRN's ramp", "llama3": "on the ramp of Llama 3"}
        if self.ramp:
            return f"and the {self.between} between {names[self.ramp]}"
        return f"and {self.between} between, too few to tell which ramp"


def short(number: float) -> str:
    """Rates in float32 give a number to five digits or so."""
    near = float(f"{number:.3g}")
    return f"{near if abs(number / near - 1) < NEAR else number:.6g}"


def read_rates(rates: Sequence[float], count: int, limit: float = 0.0) -> Rates | None:
    """Of `count` pairs the first so many are seen to turn; slower than `limit` is not seen.

    None where they follow no base, or are too few to say.
    """
    seen = len(rates)
    if seen < 2 or min(rates) <= 0:
        return None
    fast = abs(rates[0] - 1) < NEAR
    step = (rates[-1] / rates[0]) ** (1 / (seen - 1))
    if step**count < SMALLEST:
        return None
    if step < 1 and all(near(one, rates[0] * step**n) for n, one in enumerate(rates)):
        base, slowest = step**-count, rates[0] * step**seen
        still = count - seen if slowest > 100 * limit else 0
        if fast:
            return Rates(base, still=still)
        if seen < ENOUGH or rates[0] > 1:
            return None
        return Rates(base, 1 / rates[0], "linear", scaled=seen, still=still)
    return read_ramp(rates, count) if fast else None


def read_ramp(rates: Sequence[float], count: int) -> Rates | None:
    """Rates that begin as a base has it and end slower."""
    seen = len(rates)
    step = rates[1] / rates[0]
    if not SMALLEST < step**count < 1:
        return None
    parts = [one / step**n for n, one in enumerate(rates)]  # 1: as the base has it
    kept = next((n for n, one in enumerate(parts) if not near(one, 1)), seen)
    falling = all(two <= one * (1 + NEAR) for one, two in pairwise(parts))
    if not falling or kept == seen or parts[-1] > 1 - NEAR:
        return None
    base, slower = step**-count, 1 / parts[-1]
    scaled = next((n for n, one in enumerate(reversed(parts)) if not near(one * slower, 1)), 0)
    between = seen - kept - scaled
    if scaled < 2:  # of one pair alone nobody knows whether a slower one would be slower still
        # and that the first are the base's is known from three
        return Rates(base, slower, kept=kept) if kept >= ENOUGH else None
    shares = [(1 - one) / (1 - 1 / slower) for one in parts[kept : seen - scaled]]
    places = list(range(kept, seen - scaled))
    turns = [step**n for n in places]
    ramp = ""
    if between >= ENOUGH:
        off = {"yarn": off_line(places, shares), "llama3": off_line(turns, shares)}
        best, other = sorted(off, key=lambda name: off[name])
        ramp = best if off[best] < ON_RAMP and off[other] > OFF_RAMP else ""
    return Rates(base, slower, ramp, kept, scaled, between)


def off_line(at: Sequence[float], values: Sequence[float]) -> float:
    """How far values are from the straight line that fits best."""
    here, mean = sum(at) / len(at), sum(values) / len(values)
    rise = sum((x - here) * (y - mean) for x, y in zip(at, values, strict=True))
    rise /= sum((x - here) ** 2 for x in at)
    return max(abs(y - mean - rise * (x - here)) for x, y in zip(at, values, strict=True))


def near(one: float, other: float) -> bool:
    return abs(one / other - 1) < NEAR


def other_rates(
    rates: Sequence[float],
    count: int,
    limit: float,
    kind: str | None,
    factor: float | None,
    base: float | None,
) -> tuple[str, str]:
    """How rates are not those of a scaling that is declared, or why that cannot be told."""
    found = read_rates(rates, count, limit)
    first = 1 / (factor or 1) if kind == "linear" else 1
    known = kind in ("none", "ntk", "yarn") or (kind == "linear" and factor is not None)
    if known and rates and not abs(rates[0] / first - 1) < 1e-2:
        what = f"{kind} scaling" if kind != "none" else "no scaling"
        text = f"the fastest pair turns by {rates[0]:.4g} a position"
        return f"{text}, and by {short(first)} with {what}", ""
    if found is None:
        return "", "rates follow no base, or are too few to tell a scaling by"
    if kind == "ntk":
        if base is None or factor is None:
            return "", "a larger base shows against rope_base=… and rope_factor=… only"
        base *= factor ** (count / max(count - 1, 1))
        kind, factor = "none", None
    seen = {"linear": "linear", "yarn": "yarn", "llama3": "llama3"}.get(found.ramp, "")
    if found.slower == 1:
        seen = "none"
    text = f"pairs turn by {found.text}"
    declared = "no scaling" if kind == "none" else f"{kind} scaling"
    if base is not None and not abs(found.base / base - 1) < 1e-2:
        return f"{text}, and a base of {short(base)} is declared", ""
    if seen and kind is not None and seen != kind:
        return f"{text}, and {declared} is declared", ""
    if factor is not None and (found.scaled or seen == "none"):
        if not abs(found.slower / factor - 1) < 1e-2:
            return f"{text}, and a factor of {short(factor)} is declared", ""
    elif factor is not None:
        return "", f"{text}; the whole factor is not seen"
    if kind in ("linear", "none") and not seen:
        return f"{text}, and {declared} is declared", ""
    if kind is not None and not seen:
        return "", text
    return "", ""
