"""Differential attention: two maps, of which one is subtracted."""

import math

import pytest
import torch

from attnlab.attention.cache import Full
from attnlab.attention.differential import Differential
from attnlab.attention.heads import AttentionOptions, Layer, MultiHead
from attnlab.config import ConfigError
from attnlab.kernels import LinearBias, attention, rotate, rotation
from attnlab.models.transformer import TransformerSettings

WIDTH = 24


def build(settings=None, **layer):
    torch.manual_seed(0)
    settings = settings or Differential(heads=3, head_width=4)
    module = settings.build(Layer(width=WIDTH, context=64, layer=1, **layer)).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def drawn(batch=2, time=13):
    rng = torch.Generator().manual_seed(1)
    return torch.randn(batch, time, WIDTH, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("group", [1, 3])
def test_it_is_two_calls_of_attention_under_rotation_bias_soft_cap_and_sinks(group, per_head):
    layer = {"soft_cap": 0.8, "sink": "learned", "window": 5}
    module, x = build(Differential(heads=3, group=group, head_width=4), **layer), drawn()
    turned = rotation(torch.arange(13)[None], 2, dtype=torch.float64)
    if per_head:
        each = torch.arange(1, 4)[None, :, None, None]
        turned = type(turned)(turned.cos * each, turned.sin * each)  # no rotation, but a product
    bias = LinearBias(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
    shared = 3 // group
    q1, q2, k1, k2, v = (
        one.unflatten(-1, (-1, 8 if n == 4 else 4)).transpose(1, 2)
        for n, one in enumerate(
            module.project(x).split([12, 12, *[4 * shared] * 2, 8 * shared], dim=-1)
        )
    )
    options = {"bias": bias, "sinks": module.sinks, "soft_cap": 0.8, "window": 5}
    first, second = (
        attention(rotate(q, turned), rotate(k, turned), v, path="reference", **options)
        for q, k in ((q1, k1), (q2, k2))
    )
    start = 0.8 - 0.6 * math.exp(-0.3)
    out = first - module.subtracted * second
    out = module.norm(out) * (1 - start)
    torch.testing.assert_close(module(x, rotary=turned, bias=bias), module.join(out))


def test_rows_of_the_weights_add_up_to_one_minus_lambda_and_some_are_negative():
    module, x = build(), drawn()
    weights = module.weights(x, AttentionOptions())
    left = 1 - module.subtracted
    torch.testing.assert_close(weights.sum(-1), left.expand(2, 3, 13))
    assert (weights < 0).any()
    v = module._split(module.project(x))[2]
    out = (1 - module.start) * module.norm(weights @ v)
    torch.testing.assert_close(module(x), module.join(out))


@pytest.mark.parametrize("depth", [1, 4])
def test_lambda_begins_near_its_value_for_the_depth(depth):
    """exp(a₁·b₁) − exp(a₂·b₂) of vectors of 0.1 · normal numbers, 16 wide: some hundredths."""
    torch.manual_seed(0)
    settings = TransformerSettings(width=128, depth=depth, attention=Differential())
    for layer, block in enumerate(settings.build().blocks):
        start = 0.8 - 0.6 * math.exp(-0.3 * layer)
        assert block.attention.start == start
        found = block.attention.subtracted.item()
        assert 0 < abs(found - start) < 0.3


def test_projections_are_those_of_twice_as_many_plain_heads():
    def projections(attention):
        model = TransformerSettings(width=24, depth=1, attention=attention).build()
        return {n: p.shape for n, p in model.blocks[0].attention.named_parameters() if p.ndim == 2}

    assert projections(Differential(heads=3)) == projections(MultiHead(heads=6))


def test_the_cache_keeps_values_once():
    module, cache = build(Differential(heads=4, group=2, head_width=3)), Full().build(None)
    with torch.no_grad():
        module(drawn(2, 32), cache=cache)
    assert cache.bytes == 2 * 32 * 8 * 2 * (2 * 3 + 6)  # of 2 heads, two keys of 3 and a value of 6


def test_heads_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"group is 3; it must divide attention\.heads, 4"):
        Differential(heads=4, group=3)
    with pytest.raises(ValueError, match="width 20 does not divide into 4 heads of 2 maps; use"):
        TransformerSettings(width=20, attention=Differential(heads=4))
