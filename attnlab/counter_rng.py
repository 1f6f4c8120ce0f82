"""Randomness as a function: numbers that depend on (seed, purpose, counters) and on nothing else.

There is no generator to carry along, so anything can be computed again, in any order, by any
process: the same person, the same shuffle, the same span, the same dropout at the same step.
"""

import hashlib
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

_STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: counters that differ by one land far apart


def bits(seed: int, purpose: str, *counters: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each element of the counters, which broadcast."""
    state = np.asarray(_start(seed, purpose), dtype=np.uint64)
    with np.errstate(over="ignore"):  # wrapping around is the arithmetic that is meant
        for counter in counters:
            words = np.asarray(counter, dtype=np.int64).astype(np.uint64)
            mixed = _mix(np.asarray((words + np.uint64(1)) * np.uint64(_STEP)))
            state = _mix(np.asarray(state ^ mixed))
    return state


def number(seed: int, purpose: str, *counters: int) -> int:
    """One random whole number from 0 to 2^63 - 1, such as a seed for something else."""
    return int(bits(seed, purpose, *counters)) >> 1


def uniform(seed: int, purpose: str, *counters: ArrayLike) -> NDArray[np.float64]:
    """Numbers from 0 to less than 1, one for each element of the counters."""
    return np.asarray((bits(seed, purpose, *counters) >> np.uint64(11)) * 2.0**-53, np.float64)


def normal(seed: int, purpose: str, *counters: ArrayLike) -> NDArray[np.float64]:
    """Standard normal numbers, one for each element of the counters, by Box and Muller."""
    radius = np.sqrt(-2 * np.log1p(-uniform(seed, f"{purpose}, radius", *counters)))
    angle = uniform(seed, f"{purpose}, angle", *counters)
    return np.asarray(radius * np.cos(2 * np.pi * angle), np.float64)


def permutation(count: int, seed: int, purpose: str, *counters: int) -> NDArray[np.int64]:
    """The numbers 0 … count - 1 in a random order."""
    keys = bits(seed, purpose, *counters, np.arange(count))
    return np.argsort(keys, kind="stable")


@cache
def _start(seed: int, purpose: str) -> int:
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
