"""Scores against their formulas, written out pair by pair."""

import math

import pytest
import torch

from attnlab import registry
from attnlab.attention import scores
from attnlab.bench.measure import peak_memory
from attnlab.kernels import LinearBias, Request
from attnlab.kernels.mask import visible
from attnlab.kernels.reference import masked_softmax

NAMES = [option.name for option in registry.options("score")]
HEADS, KV_HEADS, WIDTH = 4, 2, 6


def build(name, **settings):
    torch.manual_seed(0)
    module = registry.load("score", name)(**settings).build(HEADS, WIDTH).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


def inputs(queries=11, keys=11, batch=2):
    rng = torch.Generator().manual_seed(1)
    shapes = [(HEADS, queries), (KV_HEADS, keys), (KV_HEADS, keys)]
    return [
        torch.randn(batch, h, t, WIDTH, generator=rng, dtype=torch.float64, requires_grad=True)
        for h, t in shapes
    ]


def attend(module, q, k, v, **options):
    return module.attend(Request(q=q, k=k, v=v, **options))


def formula(name, module, head, q, k):
    if name == "scaled-dot":
        return k @ q / math.sqrt(WIDTH)
    if name == "multiplicative":
        return k @ module.matrix[head] @ q / math.sqrt(WIDTH)
    if name == "concatenated":
        return torch.cat((module.for_key[head], module.for_query[head])) @ torch.cat((k, q))
    inner = torch.cat((module.for_key[head], module.for_query[head])).T @ torch.cat((k, q))
    return module.outer[head] @ torch.tanh(inner)


def by_hand(name, module, q, k, v, window=None, bias=None, key_padding=None):
    """Every pair's score by its formula, then the definition."""
    table = torch.stack(
        [
            torch.stack(
                [
                    torch.stack(
                        [
                            torch.stack(
                                [
                                    formula(name, module, h, qi, kj)
                                    for kj in k[b, h // (HEADS // KV_HEADS)]
                                ]
                            )
                            for qi in q[b, h]
                        ]
                    )
                    for h in range(HEADS)
                ]
            )
            for b in range(len(q))
        ]
    )
    at, to = torch.arange(k.shape[2] - q.shape[2], k.shape[2]), torch.arange(k.shape[2])
    seen = visible(at, to, True, window)[None, None]
    if key_padding is not None:
        seen = seen & ~key_padding[:, None, None]
    weights = masked_softmax(
        table, seen, None if bias is None else bias.of_distance(at[:, None] - to)
    )
    return weights @ v.repeat_interleave(HEADS // KV_HEADS, dim=1), weights


def options():
    padding = torch.zeros(2, 11, dtype=torch.bool)
    padding[1, :3] = True
    slopes = LinearBias(torch.tensor([0.5, 0.25, 0.1, 0.05], dtype=torch.float64))
    return [{}, {"window": 4}, {"window": 1, "bias": slopes}, {"window": 5, "key_padding": padding}]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", range(4))
def test_equals_its_formula(name, number):
    module, (q, k, v), seeing = build(name), inputs(), options()[number]
    leaves = [q, k, v, *module.parameters()]
    want, want_weights = by_hand(name, module, q, k, v, **seeing)
    got = attend(module, q, k, v, **seeing)
    torch.testing.assert_close(got, want)
    grad = torch.randn_like(want)
    for mine, theirs in zip(
        torch.autograd.grad(got, leaves, grad), torch.autograd.grad(want, leaves, grad), strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    with torch.no_grad():
        torch.testing.assert_close(attend(module, q, k, v, **seeing), want)
    weights = module.weights(Request(q=q, k=k, v=v, **seeing))
    torch.testing.assert_close(weights, want_weights)


@pytest.mark.parametrize("at_once", [1, 500, 10_000])
def test_additive_is_the_same_in_any_chunks(at_once, monkeypatch):
    module, (q, k, v) = build("additive", width=9), inputs(queries=8)
    want = by_hand("additive", module, q, k, v, window=5)[0]
    monkeypatch.setattr(scores, "NUMBERS_AT_ONCE", at_once)
    got = attend(module, q, k, v, window=5)
    torch.testing.assert_close(got, want)
    leaves = [q, k, v, *module.parameters()]
    mine = torch.autograd.grad(got.sum(), leaves)
    for one, other in zip(mine, torch.autograd.grad(want.sum(), leaves), strict=True):
        torch.testing.assert_close(one, other)


def test_additive_never_keeps_the_inner_layer(monkeypatch):
    """1,024² pairs of width 64 would be 268 MB, kept for the backward pass."""
    monkeypatch.setattr(scores, "NUMBERS_AT_ONCE", 1 << 20)
    module = scores.Additive(width=64).build(1, 16)
    q, k, v = (torch.randn(1, 1, 1024, 16, requires_grad=True) for _ in range(3))

    def run():
        attend(module, q, k, v).sum().backward()

    run()
    peak = peak_memory(run, torch.device("cpu"))
    if peak is None:
        pytest.skip("this system does not tell a process its peak memory")
    assert peak < 60e6, f"{peak / 1e6:.0f} MB"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_attend_to(name):
    module = build(name)
    for queries, keys in ((0, 4), (4, 0)):
        q, k, v = inputs(queries, keys)
        assert attend(module, q, k, v).shape == (2, HEADS, queries, WIDTH)


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match=r"score\.width is 0"):
        scores.Additive(width=0)
