"""Batches: number n is a pure function of (seed, n), whatever was computed before it.

Axes: b rows, t time (the context).

A source has `count` samples in an epoch. Sample number n of a training belongs to epoch n // count
and is item n % count of that epoch's permutation. Batches follow each other without a gap, so one
may hold the end of an epoch and the beginning of the next.

The permutation of an epoch is a table of 8 bytes a sample, kept while the epoch lasts. A source
that is too large for that says by `arrange` what stands at a place without one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from attnlab import counter_rng

IGNORE = -100  # a target without a loss; what torch's cross-entropy skips


@dataclass(frozen=True)
class Batch:
    tokens: Int64[Tensor, "b t"]
    targets: Int64[Tensor, "b t"]  # the token after each, or IGNORE
    segments: Int64[Tensor, "b t"] | None = None  # the number of its document, if they are apart

    @property
    def options(self) -> dict[str, Tensor]:
        """What the model is given besides the tokens."""
        return {} if self.segments is None else {"segments": self.segments}

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The same change of every tensor, such as its place or its length."""
        segments = None if self.segments is None else change(self.segments)
        return Batch(change(self.tokens), change(self.targets), segments)


class Source(ABC):
    """Samples to train on and to validate with."""

    count: int  # samples in an epoch
    tokens: int  # tokens of text in an epoch
    validation_count: int  # samples of validation; 0 when there is none
    answers: bool = False  # whether the targets of validation are answers, right only as a whole

    @abstractmethod
    def batch(self, epochs: Int64[np.ndarray, " b"], indices: Int64[np.ndarray, " b"]) -> Batch: ...

    @abstractmethod
    def validation_rows(
        self, indices: Int64[np.ndarray, " b"]
    ) -> tuple[Int64[np.ndarray, "b t"], Int64[np.ndarray, "b t"]]:
        """Tokens and targets of these samples of validation."""

    def validation_batch(self, indices: Int64[np.ndarray, " b"]) -> Batch:
        return as_batch(*self.validation_rows(indices))

    def validation(self, size: int, rows: int | None = None) -> Iterator[Batch]:
        """Validation in order, `size` rows at a time; the last batch may have fewer.

        `rows`: so many of them, evenly spread and always the same; None: all.
        """
        if size < 1:
            raise ValueError(f"size is {size}; a batch has 1 or more rows")
        count = self.validation_count if rows is None else min(rows, self.validation_count)
        for start in range(0, count, size):
            chosen = np.arange(start, min(start + size, count))
            yield self.validation_batch(chosen * self.validation_count // count)

    def arrange(
        self, places: Int64[np.ndarray, " b"], seed: int, epoch: int
    ) -> Int64[np.ndarray, " b"]:
        """Which samples stand at these places of an epoch."""
        return _order(self.count, seed, epoch)[places]


def as_batch(
    tokens: Int64[np.ndarray, "b t"],
    targets: Int64[np.ndarray, "b t"],
    segments: Int64[np.ndarray, "b t"] | None = None,
) -> Batch:
    """A copy: what the caller does with it changes no other batch."""
    numbers = None if segments is None else torch.from_numpy(segments.copy())
    return Batch(torch.from_numpy(tokens.copy()), torch.from_numpy(targets.copy()), numbers)


def rows_of(
    source: Source, *, seed: int, step: int, size: int
) -> tuple[Int64[np.ndarray, " {size}"], Int64[np.ndarray, " {size}"]]:
    """Epoch and index of every row of the global batch of a step."""
    count = source.count
    if count < 1:
        raise ValueError("the source has no samples; it needs 1 or more")
    numbers = step * size + np.arange(size)
    epochs, places = np.divmod(numbers, count)
    indices = np.empty_like(numbers)
    for epoch in np.unique(epochs).tolist():
        here = epochs == epoch
        indices[here] = source.arrange(places[here], seed, epoch)
    return epochs, indices


def batch_of(
    source: Source,
    *,
    seed: int,
    step: int,
    size: int,
    rank: int = 0,
    world: int = 1,
    part: int = 0,
    parts: int = 1,
) -> Batch:
    """What this rank computes in this part of a step.

    Ranks take slices of the global batch in order, parts (of gradient accumulation) slices of
    those: which samples a step holds does not depend on how many machines share it.
    """
    if world < 1 or parts < 1 or size < 1 or size % (world * parts):
        nearest = max(1, round(size / max(1, world * parts))) * max(1, world * parts)
        raise ValueError(
            f"a batch of {size} cannot be shared by {world} ranks in {parts} parts; "
            f"it must be a multiple of {world * parts}, such as {nearest}"
        )
    if not (0 <= rank < world and 0 <= part < parts and step >= 0):
        raise ValueError(
            f"step is {step}, rank {rank} of {world}, part {part} of {parts}; "
            "they count from 0 and stay below their number"
        )
    share = size // (world * parts)
    first = (rank * parts + part) * share
    epochs, indices = rows_of(source, seed=seed, step=step, size=size)
    return source.batch(epochs[first : first + share], indices[first : first + share])


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> Int64[np.ndarray, " {count}"]:
    return counter_rng.permutation(count, seed, "order", epoch)
