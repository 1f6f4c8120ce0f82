"""KV caches give back what the tokens attend to, and keep no more than they should."""

import math

import pytest
import torch

from attnlab import registry
from attnlab.attention.cache import CacheSettings, Full, FullCache, LayerCache, Ring, RingCache
from attnlab.kernels import Request, attention, dispatch

NAMES = [option.name for option in registry.options("cache")]


def stream(length, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, length, 4, generator=rng, dtype=torch.float64) for _ in range(2)]


def pieces(length, sizes):
    """Sizes over and over until the length is used up."""
    start, turn = 0, 0
    while start < length:
        stop = min(start + sizes[turn % len(sizes)], length)
        yield slice(start, stop)
        start, turn = stop, turn + 1


SIZES = [[1], [2], [3, 1], [7], [20, 1, 1], [1, 40, 2], [17, 16]]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("window", [1, 2, 5, 16, None])
def test_gives_back_the_last_keys_in_order(window, sizes):
    k, v = stream(60)
    padding = torch.rand(2, 60) < 0.3
    cache = Full().build(None) if window is None else Ring().build(window)
    for piece in pieces(60, sizes):
        keys, values, hidden, mask = cache.append(k[:, :, piece], v[:, :, piece], padding[:, piece])
        seen = (
            piece.stop if window is None else min(piece.stop - piece.start + window - 1, piece.stop)
        )
        last = slice(piece.stop - seen, piece.stop)
        cleared = padding[:, None, last, None]
        assert torch.equal(keys, k[:, :, last].masked_fill(cleared, 0))
        assert torch.equal(values, v[:, :, last].masked_fill(cleared, 0))
        assert torch.equal(hidden, padding[:, last])
        added = torch.zeros(hidden.shape, dtype=k.dtype).masked_fill(hidden, -math.inf)
        assert torch.equal(mask[:, 0, 0], added)


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
        keys, values, *_ = cache.append(k[:, :, piece], v[:, :, piece])
        steps.append(attention(q[:, :, piece], keys, values, window=window))
    torch.testing.assert_close(torch.cat(steps, dim=2), attention(q, k, v, window=window))


def test_a_ring_without_a_window_is_refused():
    with pytest.raises(ValueError, match="a ring cache needs a layer with a window"):
        Ring().build(None)


def settings_of(name, window):
    """The settings of a kind of cache, if it serves a layer with this window."""
    settings = registry.load("cache", name)()
    assert isinstance(settings, CacheSettings)
    try:
        settings.build(window)
    except ValueError as refusal:
        assert "use cache=" in str(refusal)  # another kind
        return None
    return settings


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("window", [None, 1, 5, 16])
@pytest.mark.parametrize("name", NAMES)
def test_decoding_through_any_cache_is_attention_over_the_whole_text(name, window, sizes):
    """With padding on the left and in between, whose keys and values may be anything."""
    settings = settings_of(name, window)
    if settings is None:
        return
    (k, v), (q, _) = stream(60), stream(60, seed=2)
    padding = torch.arange(60) < torch.tensor([[4], [0]])
    padding[1, 20:23] = True
    hidden = padding[:, None, :, None]
    want = attention(q, k, v, window=window, key_padding=padding)
    k, v = k.masked_fill(hidden, math.nan), v.masked_fill(hidden, math.inf)
    cache = settings.build(window)
    assert isinstance(cache, LayerCache)
    for _ in range(2):  # the second time after a reset
        steps = []
        for piece in pieces(60, sizes):
            held = cache.append(k[:, :, piece], v[:, :, piece], padding[:, piece])
            request = Request(q=q[:, :, piece], window=window, **held._asdict())
            steps.append(dispatch.attend(request))
        torch.testing.assert_close(torch.cat(steps, dim=2), want)
        cache.reset()
        assert cache.bytes == 0


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("cache", [Full().build(None), Ring().build(9)], ids=["full", "ring"])
def test_appending_gives_views_of_one_storage(cache, padded):
    """Nothing is copied from step to step, and a ring goes round in the memory it has."""
    cache.reset()
    k, v = stream(70)
    padding = torch.arange(11)[None] < torch.tensor([[4], [0]])
    cache.append(k[:, :, :11], v[:, :, :11], padding if padded else None)
    seen = set()
    for time in range(11, 70):
        piece = slice(time, time + 1)
        held = cache.append(k[:, :, piece], v[:, :, piece])
        there = [x.untyped_storage().data_ptr() for x in held if x is not None]
        assert len(there) == (4 if padded else 2)
        seen.add(tuple(there))
    # a full cache has room for 16, 32, 64 and 128 positions, one after another
    assert len(seen) == (1 if isinstance(cache, RingCache) else 4)


def test_keys_of_a_training_model_leave_no_graph_in_the_cache():
    for cache in (FullCache(), RingCache(4)):
        for _ in range(3):
            k, v = (x.requires_grad_() for x in stream(3))
            held = cache.append(2 * k, 2 * v, torch.zeros(2, 3, dtype=torch.bool))
            assert not any(x.requires_grad for x in held)


def test_texts_of_another_number_are_refused():
    for cache in (FullCache(), RingCache(4)):
        cache.check(7)
        cache.append(*stream(3))
        cache.check(2)
        with pytest.raises(ValueError, match="the cache holds 2 texts, and these are tokens of 1"):
            cache.check(1)
