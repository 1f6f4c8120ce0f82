"""Gated DeltaNet as a layer: its formula, its cache, its cost, and what it refuses."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from attnlab import config
from attnlab.attention import delta
from attnlab.attention.delta import GatedDelta, StateCache
from attnlab.attention.heads import AttentionOptions, Layer
from attnlab.kernels import LinearBias, Segments, rotation
from attnlab.models.transformer import TransformerSettings
from attnlab.page import inspection
from attnlab.training.optim import AdamW, Muon
from attnlab.training.recipe import Recipe

WIDTH, LENGTH = 12, 23
PLAIN = AttentionOptions()
SMALL = TransformerSettings(vocabulary=13, context=48, width=24, depth=2)
WORDS = ["attention=gated-delta", "positions=none"]


def build(**settings):
    torch.manual_seed(0)
    layer = Layer(width=WIDTH, context=LENGTH)
    module = GatedDelta(heads=3, **settings).build(layer).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module


def model_of(*words):
    torch.manual_seed(0)
    return config.override(SMALL, [*WORDS, *words]).build()


def tokens(batch=2, length=LENGTH):
    rng = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, WIDTH, generator=rng, dtype=torch.float64)


def by_hand(module, x):
    """One text, token by token and head by head."""
    heads, width = module.heads, module.head_width
    inner = heads * width
    projected = x @ module.project.weight.T
    mixed = projected[:, : 3 * inner]
    if module.taps is not None:
        taps = module.taps[:, 0]
        mixed = torch.stack(
            [
                sum(taps[age] * mixed[t - age] for age in range(len(taps)) if t >= age)
                for t in range(len(x))
            ]
        )
    q, k, v = F.silu(mixed).split(inner, -1)
    outs = torch.zeros(len(x), inner, dtype=x.dtype)
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        state = torch.zeros(width, width, dtype=x.dtype)
        for t in range(len(x)):
            key, query = (one[t, own] / (one[t, own].norm() ** 2 + 1e-6).sqrt() for one in (k, q))
            beta = projected[t, 3 * inner + head].sigmoid()
            step = F.softplus(projected[t, 3 * inner + heads + head] + module.step_bias[head])
            state = (-module.log_rate[head].exp() * step).exp() * state
            state = state + beta * torch.outer(key, v[t, own] - state.T @ key)
            out = state.T @ query
            out = out / (out.square().mean() + 2.0**-23).sqrt() * module.norm.weight
            if module.sizes[-1]:
                out = out * F.silu(projected[t, 3 * inner + 2 * heads :][own])
            outs[t, own] = out
    return outs @ module.merge.weight.T


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("mixed", [None, 2, 4])
def test_it_is_its_formula(mixed, gate):
    module, x = build(mixed=mixed, gate=gate), tokens()
    found = module(x, options=PLAIN)
    torch.testing.assert_close(found, torch.stack([by_hand(module, one) for one in x]))


def test_the_cache_has_one_size_however_much_was_read():
    module, cache = build(), StateCache()
    sizes = []
    with torch.inference_mode():
        for piece in tokens(length=40).split([1, 30, 2, 7], 1):
            module(piece, options=PLAIN, cache=cache)
            sizes.append(cache.bytes)
    states, recent = 3 * 4 * 4, 3 * 3 * WIDTH  # heads · width²; three tokens before the next
    assert sizes == [2 * 8 * (states + recent)] * 4
    assert cache.recent.untyped_storage().nbytes() == 2 * 8 * recent, "and keeps nothing alive"


def test_tokens_of_other_texts_are_refused_by_the_cache():
    module, cache = build(), StateCache()
    module(tokens(), cache=cache)
    with pytest.raises(ValueError, match="the cache holds 2 texts, and these are tokens of 1"):
        module(tokens(1), cache=cache)


@pytest.mark.parametrize("padded", [False, True])
def test_documents_in_a_row_are_as_alone(padded):
    module, x = build(), tokens()
    documents = torch.tensor([[0] * 2 + [1] * 9 + [4] * 12, [0] * 20 + [1] + [2] * 2])
    padding = torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.3 * padded
    options = AttentionOptions(
        segments=Segments(documents, documents), key_padding=padding if padded else None
    )
    found = module(x, options=options)
    for row in range(2):
        for number in documents[row].unique():
            here = (documents[row] == number) & ~padding[row]
            if here.any():
                alone = module(x[row, here][None], options=PLAIN)[0]
                torch.testing.assert_close(found[row, here], alone)


def test_what_stands_where_there_is_padding_is_never_read():
    module, x = build(), tokens()
    padding = torch.arange(LENGTH)[None] < torch.tensor([[5], [0]])
    options = AttentionOptions(key_padding=padding)
    poisoned = x.masked_fill(padding[..., None], torch.nan).requires_grad_()
    found = module(poisoned, options=options)
    assert torch.equal(found[~padding], module(x, options=options)[~padding])
    found[~padding].sum().backward()
    assert all(one.grad.isfinite().all() for one in module.parameters())


@pytest.mark.parametrize("padded", [False, True])
def test_its_weights_times_values_are_what_goes_into_the_norm(padded):
    module, x = build(mixed=2), tokens()
    padding = torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.3
    options = AttentionOptions(key_padding=padding if padded else None)
    given = []
    module.norm.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    module(x, options=options)
    weights = module.weights(x, options)
    assert weights.shape == (2, 3, LENGTH, LENGTH)
    for row in range(2):
        there = ~padding[row] if padded else torch.ones(LENGTH, dtype=torch.bool)
        v = module._read(x[row, there][None], PLAIN)[0][2][0]
        out = weights[row][:, there][:, :, there] @ v
        torch.testing.assert_close(out.transpose(0, 1), given[0][row, : int(there.sum())])


@pytest.mark.parametrize("context", [5, 16, 24, 48, 100])
def test_operations_are_those_that_torch_counts(context):
    """Besides half a product for each system, forward and back, which torch does not count."""
    model = model_of("attention.heads=3")
    counter = FlopCounterMode(display=False)
    with counter:
        model(torch.zeros(2, context, dtype=torch.long)).sum().backward()
    count, size = delta.delta.chunks(context)
    systems = 2 * 3 * count * 2 * size**2 * 8  # layers, heads; forward and back; head width 8
    expected = counter.get_total_flops() / (2 * context) + systems / context
    assert model.operations(context) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["positions=rotary"], "gated-delta .* takes no rotary positions; use model.positions="),
        (["positions=alibi"], "gated-delta .* takes no alibi positions"),
        (["positions=fire"], "gated-delta .* takes no fire positions"),
        (["window=none,5"], "so model.window=5 would not reach it; write model.window=none"),
        (["chunk=8"], "so model.chunk=8 would not reach it"),
        (["soft_cap=9"], "so model.soft_cap=9.0 would not reach it"),
        (["sink=learned"], "so model.sink=learned would not reach it"),
        (
            ["norm_heads=true"],
            "so model.norm_heads=true would not reach it; write model.norm_heads=false",
        ),
        (["attention_dropout=0.5"], "so model.attention_dropout=0.5 would not reach it"),
        (["gate=headwise"], "so model.gate=headwise would not reach it; write model.gate=none"),
        (["value_residual=first"], "so model.value_residual=first would not reach it"),
        (["value_embedding=true"], "so model.value_embedding=true would not reach it; write"),
        (["shared_kv=false,true"], "model.shared_kv=true would not .* write model.shared_kv=false"),
        (["score=additive"], "gated-delta stands for the score too"),
        (["attention.heads=5"], "width 24 does not divide into 5 heads"),
    ],
)
def test_what_would_not_reach_it_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        model_of(*words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"causal": False}, "reads a text from its beginning; use causal=True"),
        ({"prefix": torch.tensor([1, 2])}, "leave out prefix"),
        ({"rotary": rotation(torch.arange(LENGTH)[None], 2)}, "takes no rotary positions"),
        ({"bias": LinearBias(torch.ones(3))}, "takes no biased positions"),
    ],
)
def test_what_a_call_asks_for_and_it_does_not_have_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build()(tokens(), options=AttentionOptions(**options))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"mixed": 1},
            r"attention\.mixed is 1; it counts the token itself, so use 2 or more, or none",
        )
    ],
)
def test_nonsense_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GatedDelta(**settings)


def test_decays_begin_between_a_token_and_a_thousand():
    """Rates of 1 to 16 a step, and steps of 0.001 to 0.1, as softplus of their bias."""
    torch.manual_seed(0)
    module = GatedDelta(heads=64, head_width=4).build(Layer(width=WIDTH, context=LENGTH))
    rates, steps = module.log_rate.exp(), F.softplus(module.step_bias)
    assert 1 <= rates.min() < 3 and 14 < rates.max() <= 16
    assert 1e-3 <= steps.min() < 2e-3 and 5e-2 < steps.max() <= 1e-1 * (1 + 1e-5)  # float32


def loss_of(model, texts):
    return F.cross_entropy(model(texts)[:, :-1].flatten(0, 1), texts[:, 1:].flatten())


@pytest.mark.parametrize("optimiser", [AdamW(rate=1e-2), Muon()], ids=["adamw", "muon"])
@pytest.mark.parametrize(
    "words", [[], ["attention.mixed=none", "attention.gate=false", "bias=true"]]
)
def test_a_model_of_it_trains(words, optimiser):
    model = model_of(*words)
    texts = torch.randint(13, (2, 40), generator=torch.Generator().manual_seed(0))
    made = optimiser.build(model)
    first = loss_of(model, texts)
    assert abs(first - math.log(13)) < 0.1  # at the start it knows nothing
    for _ in range(60):
        made.zero_grad()
        loss_of(model, texts).backward()
        assert all(one.grad.isfinite().all() for one in model.parameters())
        made.step()
    assert loss_of(model, texts) < first - 1  # 40 tokens of 2 texts are soon known by heart


@torch.no_grad()
def test_saved_settings_and_weights_are_the_same_model():
    recipe = Recipe(model=config.override(SMALL, [*WORDS, "attention.mixed=3"]))
    again = config.from_dict(Recipe, config.to_dict(recipe))
    assert again == recipe
    texts = torch.randint(13, (2, 40), generator=torch.Generator().manual_seed(0))
    model, other = recipe.model.build(), again.model.build()
    assert not torch.equal(model(texts), other(texts))  # other weights
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(texts), other(texts))


def test_no_vector_of_taps_is_taken_for_a_matrix():
    """Muon turns matrices so that their rows are at right angles."""
    module = build()
    assert [one.ndim for one in (module.taps, module.log_rate, module.step_bias)] == [3, 1, 1]


def test_the_page_says_why_there_are_no_weights_and_shows_influence():
    *_, found = inspection.read(model_of(), [1, 2, 3, 4], list("abcd"))
    assert found.absent.startswith("The delta rule has no attention weights to show")
    assert not found.layers and len(found.influence) == 4
