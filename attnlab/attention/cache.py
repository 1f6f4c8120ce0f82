"""KV caches: the keys and values of earlier tokens, so that decoding a token costs one token.

Axes: b batch, g key/value heads, t time, d head width, e value width, k keys.
Cost: a token is written once, and moved a constant number of times; reading copies nothing.

A layer's cache takes the keys and values of new tokens and gives back all that these attend to,
oldest first: views of its buffers, good until the next tokens come. Keys are kept as they are
compared: rotated. Where there is padding, keys and values are zeros and a mask is kept, ready to be
added to scores.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlab.config import settings

FIRST_CAPACITY = 16  # positions that a full cache has room for at first
MOST_EXPECTED = 4096  # positions to make room for before they come: a text may end early


class Cached(NamedTuple):
    """What the new tokens attend to."""

    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]
    key_padding: Bool[Tensor, "b k"] | None = None
    padding_mask: Float[Tensor, "b 1 1 k"] | None = None  # 0, or minus infinity for padding


class Place(NamedTuple):
    """Where a new token goes in buffers of all positions, and what it attends to."""

    first: int  # position in the buffers of the oldest key
    last: int  # the new one's own
    k: Float[Tensor, "b g n d"]
    v: Float[Tensor, "b g n e"]
    mask: Float[Tensor, "b 1 1 n"] | None  # of padding, if there was any


@runtime_checkable
class CacheSettings(Protocol):
    """The settings of a kind of cache: what `cache` in the registry names."""

    def build(self, window: int | None) -> "LayerCache":
        """For a layer whose queries attend to `window` keys; None: to all of them."""
        ...


class LayerCache:
    """Buffers for some number of positions, of which the first `_stop` are in use.

    The padding beyond them is always False, so a token without padding need not write it.
    """

    keeps_keys: ClassVar[bool] = True  # False: only the text, which is read again for every token

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, for the next sequence."""
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._padding: Tensor | None = None
        self._mask: Tensor | None = None
        self._stop = 0

    @property
    def bytes(self) -> int:
        buffers = (self._k, self._v, self._padding, self._mask)
        return sum(x.numel() * x.element_size() for x in buffers if x is not None)

    def append(
        self,
        k: Float[Tensor, "b g t d"],
        v: Float[Tensor, "b g t e"],
        padding: Bool[Tensor, "b t"] | None = None,
    ) -> Cached:
        raise NotImplementedError

    def take_place(self) -> "Place":
        """Room for one more token without padding, whose key and value the caller writes.

        Only after `append`, which makes the buffers.
        """
        raise NotImplementedError

    def check(self, batch: int) -> None:
        """A ValueError for new tokens of another number of texts."""
        if self._k is not None and self._k.shape[0] != batch:
            raise ValueError(
                f"the cache holds {self._k.shape[0]} texts, and these are tokens of {batch}; "
                "reset the cache before other texts"
            )

    def _write(self, k: Tensor, v: Tensor, padding: Tensor | None) -> None:
        assert self._k is not None and self._v is not None
        start, count = self._stop, k.shape[2]
        if k.requires_grad or v.requires_grad:
            k, v = k.detach(), v.detach()
        if padding is not None:
            hidden = padding[:, None, :, None]
            k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
            self._write_padding(padding)
        self._k.narrow(2, start, count).copy_(k)
        self._v.narrow(2, start, count).copy_(v)
        self._stop = start + count

    def _write_padding(self, padding: Tensor) -> None:
        assert self._k is not None
        batch, capacity = self._k.shape[0], self._k.shape[2]
        if self._padding is None or self._mask is None:
            self._padding = padding.new_zeros(batch, capacity)
            self._mask = self._k.new_zeros(batch, 1, 1, capacity)
        start, count = self._stop, padding.shape[1]
        self._padding.narrow(1, start, count).copy_(padding)
        self._mask.narrow(3, start, count).masked_fill_(padding[:, None, None], -torch.inf)

    def _grow(self, capacity: int, k: Tensor, v: Tensor, kept: int) -> None:
        """New buffers for `capacity` positions, with the last `kept` positions at their front."""
        old, old_padding, old_mask = (self._k, self._v), self._padding, self._mask
        last = slice(self._stop - kept, self._stop)
        self._k = k.new_empty(*k.shape[:2], capacity, k.shape[3])
        self._v = v.new_empty(*v.shape[:2], capacity, v.shape[3])
        for new, before in zip((self._k, self._v), old, strict=True):
            if before is not None:
                new[:, :, :kept] = before[:, :, last]
        if old_padding is not None and old_mask is not None:
            self._padding = old_padding.new_zeros(k.shape[0], capacity)
            self._mask = old_mask.new_zeros(k.shape[0], 1, 1, capacity)
            self._padding[:, :kept] = old_padding[:, last]
            self._mask[..., :kept] = old_mask[..., last]
        self._stop = kept

    def _take(self, first: int) -> Place:
        assert self._k is not None and self._v is not None
        self._stop += 1
        return Place(first, self._stop - 1, self._k, self._v, self._mask)

    def _read(self, start: int) -> Cached:
        assert self._k is not None and self._v is not None
        count = self._stop - start
        k, v = self._k.narrow(2, start, count), self._v.narrow(2, start, count)
        if self._padding is None or self._mask is None:
            return Cached(k, v)
        padding = self._padding.narrow(1, start, count)
        return Cached(k, v, padding, self._mask.narrow(3, start, count))


@settings
class Full:
    """Keeps every position."""

    def build(self, window: int | None) -> LayerCache:
        return FullCache()


class FullCache(LayerCache):
    expected = FIRST_CAPACITY  # positions that there will be room for from the beginning

    def append(self, k: Tensor, v: Tensor, padding: Tensor | None = None) -> Cached:
        self._make_room(k, v, k.shape[2])
        self._write(k, v, padding)
        return self._read(0)

    def take_place(self) -> Place:
        assert self._k is not None and self._v is not None
        self._make_room(self._k, self._v, 1)
        return self._take(0)

    def _make_room(self, k: Tensor, v: Tensor, new: int) -> None:
        """For so many positions more, alike in shape and dtype."""
        needed = self._stop + new
        if self._k is None or needed > self._k.shape[2]:
            # doubling: a token is moved a constant number of times, however long the text grows
            self._grow(max(needed, 2 * self._stop, self.expected), k, v, self._stop)


@settings
class Ring:
    """Keeps the window - 1 positions that a later query can still attend to: constant memory."""

    def build(self, window: int | None) -> LayerCache:
        if window is None:
            raise ValueError(
                "a ring cache needs a layer with a window; use cache=full for this one"
            )
        return RingCache(window)


class RingCache(LayerCache):
    """A ring laid flat: the window slides along twice its length, then goes back to the front.

    So what is kept is always one piece of memory in the order of the text, and each position is
    moved once.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.reach = window - 1

    def append(self, k: Tensor, v: Tensor, padding: Tensor | None = None) -> Cached:
        kept, new = min(self._stop, self.reach), k.shape[2]
        room = 2 * (self.reach + 1)
        if self._k is None:
            self._grow(room, k, v, 0)
        if kept + new > room:
            return self._longer_than_the_ring(k, v, padding, kept, room)
        if self._stop + new > room:
            self._to_the_front(kept)
        start = self._stop - kept
        self._write(k, v, padding)
        return self._read(start)

    def take_place(self) -> Place:
        kept = min(self._stop, self.reach)
        if self._stop + 1 > 2 * (self.reach + 1):
            self._to_the_front(kept)
        return self._take(self._stop - kept)

    def _to_the_front(self, kept: int) -> None:
        """The last `kept` positions go to the front of the same buffers."""
        first = self._stop - kept
        for buffer, axis in ((self._k, 2), (self._v, 2), (self._padding, 1), (self._mask, 3)):
            if buffer is not None:
                last = buffer.narrow(axis, first, kept)
                # PyTorch does not define a copy between parts of a tensor that overlap
                buffer.narrow(axis, 0, kept).copy_(last.clone() if first < kept else last)
                if axis != 2:  # beyond what is in use there is no padding
                    buffer.narrow(axis, kept, buffer.shape[axis] - kept).zero_()
        self._stop = kept

    def _longer_than_the_ring(
        self, k: Tensor, v: Tensor, padding: Tensor | None, kept: int, room: int
    ) -> Cached:
        """Attend to buffers made for this once; only their end goes into the ring."""
        self._grow(kept + k.shape[2], k, v, kept)
        self._write(k, v, padding)
        everything = self._read(0)
        self._grow(room, k, v, min(self._stop, self.reach))
        return everything


class Cache:
    """A model's caches, one for each layer, and how many positions have passed through them."""

    def __init__(self, layers: Sequence[LayerCache]) -> None:
        self.layers = list(layers)
        self.length = 0
        # where each text goes on, if positions on axes were given (M-RoPE); else at `length`
        self.next: Int[Tensor, " b"] | None = None

    def reset(self) -> None:
        self.length = 0
        self.next = None
        for layer in self.layers:
            layer.reset()

    def expect(self, length: int) -> None:
        """So many positions will come: buffers that are made for them need not grow."""
        for layer in self.layers:
            if isinstance(layer, FullCache):
                layer.expected = min(max(length, FIRST_CAPACITY), MOST_EXPECTED)

    def check(self, batch: int) -> None:
        """A ValueError for new tokens of another number of texts; all layers hold the same ones."""
        self.layers[0].check(batch)

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)
