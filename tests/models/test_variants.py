"""What can change inside the attention of a transformer: each variant decodes, trains, is counted.

A row of VARIANTS is a variant; everything here runs over all of them.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnlab import config
from attnlab.attention.delta import DeltaAttention
from attnlab.kernels import delta, dispatch
from attnlab.kernels.dispatch import Choice
from attnlab.models.transformer import TransformerSettings

SMALL = TransformerSettings(vocabulary=13, context=48, width=24, depth=3)
VARIANTS = {
    "elementwise": ["gate=elementwise"],
    "headwise": ["gate=headwise", "attention=grouped", "bias=true"],
    "differential": ["attention=differential"],
    "differential, grouped": [
        *("attention=differential", "attention.group=2", "attention.head_width=4"),
        *("gate=headwise", "norm_heads=true"),
    ],
    "value residual": ["value_residual=first", "attention=grouped"],
    "value embedding": ["value_embedding=false,true", "attention=grouped", "bias=true"],
    "value embedding and residual": ["value_embedding=true", "value_residual=first"],
    "value embedding of two maps": ["value_embedding=true", "attention=differential"],
    "shared keys": ["shared_kv=false,false,true", "attention=grouped", "norm_heads=true"],
    "shared keys of two maps": ["shared_kv=false,false,true", "attention=differential"],
    "shared keys and mixed values": [
        *("shared_kv=false,false,true", "value_embedding=true", "value_residual=first"),
        *("gate=headwise", "bias=true"),
    ],
    "value residual of two maps": ["value_residual=first", "attention=differential"],
    "latent": ["attention=latent", "attention.kv_rank=7", "attention.rotary_width=4"],
    "latent queries": [
        *("attention=latent", "attention.kv_rank=3", "attention.rotary_width=3"),
        *("attention.q_rank=5", "attention.head_width=5", "attention.value_width=8"),
        *("gate=elementwise", "bias=true"),
    ],
    "gains that are offsets": [
        *("norm_offset=true", "norm_heads=true", "head_gains=true", "norm_epsilon=0.01"),
        *("norm_place=both", "feedforward=geglu", "embedding_scale=4.9", "attention=grouped"),
    ],
    "norms after the parts": ["norm_place=after", "qkv_bias=true", "score.scale=0.3", "tied=false"],
    "parts side by side": [
        *("parallel=true", "norm=layer", "bias=true", "qkv_bias=false", "feedforward=gelu-tanh"),
    ],
    "hybrid": ["attention=gated-delta", "attention.full_every=2", "window=4"],
    "hybrid of latent": [
        *("attention=gated-delta", "attention.full_every=2", "attention.full=latent"),
        *("attention.mixed=2", "attention.full.kv_rank=7", "attention.full.rotary_width=4"),
        *("window=4", "gate=headwise", "bias=true"),
    ],
    "gains of shared keys": ["shared_kv=false,false,true", "norm_heads=true", "head_gains=true"],
}
LENGTH = 19  # a ring of 5 keys and a chunk of 7 begin anew, twice and more
WINDOWS = ["window=none", "window=5", "window=5,none"]
# of what stands beside a variant: each changes the scores in its own way
BESIDE = [
    [],
    ["positions=alibi", "sink=learned", "bias=true"],
    ["positions=rotary", "positions.layout=interleaved", "soft_cap=1.5", "chunk=7"],
]


def settings_of(name, *words):
    return config.override(SMALL, [*words, *VARIANTS[name]])


def build(name, *words):
    torch.manual_seed(0)
    model = settings_of(name, *words).build().double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # far from the start, where everything is flat
    return model


def text(batch=2, length=LENGTH, seed=0):
    return torch.randint(13, (batch, length), generator=torch.Generator().manual_seed(seed))


def decode(model, tokens, sizes, cache, padding=None):
    """With left padding, positions count from the first token of each row."""
    steps, start = [], 0
    while start < tokens.shape[1]:
        piece = slice(start, start + sizes[len(steps) % len(sizes)])
        given = {}
        if padding is not None:
            positions = torch.arange(tokens.shape[1])[None] - padding.sum(1, keepdim=True)
            given = {
                "positions": positions.clamp(min=0)[:, piece],
                "key_padding": padding[:, piece],
            }
        steps.append(model(tokens[:, piece], cache=cache, **given))
        start = piece.stop
    return torch.cat(steps, dim=1)


@pytest.mark.parametrize("words", BESIDE, ids=str)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_decoding_in_pieces_is_the_full_forward_pass(name, window, words):
    model, tokens = build(name, window, *words), text()
    cache, whole = model.new_cache(), model(tokens)
    for sizes in ([1], [3, 1, 11], [2, 7], [LENGTH]):
        cache.reset()
        got = decode(model, tokens, sizes, cache)
        torch.testing.assert_close(got, whole, atol=1e-9, rtol=0)  # float64: rounding of sums


@pytest.mark.parametrize("words", BESIDE, ids=str)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_a_row_padded_on_the_left_is_decoded_as_if_alone(name, window, words):
    model, tokens = build(name, window, *words), text(3)
    padding = torch.arange(LENGTH)[None] < torch.tensor([[6], [0], [1]])
    for sizes in ([1], [9, 1, 17]):
        got = decode(model, tokens, sizes, model.new_cache(), padding)
        for row, pad in enumerate(padding.sum(1).tolist()):
            alone = model(tokens[row : row + 1, pad:])[0]
            torch.testing.assert_close(got[row, pad:], alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_no_token_changes_what_came_before_it(name):
    model, tokens = build(name), text()
    changed = tokens.clone()
    changed[:, 15:] = (changed[:, 15:] + 1) % 13
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :15], after[:, :15])
    assert not torch.equal(before[:, 15], after[:, 15])


@pytest.mark.parametrize("words", BESIDE, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_reach_every_parameter_and_are_those_of_differences(name, words):
    """Along one direction through all parameters at once, in float64."""
    model, tokens = build(name, "window=5,none", *words).train(), text(length=19)
    parameters, rng = list(model.parameters()), torch.Generator().manual_seed(1)
    along = [torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in parameters]
    towards = torch.randn(2, 19, 13, generator=rng, dtype=torch.float64)
    (model(tokens) * towards).sum().backward()
    for parameter, (named, _) in zip(parameters, model.named_parameters(), strict=True):
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, named
    slope = sum(float((p.grad * way).sum()) for p, way in zip(parameters, along, strict=True))
    sums, step = [], 1e-6
    with torch.no_grad():
        for sign in (1, -2):  # one step ahead, then two back
            for p, way in zip(parameters, along, strict=True):
                p += sign * step * way
            sums.append(float((model(tokens) * towards).sum()))
    # central differences: their own error is near 1e-6 of the slope
    assert (sums[0] - sums[1]) / (2 * step) == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("context", [7, 24])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", VARIANTS)
def test_operations_are_those_that_torch_counts(name, window, context, monkeypatch):
    """The dense definition computes all pairs; we count those that attend to each other."""
    model = settings_of(name, window).build()
    monkeypatch.setattr(dispatch, "choose", lambda request, path: Choice("reference", "a test"))
    counter = FlopCounterMode(display=False)
    with counter:
        model(text(2, context)).sum().backward()
    unneeded = 0.0
    for block in model.blocks:
        attention = block.attention
        if isinstance(attention, DeltaAttention):  # two systems of its chunks, uncounted by torch
            count, size = delta.chunks(context)
            unneeded -= 2 * count * size**2 * attention.head_width * attention.heads / context
            continue
        reach = attention.window or context
        seen = sum(min(n + 1, reach) for n in range(context)) / context
        unneeded += attention.operations_of(context) - attention.operations_of(seen)
    counted = counter.get_total_flops() / (2 * context) - unneeded
    assert model.operations(context) == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_matrix_begins_as_the_model_says(name):
    torch.manual_seed(0)
    model = settings_of(name, "width=96", "depth=8").build()
    for named, weight in model.named_parameters():
        if weight.ndim == 2:
            part = 1 / 4 if named.endswith(("merge.weight", "down.weight")) else 1
            count = weight.numel() ** 0.5
            assert weight.std().item() == pytest.approx(0.02 * part, rel=5 / count), named


@pytest.mark.parametrize("name", VARIANTS)
def test_a_model_of_each_learns_a_text_by_heart(name):
    torch.manual_seed(0)
    model, tokens = settings_of(name).build(), text()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def loss():
        logits = model(tokens)[:, :-1].flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())

    first = loss()
    for _ in range(100):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss() < first - 1


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_weights_are_shown_for_every_head(name):
    """0 where a query does not attend to a key."""
    model, tokens, given = build(name, "window=4"), text(1, 9), []
    attention = model.blocks[1].attention
    attention.register_forward_pre_hook(
        lambda _, x, named: given.append((x[0], named["options"])), with_kwargs=True
    )
    model(tokens)
    weights = attention.weights(*given[0])
    assert weights.shape == (1, attention.heads, 9, 9)
    seen = torch.ones(9, 9).tril().triu(-3).bool()
    assert (weights[:, :, ~seen] == 0).all() and (weights[:, :, seen] != 0).any()
