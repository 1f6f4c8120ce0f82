"""Heads: one module for multi-head, grouped and multi-query attention."""

import pytest
import torch

from attnlab import registry
from attnlab.attention.cache import FullCache
from attnlab.attention.heads import (
    AttentionOptions,
    Grouped,
    HeadedAttention,
    Layer,
    MultiHead,
    MultiQuery,
)
from attnlab.attention.scores import ScaledDot
from attnlab.kernels import LinearBias, rotate, rotation


def build(settings, **options):
    torch.manual_seed(0)
    return HeadedAttention(settings, ScaledDot().build(4, 4), Layer(width=16, **options)).double()


@pytest.mark.parametrize("settings", [Grouped(heads=4, kv_heads=2), MultiQuery(heads=4)], ids=str)
def test_shared_heads_are_multi_head_attention_with_repeated_keys(settings):
    few, many = build(settings), build(MultiHead(heads=4))
    q, k, v = few.project.weight.split([16, 4 * settings.kv_heads, 4 * settings.kv_heads])
    ratio = 4 // settings.kv_heads
    repeated = [w.unflatten(0, (-1, 4)).repeat_interleave(ratio, 0).flatten(0, 1) for w in (k, v)]
    with torch.no_grad():
        many.project.weight.copy_(torch.cat([q, *repeated]))
        many.merge.weight.copy_(few.merge.weight)
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    torch.testing.assert_close(few(x), many(x))
    tiled = [w.unflatten(0, (-1, 4)).repeat(ratio, 1, 1).flatten(0, 1) for w in (k, v)]
    with torch.no_grad():
        many.project.weight.copy_(torch.cat([q, *tiled]))
    same = torch.allclose(few(x), many(x))
    assert same == (settings.kv_heads == 1)  # tiling is another map, unless there is one head


def test_more_key_heads_mean_more_parameters():
    sizes = [
        sum(p.numel() for p in build(s).parameters())
        for s in (MultiQuery(heads=4), Grouped(heads=4, kv_heads=2), MultiHead(heads=4))
    ]
    assert sizes == [16 * (4 + 2 * n) * 4 + 16 * 16 for n in (1, 2, 4)]


def test_heads_can_be_wider_than_the_model_divided():
    module = HeadedAttention(
        MultiHead(heads=3, head_width=8), ScaledDot().build(3, 8), Layer(width=10)
    )
    assert module(torch.randn(2, 5, 10)).shape == (2, 5, 10)


def test_weights_can_be_looked_at():
    module = build(Grouped(heads=4, kv_heads=2), window=3)
    x = torch.randn(1, 7, 16, dtype=torch.float64)
    weights = module.weights(x, AttentionOptions())
    assert weights.shape == (1, 4, 7, 7)
    v = module.request(x, AttentionOptions()).v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(module.join(weights @ v), module(x))
    assert torch.equal(weights[0, 0] > 0, torch.ones(7, 7).tril().triu(-2).bool())


@pytest.mark.parametrize("score", [option.name for option in registry.options("score")])
def test_rotation_comes_before_the_score(score):
    torch.manual_seed(0)
    made = registry.load("score", score)().build(4, 4)
    module = HeadedAttention(Grouped(heads=4, kv_heads=2), made, Layer(width=16, window=6)).double()
    x, by = torch.randn(2, 11, 16).double(), rotation(torch.arange(11)[None], 2).last(11)
    request = module.request(x, AttentionOptions())
    request.q, request.k = rotate(request.q, by), rotate(request.k, by)
    torch.testing.assert_close(module(x, rotary=by), module.join(made.attend(request)))
    assert not torch.allclose(module(x, rotary=by), module(x))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"key_padding": torch.zeros(1, 7, dtype=torch.bool)}, "key_padding has shape"),
        ({"key_padding": torch.zeros(2, 1, dtype=torch.bool)}, "key_padding has shape"),
        ({"key_padding": torch.zeros(2, 7)}, "it must be bool, True for padding"),
        ({"rotary": rotation(torch.arange(1)[None], 2)}, "rotary covers"),
        ({"rotary": rotation(torch.arange(7)[None], 3)}, "rotary turns 6 coordinates of a width"),
        ({"bias": LinearBias(torch.ones(1))}, "one slope for each of the 4 heads"),
    ],
)
def test_what_does_not_fit_the_tokens_is_refused(wrong, message, unchecked_shapes):
    """PyTorch would broadcast some of it without a word."""
    with pytest.raises(ValueError, match=message):
        build(MultiHead(heads=4))(torch.randn(2, 7, 16).double(), **wrong)


def test_tokens_of_other_texts_are_refused_by_the_cache():
    module, cache = build(MultiHead(heads=4)), FullCache()
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    module(x, cache=cache)
    with pytest.raises(ValueError, match="the cache holds 2 texts"):
        module(x[:1], cache=cache)


def test_future_is_seen_only_without_causality():
    module = build(MultiHead(heads=4))
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    changed = x.clone()
    changed[:, 4:] += 1
    assert torch.equal(module(x)[:, :4], module(changed)[:, :4])
    assert not torch.equal(module(x, causal=False)[:, :4], module(changed, causal=False)[:, :4])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiHead(heads=0), r"attention\.heads is 0"),
        (lambda: Grouped(heads=4, kv_heads=3), "attention.heads 4 is not a multiple of"),
        (lambda: Grouped(heads=4, kv_heads=0), r"attention\.kv_heads is 0"),
        (lambda: MultiQuery(heads=2, head_width=-1), r"attention\.head_width is -1"),
        (
            lambda: build(MultiHead(heads=3)),
            "width 16 does not divide into 3 heads; use a width of 15 or 18",
        ),
        (lambda: build(MultiHead(heads=4), window=0), "window is 0"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("score", [option.name for option in registry.options("score")])
def test_weights_are_left_out_while_training_and_not_afterwards(score):
    torch.manual_seed(0)
    made = registry.load("score", score)().build(2, 4)
    module = HeadedAttention(MultiHead(heads=2), made, Layer(width=8, dropout=0.5))
    x = torch.randn(3, 11, 8)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(module(x))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    module.eval()
    assert torch.equal(module(x), module(x)) and not torch.allclose(module(x), outs[0])


@pytest.mark.parametrize("score", [option.name for option in registry.options("score")])
def test_the_backward_pass_leaves_out_the_same_weights(score):
    """Against differences, with the generator set back for every call."""
    torch.manual_seed(0)
    made = registry.load("score", score)().build(2, 3)
    module = HeadedAttention(MultiHead(heads=2), made, Layer(width=6, dropout=0.5)).double()

    def run(x):
        torch.manual_seed(3)
        return module(x)

    x = torch.randn(1, 5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (x,))
