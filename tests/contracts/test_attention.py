"""Every registered attention computes what its head map says."""

import math

import pytest
import torch

from attnlab import registry
from attnlab.attention.cache import Full
from attnlab.attention.heads import (
    AttentionOptions,
    HeadedAttention,
    HeadSettings,
    Layer,
    LayerSettings,
    head_width,
    is_recurrent,
)
from attnlab.attention.scores import ScaledDot

NAMES = [option.name for option in registry.options("attention")]
LAYERS = [name for name in NAMES if isinstance(registry.load("attention", name)(), LayerSettings)]
RECURRENT = [name for name in NAMES if is_recurrent(name)]
COMPARING = [name for name in NAMES if name not in RECURRENT]
WIDTH, LENGTH = 24, 11


def build(name, window=None):
    settings = registry.load("attention", name)()
    torch.manual_seed(0)
    if isinstance(settings, LayerSettings):
        return settings.build(Layer(width=WIDTH, context=LENGTH, layer=2, window=window)).double()
    score = ScaledDot().build(settings.heads, head_width(settings, WIDTH))
    return HeadedAttention(settings, score, Layer(width=WIDTH, window=window)).double()


def build_layer(name):
    """Of a kind that makes its own module, far from the start, where everything is flat."""
    torch.manual_seed(0)
    layer = Layer(width=WIDTH, context=LENGTH)
    module = registry.load("attention", name)().build(layer).double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def tokens(batch=2):
    return torch.randn(batch, LENGTH, WIDTH, dtype=torch.float64)


def attended(q, k, v, t, window):
    """Of one query of one head, at time t."""
    first = 0 if window is None else max(0, t - window + 1)
    scores = k[first : t + 1] @ q / math.sqrt(len(q))
    return scores.softmax(0) @ v[first : t + 1]


def headed(module, x, head):
    """Queries, keys and values; query head i reads key/value head i // (heads // kv_heads)."""
    heads, shared, width = module.heads, module.kv_heads, module.head_width
    sizes = [heads * width, shared * width, shared * width]
    q, k, v = (part.unflatten(-1, (-1, width)) for part in module.project(x).split(sizes, dim=-1))
    read = head // (heads // shared)
    return q[:, head], k[:, read], v[:, read]


def latent(module, x, head):
    """Without positions: what would be rotated stands beside the rest as it is."""
    rank, plain, values = module.rank, module.plain_width, module.value_width
    small = module.compress(x)
    short = small[:, :rank] / (small[:, :rank].square().mean(-1, keepdim=True) + 2**-23).sqrt()
    rows = module.expand.weight[head * (plain + values) : (head + 1) * (plain + values)]
    k = torch.cat((short @ rows[:plain].T, small[:, rank:]), dim=-1)
    q = module.query(x).unflatten(-1, (module.heads, -1))[:, head]
    return q, k, short @ rows[plain:].T


def differential(module, x, head):
    """Queries and keys of the first map, then of the second; values, twice as wide, of both."""
    heads, shared, width = module.heads, module.kv_heads, module.head_width
    parts = module.project(x).unflatten(-1, (-1, width))
    keys, values, read = 2 * heads, 2 * heads + 2 * shared, head // (heads // shared)
    v = torch.cat((parts[:, values + 2 * read], parts[:, values + 2 * read + 1]), dim=-1)
    return [(parts[:, head + n * heads], parts[:, keys + read + n * shared], v) for n in (0, 1)]


def subtracted(module, first, second):
    """In layer 2, counted from 0."""
    start = 0.8 - 0.6 * math.exp(-0.6)
    one, other = (
        torch.exp(getattr(module, f"lambda_q{n}") @ getattr(module, f"lambda_k{n}")) for n in (1, 2)
    )
    out = first - (one - other + start) * second
    return (1 - start) * module.norm.weight * out / (out.square().mean() + 2**-23).sqrt()


def by_hand(name, module, x, window):
    """Query by query, head by head."""
    outs = []
    for row in x:
        heads = []
        for head in range(module.heads):
            if name == "differential":
                maps = differential(module, row, head)
            else:
                maps = [(latent if name == "latent" else headed)(module, row, head)]
            found = []
            for t in range(LENGTH):
                each = [attended(q[t], k, v, t, window) for q, k, v in maps]
                found.append(each[0] if len(each) == 1 else subtracted(module, *each))
            heads.append(torch.stack(found))
        outs.append(torch.cat(heads, dim=-1))
    return module.merge(torch.stack(outs))


@pytest.mark.parametrize("name", NAMES)
def test_its_settings_say_how_many_heads_there_are(name):
    settings = registry.load("attention", name)()
    assert isinstance(settings, HeadSettings)
    assert settings.heads >= settings.kv_heads >= 1 and settings.heads % settings.kv_heads == 0


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("name", COMPARING)
def test_it_equals_the_definition_for_its_head_map(name, window):
    module = build(name, window)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(module(x), by_hand(name, module, x, window))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name):
    module = build_layer(name) if name in LAYERS else build(name)
    module(tokens(), options=AttentionOptions()).square().sum().backward()
    for parameter in module.parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_a_layer_of_its_own_reads_on_through_its_cache_each_row_without_its_padding(name):
    """Padding in the middle of a text too: the next piece of another length, padded on its left."""
    module, x = build_layer(name), tokens(3)
    padding = torch.zeros(3, LENGTH, dtype=torch.bool)
    padding[0, :4] = padding[1, 5:7] = padding[2, -2:] = True
    whole = module(x, options=AttentionOptions(key_padding=padding))
    alone = [module(x[row, ~padding[row]][None], options=AttentionOptions()) for row in range(3)]
    for sizes in ([1] * LENGTH, [5, 1, 5], [LENGTH]):
        made = getattr(module, "new_cache", None)  # else it has a KV cache, as heads have
        cache, parts = Full().build(None) if made is None else made(), []
        for piece, hidden in zip(x.split(sizes, 1), padding.split(sizes, 1), strict=True):
            options = AttentionOptions(key_padding=hidden if hidden.any() else None)
            parts.append(module(piece, options=options, cache=cache))
        assert cache.bytes > 0
        for row in range(3):
            there = ~padding[row]
            torch.testing.assert_close(torch.cat(parts, 1)[row, there], alone[row][0])
            torch.testing.assert_close(whole[row, there], alone[row][0])
        cache.reset()
        assert cache.bytes == 0


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_a_layer_of_its_own_does_not_read_ahead(name):
    module, x = build_layer(name), tokens()
    changed = x.clone()
    changed[:, 6:] += 1
    before, after = (module(one, options=AttentionOptions()) for one in (x, changed))
    assert torch.equal(before[:, :6], after[:, :6]) and not torch.equal(before[:, 6], after[:, 6])
