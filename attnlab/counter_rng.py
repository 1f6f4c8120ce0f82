"""Randomness as a function: numbers that depend on (seed, purpose, counters) and on nothing else.

There is no generator to carry along, so anything can be computed again, in any order, by any
process: the same person, the same shuffle, the same span, the same dropout at the same step.
"""

import hashlib
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDS = 6  # of the network under `shuffled`; from four on, no few values tell it from chance
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


def shuffled(
    places: NDArray[np.int64], count: int, seed: int, purpose: str, *counters: int
) -> NDArray[np.int64]:
    """What stands at these places of a random order of 0 … count - 1, without the rest of it.

    A Feistel network permutes the numbers of an even number of bits, at most 4 · count of them.
    What it takes past the end goes through it again until it is inside, which permutes what is
    inside. Cost: O(places) time and memory, whatever the count.
    """
    half = np.uint64(max(1, (max(count - 1, 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    keys = bits(seed, purpose, *counters, np.arange(ROUNDS))

    def permuted(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = numbers >> half, numbers & mask
        for key in keys:
            left, right = right, left ^ (_mix(right * np.uint64(_STEP) ^ key) & mask)
        return np.asarray(left << half | right)

    found = np.asarray(places, dtype=np.int64).astype(np.uint64)
    assert not len(found) or int(found.max()) < count, "a place past the end"
    with np.errstate(over="ignore"):  # as in `bits`
        found = permuted(found)
        while (outside := found >= np.uint64(count)).any():
            found[outside] = permuted(found[outside])
    return found.astype(np.int64)


@cache
def _start(seed: int, purpose: str) -> int:
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
