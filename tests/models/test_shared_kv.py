"""Layers that read the keys and values of an earlier one."""

import pytest
import torch
from pytest import approx

from attnlab import config
from attnlab.config import ConfigError
from attnlab.kernels import attention, rotate, rotation
from attnlab.models.transformer import TransformerSettings

SMALL = TransformerSettings(vocabulary=13, context=48, width=24, depth=4)
TOKENS = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(0))


def build(*words):
    torch.manual_seed(0)
    return config.override(SMALL, words).build().double().eval()


def sources(*words):
    settings = config.override(SMALL, words)
    return [settings.shares_with(layer) for layer in range(settings.depth)]


def test_a_layer_reads_the_last_one_before_it_that_is_like_it_and_has_its_own():
    assert sources() == [None] * 4
    assert sources("shared_kv=false,true") == [None, 0, None, 2]
    assert sources("shared_kv=false,true,true") == [None, 0, 0, None]
    assert sources("shared_kv=false,false,true,true", "window=5,none") == [None, None, 0, 1]
    assert sources("shared_kv=false,false,true,true", "chunk=none,none,none,4", "depth=3") == [
        *(None, None, 1)
    ]


@torch.no_grad()
def test_its_queries_attend_to_their_keys_and_values():
    """Layer by layer, by the definition of attention."""
    model = build("shared_kv=false,true", "attention=grouped", "norm_heads=true")
    turned, x = rotation(torch.arange(9)[None], 3, dtype=torch.float64), model.embed(TOKENS)
    for number, block in enumerate(model.blocks):
        module = block.attention
        q, *own = module._split(module.project(block.attention_norm(x)))
        if number % 2:
            assert all(one.numel() == 0 for one in own)
        else:
            k, v = rotate(own[0], turned), own[1]
        x = x + module.join(attention(rotate(q, turned), k, v, path="reference"))
        x = x + block.feedforward(block.feedforward_norm(x))
    torch.testing.assert_close(model(TOKENS), model.head(model.norm(x)))


@torch.no_grad()
def test_the_cache_keeps_them_once():
    each, shared = build(), build("shared_kv=false,true")
    sizes = []
    for model in (each, shared):
        cache = model.new_cache()
        model(TOKENS, cache=cache)
        sizes.append(cache.bytes)
    assert sizes[1] == approx(sizes[0] / 2)
    lost = sum(p.numel() for p in each.parameters()) - sum(p.numel() for p in shared.parameters())
    assert lost == 2 * 2 * 24 * 24  # two projections to 24 numbers in two layers


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["shared_kv=true"], "shared_kv: layer 0 has no keys and values to share"),
        (
            ["shared_kv=false,true", "window=5,none"],
            "layer 1 has no keys .* makes its own with window=none and chunk=none; begin",
        ),
        (["attention=latent", "shared_kv=false,true"], "model.shared_kv=true would not reach it"),
        (
            ["shared_kv=false,true", "positions.base=10000,none"],
            "layer 1 would read keys of layer 0, which are turned by other positions",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(words, message):
    with pytest.raises((ConfigError, ValueError), match=message):
        build(*words)


def test_a_layer_alone_says_whose_keys_it_reads():
    layer = build("shared_kv=false,true").blocks[1].attention
    with pytest.raises(ValueError, match="keys and values of layer 0, which has not run"):
        layer(torch.randn(2, 9, 24, dtype=torch.float64))
