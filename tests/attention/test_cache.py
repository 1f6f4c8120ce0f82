"""Caches give back what the tokens may see, and no more than they should keep."""

import pytest
import torch

from attnlab.attention.cache import Full, FullCache, Ring, RingCache
from attnlab.kernels import attention


def stream(length, seed=0):
    chance = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, length, 4, generator=chance, dtype=torch.float64) for _ in range(2)]


def pieces(length, sizes):
    """Sizes over and over until the length is used up."""
    start, turn = 0, 0
    while start < length:
        stop = min(start + sizes[turn % len(sizes)], length)
        yield slice(start, stop)
        start, turn = stop, turn + 1


@pytest.mark.parametrize("sizes", [[1], [2], [3, 1], [7], [20, 1, 1], [1, 40, 2]], ids=str)
@pytest.mark.parametrize("window", [1, 2, 5, 16, None])
def test_gives_back_the_last_keys_in_order(window, sizes):
    k, v = stream(60)
    padding = torch.rand(2, 60) < 0.3
    cache = Full().build(None) if window is None else Ring().build(window)
    for piece in pieces(60, sizes):
        keys, values, hidden = cache.append(k[:, :, piece], v[:, :, piece], padding[:, piece])
        seen = (
            piece.stop if window is None else min(piece.stop - piece.start + window - 1, piece.stop)
        )
        last = slice(piece.stop - seen, piece.stop)
        assert torch.equal(keys, k[:, :, last])
        assert torch.equal(values, v[:, :, last])
        assert torch.equal(hidden, padding[:, last])


def test_padding_may_come_late():
    for cache in (FullCache(), RingCache(4)):
        k, v = stream(6)
        assert cache.append(k[:, :, :2], v[:, :, :2], None)[2] is None
        late = torch.ones(2, 1, dtype=torch.bool)
        assert (
            cache.append(k[:, :, 2:3], v[:, :, 2:3], late)[2].tolist() == [[False, False, True]] * 2
        )
        hidden = cache.append(k[:, :, 3:4], v[:, :, 3:4], None)[2]
        assert hidden.tolist() == [[False, False, True, False]] * 2


def test_the_ring_stays_as_small_as_it_was():
    cache = RingCache(8)
    k, v = stream(1)
    sizes = set()
    for _ in range(100):
        cache.append(k, v, None)
        sizes.add(cache.bytes)
    long_k, long_v = stream(500)
    cache.append(long_k, long_v, None)
    sizes.add(cache.bytes)
    assert sizes == {
        2 * 2 * 3 * 16 * 4 * 8
    }  # k and v, batch 2, 3 heads, 16 places, width 4, float64


def test_a_reset_cache_is_as_new():
    for cache in (FullCache(), RingCache(4)):
        k, v = stream(9)
        cache.append(k, v, None)
        cache.reset()
        assert cache.bytes == 0
        k, v = stream(3, seed=1)
        assert torch.equal(cache.append(k[:1], v[:1], None)[0], k[:1])


@pytest.mark.parametrize("window", [1, 3, 10])
def test_decoding_through_a_ring_is_windowed_attention(window):
    (k, v), (q, _) = stream(40), stream(40, seed=2)
    cache = RingCache(window)
    steps = []
    for piece in pieces(40, [3, 1, 11]):
        keys, values, _ = cache.append(k[:, :, piece], v[:, :, piece], None)
        steps.append(attention(q[:, :, piece], keys, values, window=window))
    torch.testing.assert_close(torch.cat(steps, dim=2), attention(q, k, v, window=window))


def test_a_ring_without_a_window_is_refused():
    with pytest.raises(ValueError, match="a ring cache needs a layer with a window"):
        Ring().build(None)
