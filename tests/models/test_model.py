"""Every registered model: logits, causality, decoding, and what training it costs.

Operations are held against PyTorch's own count, and against pairs counted one by one.
"""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnlab import config, registry
from attnlab.attention.heads import combinations
from attnlab.kernels import dispatch
from attnlab.kernels.dispatch import Choice
from attnlab.models.model import Decoder, LanguageModel, ModelSettings, parameters
from attnlab.models.recurrent import ElmanSettings, PrefixBidirectionalSettings
from attnlab.models.transformer import TransformerSettings

CONTEXT = 24
MODELS = [option.name for option in registry.options("model")]


def small(name):
    """A registered model with few parameters, far from the start, where everything is flat."""
    torch.manual_seed(0)
    settings = registry.load("model", name)(vocabulary=31, width=24)
    assert isinstance(settings, ModelSettings)
    model = settings.build().double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def text(batch=3, length=17, seed=0):
    return torch.randint(31, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_model_gives_logits_of_each_text_alone(name):
    model, tokens = small(name), text()
    assert isinstance(model, LanguageModel)
    logits = model(tokens)
    assert logits.shape == (3, 17, 31) and logits.isfinite().all()
    torch.testing.assert_close(model(tokens[1:2]), logits[1:2])
    assert registry.name_of("model", model.settings) == name


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_model_is_causal_or_says_that_it_is_not(name):
    model, tokens = small(name), text()
    changed = tokens.clone()
    changed[:, 11] = (changed[:, 11] + 1) % 31
    moved = (model(tokens) - model(changed)).abs().amax((0, 2)) > 1e-12
    assert moved[11] and bool(moved[:11].any()) != model.causal


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_model_with_a_cache_reads_on_as_it_reads_the_whole(name):
    """Rows padded on the left among them, and the same cache again after a reset."""
    model, tokens = small(name), text()
    if not isinstance(model, Decoder):
        assert not hasattr(model, "new_cache")
        return
    cache = model.new_cache()
    padding = torch.arange(17)[None] < torch.tensor([[5], [0], [1]])
    positions = (torch.arange(17)[None] - padding.sum(1, keepdim=True)).clamp(min=0)
    alone = [model(row[None, pad:])[0] for row, pad in zip(tokens, padding.sum(1), strict=True)]
    for sizes in ([1] * 17, [9, 1, 7]):
        assert cache.length == 0
        steps, start = [], 0
        for size in sizes:
            piece = slice(start, start + size)
            options = {"positions": positions[:, piece], "key_padding": padding[:, piece]}
            steps.append(model(tokens[:, piece], cache=cache, **options))
            start += size
            assert cache.length == start and cache.bytes > 0
        for row, logits in zip(torch.cat(steps, dim=1), alone, strict=True):
            torch.testing.assert_close(row[17 - len(logits) :], logits, atol=1e-9, rtol=0)
        cache.reset()


@pytest.mark.parametrize("name", MODELS)
def test_operations_of_a_model_are_those_that_torch_counts(name, monkeypatch):
    """Roughly: the dense definition computes all pairs, and states at zero save a product."""
    model = small(name).float().train()
    counted = all_products(model, CONTEXT, monkeypatch)
    assert model.operations(CONTEXT) == pytest.approx(counted, rel=0.1)


def model_of(*words):
    settings = TransformerSettings(vocabulary=31, context=CONTEXT, width=24, depth=3)
    return config.override(settings, ["attention.heads=2", *words]).build()


def counted_by_torch(model, context):
    """Operations of the linear layers in a forward and a backward pass, for one token."""
    tokens = torch.zeros(2, context, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with counter:
        model(tokens).sum().backward()
    products = counter.get_flop_counts()["Global"]
    linear = sum(n for op, n in products.items() if str(op) in ("aten.mm", "aten.addmm"))
    return linear / (2 * context)


def pairs(context, window):
    return sum(
        1
        for query in range(context)
        for key in range(query + 1)
        if window is None or query - key < window
    )


def all_products(model, context, monkeypatch):
    """Every product of matrices in a forward and a backward pass, for one token."""
    monkeypatch.setattr(dispatch, "choose", lambda request, path: Choice("reference", "a test"))
    counter = FlopCounterMode(display=False)
    with counter:
        model(torch.zeros(2, context, dtype=torch.long)).sum().backward()
    return counter.get_total_flops() / (2 * context)


@pytest.mark.parametrize("context", [1, 7, CONTEXT])
@pytest.mark.parametrize("window", ["none", "5"])
@pytest.mark.parametrize(("kind", "score"), combinations())
def test_every_score_is_counted_as_torch_counts_its_products(
    score, kind, window, context, monkeypatch
):
    """The dense definition computes all pairs; we count those that attend to each other."""
    model = model_of(f"score={score}", f"attention={kind}", f"window={window}")
    unneeded = 0.0
    for block in model.blocks:
        heads = block.attention
        seen = pairs(context, heads.window) / context
        unneeded += heads.operations_of(context) - heads.operations_of(seen)
    counted = all_products(model, context, monkeypatch) - unneeded
    assert model.operations(context) == pytest.approx(counted, rel=1e-12)


def test_an_additive_score_has_its_inner_layer_counted():
    """Wider inside costs more; what the backward pass computes again counts too."""
    narrow, wide = (model_of("score=additive", f"score.width={width}") for width in (12, 30))
    plain = model_of().operations(CONTEXT)
    assert wide.operations(CONTEXT) > narrow.operations(CONTEXT) > plain
    found = wide.blocks[0].attention.score.operations(12, 10)
    assert found.repeated == 2 * 30 * 10
    assert found.forward == 4 * 12 * 30 + 2 * (30 + 12) * 10


@pytest.mark.parametrize("window", ["none", "5", "5,none", "1", "24,23,25", "100"])
def test_attention_is_counted_by_the_pairs_that_see_each_other(window):
    model = model_of(f"window={window}")
    linear = 6 * sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    seen = sum(pairs(CONTEXT, model.settings.window_of(layer)) for layer in range(3))
    # scores and their use: two products of head_width for each head, with two operations each
    attention = 3 * 4 * 24 * seen / CONTEXT
    assert model.operations(CONTEXT) == pytest.approx(linear + attention, rel=1e-12)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["tied=false", "bias=true", "norm=layer"],
        ["feedforward=swiglu"],
        ["attention=grouped", "attention.heads=4", "attention.kv_heads=2"],
        ["attention.head_width=7", "feedforward=squared-relu", "expansion=2.5"],
    ],
    ids=str,
)
def test_linear_layers_are_counted_as_torch_counts_them(words):
    model = model_of(*words, "window=1")  # every query sees its own key alone
    heads = model.blocks[0].attention
    attention = 3 * 4 * heads.heads * heads.head_width * 3
    assert model.operations(CONTEXT) - attention == counted_by_torch(model, CONTEXT)


def test_control_a_missing_layer_is_noticed():
    model = model_of("window=1")
    expected = counted_by_torch(model, CONTEXT)
    model.blocks = model.blocks[:2]
    assert counted_by_torch(model, CONTEXT) < expected


def test_an_elman_network_is_its_matrices():
    """The state before the first token is zero and needs no gradient: one product less in all."""
    model = ElmanSettings(vocabulary=31, width=24).build()
    saved = 2 * model.recurrence.from_hidden.weight.numel() / CONTEXT
    assert model.operations(CONTEXT) - saved == counted_by_torch(model, CONTEXT)


def test_prefixes_are_counted_one_by_one():
    """Rows that drop out at each step; states that begin at zero save a hundredth or so."""
    model = PrefixBidirectionalSettings(vocabulary=31, width=24).build()
    assert model.operations(CONTEXT) == pytest.approx(counted_by_torch(model, CONTEXT), rel=0.02)


def test_parameters_are_each_counted_once():
    tied, untied = model_of("tied=true"), model_of("tied=false")
    assert parameters(untied) - parameters(tied) == 31 * 24
    assert parameters(tied) == sum(p.numel() for p in tied.parameters())
