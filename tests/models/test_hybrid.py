"""Hybrids: layers that keep a state, and between them layers with keys."""

import dataclasses

import pytest
import torch

from attnlab import config
from attnlab.attention.cache import FullCache, RingCache
from attnlab.attention.delta import DeltaAttention, StateCache
from attnlab.attention.heads import AttentionOptions, HeadedAttention
from attnlab.attention.latent import LatentAttention
from attnlab.attention.norms import NORM_EPSILON
from attnlab.config import ConfigError
from attnlab.experiments.match import count, match
from attnlab.generate import Sampling, generate
from attnlab.kernels import rotation
from attnlab.models.model import parameters
from attnlab.models.transformer import TransformerSettings
from attnlab.training.blocks import refuse_recompute
from attnlab.training.recipe import Recipe

SMALL = TransformerSettings(vocabulary=13, context=48, width=24, depth=4)
HYBRID = ["attention=gated-delta", "attention.full_every=2"]
PARTS = ("gate", "up", "down")
TOKENS = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(0))


def settings_of(*words):
    return config.override(SMALL, [*HYBRID, *words])


def build(*words):
    torch.manual_seed(0)
    return settings_of(*words).build().double().eval()


def kinds(*words):
    return [type(block.attention).__name__ for block in build(*words).blocks]


def test_the_last_of_so_many_layers_has_keys():
    state, keys, latent = (
        one.__name__ for one in (DeltaAttention, HeadedAttention, LatentAttention)
    )
    assert kinds() == [state, keys] * 2
    assert kinds("attention.full_every=4") == [state, state, state, keys]
    assert kinds("attention.full_every=3") == [state, state, keys, state]
    assert kinds("attention.full=latent") == [state, latent] * 2
    settings = settings_of("depth=24", "attention.full_every=4")
    assert [layer for layer in range(24) if not settings.has_state(layer)] == [3, 7, 11, 15, 19, 23]
    states = config.override(SMALL, ["attention=gated-delta", "positions=none"])
    found = [
        (one.is_hybrid, one.has_state(0), one.has_state(1))
        for one in (SMALL, settings_of(), states)
    ]
    assert found == [(False, False, False), (True, True, False), (False, True, True)]


@torch.no_grad()
def test_positions_and_norms_of_heads_are_of_the_layers_with_keys_alone():
    """Layer by layer: what a state is given has no rotation."""
    model = build("norm_heads=true", "head_gains=true", "attention.full=grouped", "sink=learned")
    turned, x = rotation(torch.arange(9)[None], 3, dtype=torch.float64), model.embed(TOKENS)
    for number, block in enumerate(model.blocks):
        given = AttentionOptions(rotary=turned if number % 2 else None)
        x = block(x, given)
        names = {name for name, _ in block.attention.named_parameters()}
        assert ({"gains.0", "gains.1", "sinks"} <= names) == bool(number % 2)
    torch.testing.assert_close(model(TOKENS), model.head(model.norm(x)), atol=1e-12, rtol=0)


@pytest.mark.parametrize("scheme", ["learned", "sinusoidal", "alibi", "fire", "none"])
@torch.no_grad()
def test_any_positions_serve_and_decode(scheme):
    model = build(f"positions={scheme}", "norm=layer", "bias=true")
    cache, whole = model.new_cache(), model(TOKENS)
    got = [model(piece, cache=cache) for piece in TOKENS.split([4, 1, 1, 3], 1)]
    torch.testing.assert_close(torch.cat(got, 1), whole, atol=1e-12, rtol=0)


@torch.no_grad()
def test_one_model_has_caches_of_both_kinds():
    model = build("window=5")
    cache = model.new_cache()
    assert [type(one) for one in cache.layers] == [StateCache, RingCache] * 2
    assert [type(one) for one in build().new_cache().layers] == [StateCache, FullCache] * 2
    sizes = []
    for _ in range(2):
        model(TOKENS, cache=cache)
        sizes.append([layer.bytes for layer in cache.layers])
    assert sizes[0] == sizes[1] and min(sizes[0]) > 0
    with pytest.raises(ValueError, match="the cache holds 2 texts, and these are tokens of 1"):
        model(TOKENS[:1], cache=cache)


def test_a_text_is_continued_as_if_alone():
    model, prompts = build("attention.full=grouped"), [[1, 2, 3, 4, 5], [6], [7, 8, 9]]
    greedy = Sampling(temperature=0)
    together = generate(model, prompts, tokens=7, sampling=greedy)
    assert together == [generate(model, [one], tokens=7, sampling=greedy)[0] for one in prompts]


@torch.no_grad()
def test_documents_in_a_row_are_as_alone():
    model, text = build("window=4"), TOKENS[:1]
    found = model(text, segments=torch.tensor([[0] * 4 + [1] * 5]))
    for part in (slice(0, 4), slice(4, 9)):
        torch.testing.assert_close(found[:, part], model(text[:, part]), atol=1e-12, rtol=0)


def test_its_parameters_are_those_of_its_layers():
    hybrid = build("attention.full=grouped")
    delta = config.override(SMALL, ["attention=gated-delta", "positions=none"]).build()
    grouped = config.override(SMALL, ["attention=grouped"]).build()
    assert parameters(hybrid) == (parameters(delta) + parameters(grouped)) / 2
    both = (delta.operations(31) + grouped.operations(31)) / 2
    assert hybrid.operations(31) == pytest.approx(both, rel=1e-12)


@pytest.mark.parametrize("heads", ["2", "6"])
def test_it_is_made_as_large_as_another_model(heads):
    """Also where its width must change, which all of its heads divide."""
    usual = Recipe(model=config.override(SMALL, ["width=96"]))
    words = [f"attention.full.heads={heads}", "width=24"]
    recipe = Recipe(model=settings_of(*words))
    matched = match("parameters", {"usual": usual, "hybrid": recipe})["hybrid"].recipe.model
    assert abs(count(matched) / count(usual.model) - 1) < 0.02
    assert matched.width != 24 and matched.attention == recipe.model.attention


def test_keys_are_shared_by_layers_that_have_some():
    settings = settings_of("shared_kv=false,false,false,true")
    assert [settings.shares_with(layer) for layer in range(4)] == [None, None, None, 1]
    assert build("shared_kv=false,false,false,true")(TOKENS).isfinite().all()


def test_biases_are_of_all_layers():
    assert all(block.attention.merge.bias is not None for block in build("bias=true").blocks)


def test_a_single_value_is_for_layers_with_keys_and_a_list_counts_all():
    def windows(*words):
        return [getattr(block.attention, "window", None) for block in build(*words).blocks]

    def rotations(*words):
        model, given = build(*words), []
        for block in model.blocks[1::2]:
            block.attention.register_forward_pre_hook(
                lambda _, x, named: given.append(named["options"].rotary),
                with_kwargs=True,
            )
        model(TOKENS)
        return given

    assert windows("window=5") == [None, 5, None, 5]
    assert windows("window=none,5,none,none") == [None, 5, None, None]
    alone, listed = rotations("positions.base=100"), rotations("positions.base=none,100")
    assert all(torch.equal(one.cos, two.cos) for one, two in zip(alone, listed, strict=True))
    first, second = rotations("positions.base=none,100,none,none")
    assert first is not None and second is None
    first, second = rotations("positions.scaling=linear", "positions.scaled=false,false,false,true")
    assert not torch.equal(first.cos, second.cos)
    assert build("value_embedding=true").blocks[1].attention.embedding is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["depth=3", "attention.full_every=4"], "no layer has keys; use attention.full_every=3 or"),
        (["depth=1"], "depth is 1; no layer has keys; a hybrid has 2 layers or more"),
        (["attention.full_every=1"], "with 1 no layer would have a state, so use 2 or more"),
        (["attention.full_every=none", "attention.full=grouped"], "no layer would have .*; use 4"),
        (["attention.full=gated-delta"], "attention.full is gated-delta; .* such as grouped"),
        (["attention.full=mine.py:Mine"], "attention.full is mine.py:Mine; .* such as grouped"),
        (["attention.full.heads=5"], "width 24 does not divide into 5 heads"),
        (["attention.heads=5"], "width 24 does not divide into 5 heads"),
        (
            ["window=5,none"],
            r"window is \(5, None\); layer 0 keeps a state and has no keys; a list",
        ),
        (["chunk=none,none,7,none"], "layer 2 keeps a state and has no keys"),
        (["value_embedding=true,false"], "layer 0 keeps a state and has no keys"),
        (["shared_kv=false,false,true"], "layer 2 keeps a state and has no keys"),
        (
            ["positions.base=10000,none"],
            r"positions.base is \(10000.0, None\); layer 0 keeps a state and has no keys; a list",
        ),
        (["positions.base=none,100,1000,none"], "positions.base .* layer 2 keeps a state"),
        (
            ["positions.scaling=linear", "positions.scaled=true,false"],
            r"positions.scaled is \(True, False\); layer 0 keeps a state and has no keys; a list",
        ),
        (
            ["positions.base=none,10000", "positions.temperature=0.1"],
            "positions.temperature is 0.1; it is for .* each with keys has one; leave it out",
        ),
        (["shared_kv=false,true"], "layer 1 has no keys and values to share"),
        (
            ["value_residual=first"],
            "value_residual is 'first'; the first layer keeps a state; write",
        ),
        (["attention.full=latent", "score=additive"], "latent stands for the score too"),
        (["attention.full=latent", "norm_heads=true"], "model.norm_heads=true would not reach it"),
    ],
)
def test_what_would_reach_no_layer_is_refused(words, message):
    with pytest.raises((ConfigError, ValueError), match=message):
        build(*words)


def test_a_prefix_is_refused_where_a_state_reads_from_the_beginning():
    with pytest.raises(ValueError, match=r"reads a text from its beginning, .* leave out prefix"):
        build()(TOKENS, prefix=3)


def test_blocks_may_be_computed_twice():
    recipe = Recipe(model=settings_of(), recompute=True)
    refuse_recompute(recipe, recipe.model.build())


@torch.no_grad()
def test_saved_settings_are_the_same_model():
    recipe = Recipe(model=settings_of("attention.full=grouped", "attention.full.kv_heads=1"))
    again = config.from_dict(Recipe, config.to_dict(recipe))
    assert again == recipe and dataclasses.asdict(again) == dataclasses.asdict(recipe)
    model, other = build(), build()
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(TOKENS), other(TOKENS))


@torch.no_grad()
def test_it_is_qwen3_next_without_experts():
    """With the same weights; that one computes the delta rule in float32, of queries by √width."""
    pytest.importorskip("transformers", reason="pip install 'attnlab[hf]'")
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    heads, width = 3, 8
    theirs = Qwen3NextForCausalLM(
        Qwen3NextConfig(
            vocab_size=13,
            hidden_size=24,
            num_hidden_layers=4,
            num_experts=0,
            num_attention_heads=heads,
            num_key_value_heads=1,
            head_dim=width,
            linear_num_key_heads=heads,
            linear_num_value_heads=heads,
            linear_key_head_dim=width,
            linear_value_head_dim=width,
            intermediate_size=64,
            rms_norm_eps=NORM_EPSILON / width,
        )
    )
    theirs = theirs.double().eval()
    words = ["attention.full_every=4", f"attention.heads={heads}", "attention.full=grouped"]
    words += [f"attention.full.heads={heads}", "attention.full.kv_heads=1", "gate=elementwise"]
    words += ["positions.fraction=0.25", "norm_heads=true", "head_gains=true", "norm_offset=true"]
    words += [f"norm_epsilon={NORM_EPSILON / width}", "feedforward=swiglu", "tied=false"]
    ours = build(*words)
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    copies = {"embed": theirs.model.embed_tokens, "norm": theirs.model.norm, "head": theirs.lm_head}
    for number, layer in enumerate(theirs.model.layers):
        block, name = ours.blocks[number], f"blocks.{number}"
        copies[f"{name}.attention_norm"] = layer.input_layernorm
        copies[f"{name}.feedforward_norm"] = layer.post_attention_layernorm
        copies |= {f"{name}.feedforward.{n}": layer.mlp.get_submodule(f"{n}_proj") for n in PARTS}
        project = block.attention.project.weight
        if number < 3:
            there = layer.linear_attn
            q, k, v, write, step, gate = project.split([24, 24, 24, heads, heads, 24])
            each = [one.unflatten(0, (heads, width)) for one in (q, k, v, gate)]
            there.in_proj_qkvz.weight.copy_(torch.cat(each, 1).flatten(0, 1))
            there.in_proj_ba.weight.copy_(torch.stack((write, step), 1).flatten(0, 1))
            there.conv1d.weight.copy_(block.attention.taps.flip(0).permute(2, 1, 0))
            there.dt_bias.copy_(block.attention.step_bias)
            there.A_log.copy_(block.attention.log_rate)
            copies[f"{name}.attention.norm"] = there.norm
            copies[f"{name}.attention.merge"] = there.out_proj
        else:
            there, (q, k, v) = layer.self_attn, project.split([24, 8, 8])
            both = [
                one.unflatten(0, (heads, width)) for one in (q, block.attention.gate.project.weight)
            ]
            there.q_proj.weight.copy_(torch.cat(both, 1).flatten(0, 1))
            there.k_proj.weight.copy_(k)
            there.v_proj.weight.copy_(v)
            there.q_norm.weight.copy_(block.attention.gains[0])
            there.k_norm.weight.copy_(block.attention.gains[1])
            copies[f"{name}.attention.merge"] = there.o_proj
    for name, module in copies.items():
        module.weight.copy_(ours.get_parameter(f"{name}.weight"))
    text = torch.randint(13, (2, 70), generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 70, 24, dtype=torch.float64)
    state, wanted = ours.blocks[0].attention, theirs.model.layers[0].linear_attn(x)
    torch.testing.assert_close(state(x), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours(text), theirs(text).logits, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_temperature_is_not_for_states():
    """It is of layers with keys and without rotations: here of the last."""
    words = ["positions=rotary", "positions.base=none,9,none,none", "positions.temperature=0.5"]
    model, given = build(*words, "positions.temperature_step=2"), []
    for block in model.blocks:
        block.attention.register_forward_pre_hook(
            lambda module, _, named: given.append(named["options"]), with_kwargs=True
        )
    model(TOKENS)
    assert [one.temperature is None for one in given] == [True, True, True, False]
