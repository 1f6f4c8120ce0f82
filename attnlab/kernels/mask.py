"""Which keys a query attends to: the definition, and the same as one range of keys for each query.

Axes: b batch (1 where all rows are alike), q queries, k keys.

A query stands at a position among the keys. It attends to the key at position j if all hold:

    causal      j is not after it
    window      j is at most so many keys before it, and after it
    chunk       j is in the same chunk of so many positions (Llama 4)
    segments    j is in the same document
    lengths     j is among the first keys of its row

or, with a prefix (prefix-LM), if j is in the prefix. Whatever is asked for, these are the keys from
a first to a last one, and both only grow from query to query: `ranges` has them, in O(q), for the
paths that make no mask. Padding can be anywhere and is not part of this.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Align = Literal["end", "start"]
ALL = slice(None)


@dataclass(frozen=True, kw_only=True)
class Reach:
    """A window with a reach of its own to either side: keys beside the query's own."""

    before: int | None = None  # None: as far as keys go
    after: int | None = None


@dataclass(frozen=True)
class Segments:
    """Documents in a row: which one each query and each key belongs to, by numbers in order."""

    queries: Int[Tensor, "#b q"]
    keys: Int[Tensor, "#b k"]

    def positions(self) -> Int[Tensor, "#b q"]:
        """How far each query is from the beginning of its document."""
        at = torch.arange(self.queries.shape[1], device=self.queries.device)
        return at - torch.searchsorted(self.queries, self.queries)


def segments_of_lengths(cumulative: Int[Tensor, " n"]) -> Int[Tensor, "1 k"]:
    """Documents from cumulative lengths, as FlashAttention has them (cu_seqlens): 0, 5, 12, …"""
    lengths = cumulative.diff()
    if len(cumulative) < 2 or cumulative[0] != 0 or (lengths < 0).any():
        raise ValueError(
            f"cumulative lengths are {cumulative.tolist()}; they begin with 0 and never fall"
        )
    numbers = torch.arange(len(lengths), device=cumulative.device)
    return numbers.repeat_interleave(lengths)[None]


def keys_of_course_width(width: int) -> int:
    """The window (in keys) of a course that gives a width w, half of it before the query."""
    return width // 2 + 1


def keys_of_left_reach(left: int) -> int:
    """The window (in keys) of libraries that count keys before the query: FlashAttention, JAX."""
    return left + 1


def visible(
    queries: Int[Tensor, " q"], keys: Int[Tensor, " k"], causal: bool, window: int | None
) -> Bool[Tensor, "q k"]:
    """The mask of causality and window: True where a query attends to a key."""
    ahead = queries[:, None] - keys[None, :]
    mask = torch.ones_like(ahead, dtype=torch.bool)
    if causal:
        mask &= ahead >= 0
    if window is not None:
        mask &= ahead.abs() < window
    return mask


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Who attends to whom in one call of attention."""

    queries: int
    keys: int
    device: torch.device
    causal: bool = True
    window: int | Reach | None = None
    align: Align = "end"  # whether the queries are the last of the keys, or the first
    chunk: int | None = None
    prefix: Int[Tensor, " b"] | None = None
    segments: Segments | None = None
    key_lengths: Int[Tensor, " b"] | None = None
    start: Int[Tensor, " b"] | None = None  # the first token of a row, after its padding

    def positions(self, queries: slice = ALL) -> Int[Tensor, "#b _q"]:
        """Where each query, or some of them, stand among the keys of their row."""
        start, stop, _ = queries.indices(self.queries)
        at = torch.arange(start, stop, device=self.device)[None]
        if self.segments is not None:  # as `align` says, within its document
            last, ours = self.align == "end", self.segments.queries
            bound = torch.searchsorted(ours, ours[:, queries].contiguous(), right=last)
            return at + self._of_keys(queries, right=last) - bound
        if self.align == "start":
            return at
        if self.key_lengths is not None:
            return at + (self.key_lengths[:, None] - self.queries)
        return at + (self.keys - self.queries)

    def visible(self, queries: slice = ALL, keys: slice = ALL) -> Bool[Tensor, "#b _q _k"]:
        """The definition: True where a query attends to a key, for all or some of them."""
        at = self.positions(queries)[:, :, None]
        to = torch.arange(self.keys, device=self.device)[keys]
        before, after = self.sides
        mask = (at - to <= before) & (to - at <= after)
        if self.chunk is not None:
            start = self._chunks_start(queries)[:, :, None]
            mask = mask & ((at - start) // self.chunk == (to - start) // self.chunk)
        if self.prefix is not None:
            mask = mask | (to < self._prefix_end()[:, None, None])
        if self.segments is not None:
            ours, theirs = self.segments.queries, self.segments.keys
            mask = mask & (ours[:, queries, None] == theirs[:, None, keys])
        if self.key_lengths is not None:
            mask = mask & (to < self.key_lengths[:, None, None])
        return mask

    def ranges(self, queries: slice = ALL) -> Int[Tensor, "#b _q 3"]:
        """The first key that each query attends to, the one after the last, and its position."""
        at = self.positions(queries)
        before, after = self.sides
        first, end = at - before, at + after + 1
        if self.chunk is not None:
            start = self._chunks_start(queries)
            chunk = start + (at - start) // self.chunk * self.chunk
            first, end = first.maximum(chunk), end.minimum(chunk + self.chunk)
        if self.prefix is not None:
            end = end.maximum(self._prefix_end()[:, None])
        if self.segments is not None:
            begins, ends = (self._of_keys(queries, right=side) for side in (False, True))
            first, end = first.clamp(begins, ends), end.clamp(begins, ends)
        if self.key_lengths is not None:
            end = end.minimum(self.key_lengths[:, None])
        first = first.clamp(0, self.keys)
        end = end.clamp(max=self.keys).maximum(first)
        return torch.stack(torch.broadcast_tensors(first, end, at), -1)

    def keys_of(self, queries: slice) -> slice:
        """What any of a run of queries attends to, in any row."""
        if self.is_band:  # without a tensor, so that it can be compiled
            before, after = self.sides
            offset = self.keys - self.queries
            first = min(max(queries.start + offset - before, 0), self.keys)
            return slice(first, max(min(queries.stop + offset + after, self.keys), first))
        ranges = self.ranges(queries)
        if not ranges.shape[1]:
            return slice(0, 0)
        return slice(int(ranges[:, 0, 0].amin()), int(ranges[:, -1, 1].amax()))

    @property
    def is_band(self) -> bool:
        """Whether nothing but causality and a window decides what a query attends to."""
        given = (self.chunk, self.prefix, self.segments, self.key_lengths)
        return self.align == "end" and all(one is None for one in given)

    @property
    def sides(self) -> tuple[int, int]:
        """How far before and after its own position a query attends; at most as far as keys go."""
        reach, window = self.queries + self.keys, self.window
        if isinstance(window, Reach):
            before, after = window.before, window.after
        else:
            before = after = None if window is None else window - 1
        before = reach if before is None else min(before, reach)
        after = reach if after is None else min(after, reach)
        return before, 0 if self.causal else after

    def _of_keys(self, queries: slice, *, right: bool) -> Int[Tensor, "#b _q"]:
        """Where the document of each query begins among the keys, or ends."""
        assert self.segments is not None
        ours = self.segments.queries[:, queries].contiguous()
        return torch.searchsorted(self.segments.keys, ours, right=right)

    def _prefix_end(self) -> Int[Tensor, " b"]:
        assert self.prefix is not None
        return self.prefix if self.start is None else self.prefix + self.start

    def _chunks_start(self, queries: slice) -> Int[Tensor, "_b _q"]:
        """Where chunks are counted from: a document's beginning, or the first token of a row."""
        if self.segments is not None:
            return self._of_keys(queries, right=False)
        if self.start is not None:
            return self.start[:, None]
        return torch.zeros(1, 1, dtype=torch.long, device=self.device)
