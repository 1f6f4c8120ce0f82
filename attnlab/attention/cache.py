"""Caches of keys and values, so that decoding a token costs one token.

Axes: b batch, g key/value heads, t time, d head width, e value width.

A layer's cache takes the keys and values of new tokens and gives back all these may see, oldest
first; attention lines them up at the end. Keys are kept as they are compared: rotated.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab.config import settings

Kept = tuple[Tensor, Tensor, Tensor | None]


class LayerCache:
    """Common to both: room for `capacity` positions, of which [start, stop) are in use."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, for the next sequence."""
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._padding: Tensor | None = None
        self._stop = 0

    @property
    def bytes(self) -> int:
        kept = (self._k, self._v, self._padding)
        return sum(x.numel() * x.element_size() for x in kept if x is not None)

    def append(
        self,
        k: Float[Tensor, "b g t d"],
        v: Float[Tensor, "b g t e"],
        padding: Bool[Tensor, "b t"] | None,
    ) -> Kept:
        raise NotImplementedError

    def _write(self, k: Tensor, v: Tensor, padding: Tensor | None) -> None:
        assert self._k is not None and self._v is not None
        new = slice(self._stop, self._stop + k.shape[2])
        self._k[:, :, new], self._v[:, :, new] = k, v
        if padding is not None and self._padding is None:
            self._padding = padding.new_zeros(k.shape[0], self._k.shape[2])
        if self._padding is not None:
            self._padding[:, new] = False if padding is None else padding
        self._stop = new.stop

    def _resize(self, capacity: int, k: Tensor, v: Tensor, kept: int) -> None:
        """Room for `capacity` positions, the last `kept` of the old ones moved to its front."""
        old = slice(self._stop - kept, self._stop)
        new_k = k.new_empty(*k.shape[:2], capacity, k.shape[3])
        new_v = v.new_empty(*v.shape[:2], capacity, v.shape[3])
        if kept:
            assert self._k is not None and self._v is not None
            new_k[:, :, :kept], new_v[:, :, :kept] = self._k[:, :, old], self._v[:, :, old]
        if self._padding is not None:
            padding = self._padding.new_zeros(k.shape[0], capacity)
            padding[:, :kept] = self._padding[:, old]
            self._padding = padding
        self._k, self._v, self._stop = new_k, new_v, kept

    def _read(self, start: int) -> Kept:
        assert self._k is not None and self._v is not None
        used = slice(start, self._stop)
        padding = None if self._padding is None else self._padding[:, used]
        return self._k[:, :, used], self._v[:, :, used], padding


@settings
class Full:
    """Keeps every position."""

    def build(self, window: int | None) -> LayerCache:
        return FullCache()


class FullCache(LayerCache):
    @torch.no_grad()
    def append(self, k: Tensor, v: Tensor, padding: Tensor | None = None) -> Kept:
        needed = self._stop + k.shape[2]
        if self._k is None or needed > self._k.shape[2]:
            # doubling: a token is moved a constant number of times, however long the text grows
            self._resize(max(needed, 2 * self._stop, 16), k, v, self._stop)
        self._write(k, v, padding)
        return self._read(0)


@settings
class Ring:
    """Keeps the window - 1 positions that a coming query can still see, in constant memory."""

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

    @torch.no_grad()
    def append(self, k: Tensor, v: Tensor, padding: Tensor | None = None) -> Kept:
        kept, new = min(self._stop, self.reach), k.shape[2]
        room = 2 * (self.reach + 1)
        if self._k is None:
            self._resize(room, k, v, 0)
        assert self._k is not None
        if kept + new > room:
            return self._longer_than_the_ring(k, v, padding, kept, room)
        if self._stop + new > room:
            self._resize(room, k, v, kept)
        start = self._stop - kept
        self._write(k, v, padding)
        return self._read(start)

    def _longer_than_the_ring(
        self, k: Tensor, v: Tensor, padding: Tensor | None, kept: int, room: int
    ) -> Kept:
        """Attend to a buffer made for this once; only its end goes into the ring."""
        self._resize(kept + k.shape[2], k, v, kept)
        self._write(k, v, padding)
        everything = self._read(0)
        self._resize(room, k, v, min(self._stop, self.reach))
        return everything


class Cache:
    """A model's caches, one for each layer, and how many positions have passed through them."""

    def __init__(self, layers: Sequence[LayerCache]) -> None:
        self.layers = list(layers)
        self.length = 0

    def reset(self) -> None:
        self.length = 0
        for layer in self.layers:
            layer.reset()

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)
