"""Every registered KV cache: decoding piece by piece equals the whole text."""

import pytest
import torch

from attnlab import registry
from attnlab.kernels import attention

NAMES = [option.name for option in registry.options("cache")]
WINDOWS = [None, 1, 5, 64]
LENGTH = 37


def served(name):
    """The windows that a cache can serve; None is no window. What it refuses has a reason."""
    found = []
    for window in WINDOWS:
        try:
            registry.load("cache", name)().build(window)
        except ValueError as error:
            assert "cache" in str(error) and ";" in str(error), "a reason and what to do"
        else:
            found.append(window)
    return found


def drawn(seed):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, LENGTH, 4, generator=rng, dtype=torch.float64) for _ in range(3)]


def decoded(cache, q, k, v, window, sizes, padding=None):
    outs, start = [], 0
    while start < LENGTH:
        piece = slice(start, start + sizes[len(outs) % len(sizes)])
        hidden = None if padding is None else padding[:, piece]
        found = cache.append(k[:, :, piece], v[:, :, piece], hidden)
        outs.append(
            attention(
                q[:, :, piece], found.k, found.v, window=window, key_padding=found.key_padding
            )
        )
        check_mask(found)
        start = piece.stop
    return torch.cat(outs, dim=2)


def check_mask(found):
    """The mask to add to scores says what the padding mask says."""
    assert (found.key_padding is None) == (found.padding_mask is None)
    if found.key_padding is not None:
        mask = torch.zeros(found.key_padding.shape, dtype=torch.float64)
        mask = mask.masked_fill(found.key_padding, -torch.inf)[:, None, None]
        torch.testing.assert_close(found.padding_mask, mask)


@pytest.mark.parametrize("name", NAMES)
def test_it_serves_a_layer(name):
    assert served(name)


@pytest.mark.parametrize("sizes", [[1], [3, 1, 11], [LENGTH]], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_decoding_equals_the_whole(name, sizes):
    for window in served(name):
        cache = registry.load("cache", name)().build(window)
        for seed in (0, 1):  # the second text must not see the first
            q, k, v = drawn(seed)
            got = decoded(cache, q, k, v, window, sizes)
            torch.testing.assert_close(got, attention(q, k, v, window=window))
            cache.reset()
            assert cache.bytes == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_padding_mask_is_kept_with_its_keys(name):
    padding = torch.arange(LENGTH)[None] < torch.tensor([[0], [6]])
    q, k, v = drawn(2)
    for window in served(name):
        cache = registry.load("cache", name)().build(window)
        got = decoded(cache, q, k, v, window, [3, 1, 11], padding)
        want = attention(q, k, v, window=window, key_padding=padding)
        torch.testing.assert_close(got, want)
