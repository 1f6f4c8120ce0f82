"""Rules between the tensors of two code bases: which of ours are which of theirs, both ways.

Axes: r rows of a weight or bias.

A rule moves numbers and computes none, so that it and its inverse give back the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.interop import layouts

Move = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Rule:
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    to_ours: Move
    to_theirs: Move


def as_it_is(tensors: list[Tensor]) -> list[Tensor]:
    return tensors


def turned(tensor: Tensor) -> Tensor:
    """A matrix transposed; a bias as it is."""
    return tensor.T.contiguous() if tensor.ndim == 2 else tensor


def _transposed(tensors: list[Tensor]) -> list[Tensor]:
    return [turned(tensor) for tensor in tensors]


def same(ours: str, theirs: str) -> Rule:
    return Rule((ours,), (theirs,), as_it_is, as_it_is)


def transposed(ours: str, theirs: str) -> Rule:
    """A matrix that they multiply from the other side (Conv1D of GPT-2)."""
    return Rule((ours,), (theirs,), _transposed, _transposed)


def constant(theirs: str, value: float, size: int) -> Rule:
    """What we have no weight for: gains of 1, biases of 0."""

    def make(_: list[Tensor]) -> list[Tensor]:
        return [torch.full((size,), value)]

    return Rule((), (theirs,), lambda _: [], make)


def absent(ours: str, size: int) -> Rule:
    """A bias of ours that they do not have: zeros."""
    return Rule((ours,), (), lambda _: [torch.zeros(size)], lambda _: [])


@dataclass(frozen=True)
class Heads:
    """What is needed to take queries, keys and values apart."""

    heads: int
    kv_heads: int
    rotated: int | None = None  # coordinates of a head that turn, if ours turn interleaved

    def apart(self, fused: Tensor) -> list[Tensor]:
        """With their pairs half-split, as they have them."""
        q, k, v = layouts.split_by_kind(fused, self.heads, self.kv_heads)
        if self.rotated is not None:
            q = layouts.interleaved_to_half_split(q, self.heads, self.rotated)
            k = layouts.interleaved_to_half_split(k, self.kv_heads, self.rotated)
        return [q, k, v]

    def together(self, parts: Sequence[Tensor]) -> Tensor:
        q, k, v = parts
        if self.rotated is not None:
            q = layouts.half_split_to_interleaved(q, self.heads, self.rotated)
            k = layouts.half_split_to_interleaved(k, self.kv_heads, self.rotated)
        return layouts.fuse_by_kind(q, k, v)

    def gain(self, ours: str, theirs: str) -> Rule:
        """Of normed queries or keys: its coordinates turn as theirs do."""

        def to_theirs(tensors: list[Tensor]) -> list[Tensor]:
            if self.rotated is None:
                return tensors
            return [layouts.interleaved_to_half_split(one, 1, self.rotated) for one in tensors]

        def to_ours(tensors: list[Tensor]) -> list[Tensor]:
            if self.rotated is None:
                return tensors
            return [layouts.half_split_to_interleaved(one, 1, self.rotated) for one in tensors]

        return Rule((ours,), (theirs,), to_ours, to_theirs)

    def separate(self, ours: str, q: str, k: str, v: str) -> Rule:
        return Rule(
            (ours,),
            (q, k, v),
            lambda parts: [self.together(parts)],
            lambda fused: [one.contiguous() for one in self.apart(fused[0])],
        )

    def by_kind(self, ours: str, theirs: str, *, transpose: bool = False) -> Rule:
        """All queries, all keys, all values in one."""

        def to_ours(tensors: list[Tensor]) -> list[Tensor]:
            fused = turned(tensors[0]) if transpose else tensors[0]
            parts = layouts.split_by_kind(fused, self.heads, self.kv_heads)
            return [self.together(parts).contiguous()]

        def to_theirs(tensors: list[Tensor]) -> list[Tensor]:
            fused = layouts.fuse_by_kind(*self.apart(tensors[0]))
            return [turned(fused) if transpose else fused.contiguous()]

        return Rule((ours,), (theirs,), to_ours, to_theirs)

    def by_group(self, ours: str, theirs: str) -> Rule:
        """Each key/value head with its queries (GPT-NeoX)."""

        def to_ours(tensors: list[Tensor]) -> list[Tensor]:
            parts = layouts.split_by_group(tensors[0], self.heads, self.kv_heads)
            return [self.together(parts).contiguous()]

        def to_theirs(tensors: list[Tensor]) -> list[Tensor]:
            q, k, v = self.apart(tensors[0])
            fused = layouts.fuse_by_group(q, k, v, self.heads, self.kv_heads)
            return [fused.contiguous()]

        return Rule((ours,), (theirs,), to_ours, to_theirs)


def stacked(ours: Sequence[str], theirs: str) -> Rule:
    """Several of ours, of equal size, are one of theirs (gate and up in Phi-3)."""

    def to_ours(tensors: list[Tensor]) -> list[Tensor]:
        return [part.contiguous() for part in tensors[0].chunk(len(ours))]

    return Rule(tuple(ours), (theirs,), to_ours, lambda tensors: [torch.cat(tensors)])


def biased(make: Callable[[str, str], Rule], ours: str, theirs: str, bias: bool) -> Iterator[Rule]:
    """The weight of a linear layer or norm, and its bias if it has one."""
    yield make(f"{ours}.weight", f"{theirs}.weight")
    if bias:
        yield make(f"{ours}.bias", f"{theirs}.bias")
