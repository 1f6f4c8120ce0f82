"""Every registered attention computes what its head map says."""

import math

import pytest
import torch

from attnlab import registry
from attnlab.attention.heads import HeadedAttention, HeadSettings, head_width
from attnlab.attention.scores import ScaledDot

NAMES = [option.name for option in registry.options("attention")]
WIDTH, LENGTH = 24, 11


def build(name, window=None):
    settings = registry.load("attention", name)()
    torch.manual_seed(0)
    score = ScaledDot().build(settings.heads, head_width(settings, WIDTH))
    return HeadedAttention(settings, score, width=WIDTH, window=window).double()


def by_hand(module, x, window):
    """Query by query; query head i reads key/value head i // (heads // kv_heads)."""
    heads, shared, width = module.heads, module.kv_heads, module.head_width
    sizes = [heads * width, shared * width, shared * width]
    q, k, v = (part.unflatten(-1, (-1, width)) for part in module.project(x).split(sizes, dim=-1))
    outs = torch.zeros(*x.shape[:2], heads, width, dtype=x.dtype)
    for row in range(x.shape[0]):
        for head in range(heads):
            read = head // (heads // shared)
            for t in range(x.shape[1]):
                first = 0 if window is None else max(0, t - window + 1)
                scores = k[row, first : t + 1, read] @ q[row, t, head] / math.sqrt(width)
                outs[row, t, head] = scores.softmax(0) @ v[row, first : t + 1, read]
    return module.merge(outs.flatten(2))


@pytest.mark.parametrize("name", NAMES)
def test_its_settings_say_how_many_heads_there_are(name):
    settings = registry.load("attention", name)()
    assert isinstance(settings, HeadSettings)
    assert settings.heads >= settings.kv_heads >= 1 and settings.heads % settings.kv_heads == 0


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_it_equals_the_definition_for_its_head_map(name, window):
    module = build(name, window)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(module(x), by_hand(module, x, window))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name):
    module = build(name)
    module(torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)).square().sum().backward()
    for parameter in module.parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0
