"""Numbers that are the same but for float32, in which one side may have computed them.

A difference of that size is no cause. It is undone like one, and told as rounding.
"""

from collections.abc import Callable, Iterable, Sequence

FLOAT32 = 2e-6  # of a number: what float32 rounds off, in powers of a base too
DIGITS = (6, 10, 17)  # that tell any two numbers apart in the end


def alike(one: float, other: float) -> bool:
    return abs(one - other) <= FLOAT32 * max(abs(one), abs(other))


def all_alike(ones: Sequence[float], others: Sequence[float]) -> bool:
    return len(ones) == len(others) and all(map(alike, ones, others))


def listed(values: Iterable[float], digits: int = 6) -> str:
    return ", ".join(f"{one:.{digits}g}" for one in dict.fromkeys(values)) or "none"


def told_apart(
    one: Iterable[float],
    other: Iterable[float],
    show: Callable[[Iterable[float], int], str] = listed,
) -> tuple[str, str]:
    """Two texts, with as many digits as it takes for them to read differently."""
    ones, others = list(one), list(other)
    texts = [(show(ones, digits), show(others, digits)) for digits in DIGITS]
    return next(((a, b) for a, b in texts if a != b), texts[0])
