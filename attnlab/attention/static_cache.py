"""KV caches whose buffers stay where they are, for steps that are recorded once and replayed.

Axes: b batch, g key/value heads, t time, d head width, e value width, n places of a buffer.

The key of token j lies in place j mod n. A layer without a window has a place for every token; one
with a window is a ring, with as many places as the window has keys. What a step attends to is found
from the number of tokens read so far, which may be a tensor on the device: `distances` says how far
back the key in each place lies. Places that nothing was written to yet hold zeros.
"""

from jaxtyping import Float, Int
from torch import Tensor, arange

from attnlab.attention.cache import Cached, LayerCache

ALIGNED = 16  # buffers have a multiple of so many places: PyTorch's kernels copy other masks


class StaticLayer(LayerCache):
    """A text is appended in one piece; after that, steps write to the buffers themselves."""

    def __init__(self, window: int | None, room: int) -> None:
        super().__init__()
        super().reset()
        self.window = window
        self.places = self._places(room)

    def reset(self) -> None:
        """Forget the texts; the buffers stay, for as many others."""
        self._stop = 0

    @property
    def k(self) -> Float[Tensor, "b g n d"]:
        assert self._k is not None
        return self._k

    @property
    def v(self) -> Float[Tensor, "b g n e"]:
        assert self._v is not None
        return self._v

    def check(self, batch: int) -> None:
        if self._stop:
            super().check(batch)

    def append(self, k: Tensor, v: Tensor, padding: Tensor | None = None) -> Cached:
        count = k.shape[2]
        assert not self._stop, "a static cache reads a text in one piece"
        assert self.window is not None or count <= self.places, "the text is longer than the cache"
        if self._k is None or self._k.shape[0] != k.shape[0]:
            self._k = k.new_zeros(*k.shape[:2], self.places, k.shape[3])
            self._v = v.new_zeros(*v.shape[:2], self.places, v.shape[3])
        kept = min(count, self.places)
        at = arange(count - kept, count, device=k.device) % self.places
        for buffer, new in ((self.k, k), (self.v, v)):
            new = new[:, :, count - kept :]
            if padding is not None:
                new = new.masked_fill(padding[:, None, count - kept :, None], 0)
            buffer.index_copy_(2, at, new)
        self._stop = count
        return Cached(k, v, padding)

    def grow(self, room: int) -> None:
        """Room for more tokens, before the last place is taken."""
        before, self.places = self.places, self._places(room)
        if self.places == before:
            return  # a ring of its whole window
        for name in ("_k", "_v"):
            old = getattr(self, name)
            new = old.new_zeros(*old.shape[:2], self.places, old.shape[3])
            new[:, :, :before] = old
            setattr(self, name, new)

    def _places(self, room: int) -> int:
        return aligned(room if self.window is None else min(self.window, room))


def aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def distances(length: Int[Tensor, " 1"], places: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """From token number `length` back to the last token that could lie in each place.

    Beyond the first token of the text where nothing was written yet.
    """
    return (length - places) % places.shape[0]
