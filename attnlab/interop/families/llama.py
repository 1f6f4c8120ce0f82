"""Llama and what is made like it: Mistral, Ministral, Qwen 2 and 3, SmolLM3, Phi-3.

x = embed_tokens(tokens)
for each layer:  x += o_proj(attention(input_layernorm(x)));  x += mlp(post_attention_layernorm(x))
logits = lm_head(norm(x))
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from attnlab.attention.heads import head_width
from attnlab.attention.norms import NORM_EPSILON
from attnlab.attention.positions import NoPositions, Rotary
from attnlab.attention.rotary_scaling import NoScaling
from attnlab.interop import rope
from attnlab.interop.families.family import (
    Family,
    expansion,
    heads_of,
    inner_width,
    shortest,
    split,
)
from attnlab.interop.fields import Fields, Unsupported
from attnlab.interop.rules import Rule, biased, constant, same, stacked
from attnlab.models.transformer import TransformerSettings

ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu"}
KINDS = ("full_attention", "sliding_attention")


def read(
    fields: Fields,
    *,
    tied: bool = False,
    context: int = 2048,
    epsilon: float = 1e-6,
    base: float = 10_000.0,
    part: float | None = None,
    **more: Any,
) -> TransformerSettings:
    """What all of these have; `more` is what one of them has besides.

    `tied`, `context`, `epsilon` and `base` are what holds where the config says nothing, and so is
    `part`, of a head that turns; None: this family turns whole heads.
    """
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    kv_heads = fields.optional("num_key_value_heads", fields.whole) or heads
    size = fields.optional("head_dim", fields.whole)
    context = fields.whole("max_position_embeddings", context)
    attention = heads_of(heads, kv_heads, size, width, fields)
    feedforward = more.pop("feedforward", None)
    if feedforward is None:
        feedforward = fields.one_of("hidden_act", ACTIVATIONS, "silu")
    if "positions" not in more:
        given = rope.parameters(fields, base, part=part)
        more["positions"] = rope.rotary(fields, given, context, head_width(attention, width))
    return TransformerSettings(
        vocabulary=fields.whole("vocab_size"),
        context=context,
        width=width,
        depth=fields.layers(),
        attention=attention,
        norm="rms",
        norm_epsilon=fields.number("rms_norm_eps", epsilon),
        feedforward=feedforward,
        expansion=expansion(fields.whole("intermediate_size"), width, gated=True),
        attention_dropout=fields.number("attention_dropout", 0.0),
        tied=fields.flag("tie_word_embeddings", tied),
        **more,
    )


def write(settings: TransformerSettings) -> dict[str, Any]:
    epsilon = NORM_EPSILON if settings.norm_epsilon is None else settings.norm_epsilon
    return {
        "vocab_size": settings.vocabulary,
        "max_position_embeddings": settings.context,
        "hidden_size": settings.width,
        "num_hidden_layers": settings.depth,
        "num_attention_heads": settings.attention.heads,
        "num_key_value_heads": settings.attention.kv_heads,
        "head_dim": head_width(settings.attention, settings.width),
        "intermediate_size": inner_width(settings),
        "hidden_act": "silu",
        "rms_norm_eps": epsilon,
        "attention_dropout": settings.attention_dropout,
        "tie_word_embeddings": settings.tied,
        "rope_parameters": rope.written(settings.positions, settings.context),
    }


def outside(settings: TransformerSettings) -> Iterator[Rule]:
    """Embedding, last norm and output layer."""
    yield same("embed.weight", "model.embed_tokens.weight")
    yield gain(settings, "norm", "model.norm")
    if not settings.tied:
        yield same("head.weight", "lm_head.weight")


def gain(settings: TransformerSettings, ours: str, theirs: str) -> Rule:
    """Of an RMS-norm; one without gains has gains of 1 there."""
    if settings.norm == "unit":
        return constant(f"{theirs}.weight", 1.0, settings.width)
    return same(f"{ours}.weight", f"{theirs}.weight")


def rules(settings: TransformerSettings, *, fused: bool = False) -> Iterator[Rule]:
    """`fused`: queries, keys and values in one matrix, gate and up in one (Phi-3)."""
    yield from outside(settings)
    for n in range(settings.depth):
        ours, theirs = f"blocks.{n}", f"model.layers.{n}"
        yield gain(settings, f"{ours}.attention_norm", f"{theirs}.input_layernorm")
        yield gain(settings, f"{ours}.feedforward_norm", f"{theirs}.post_attention_layernorm")
        yield from attention(settings, ours, theirs, fused=fused)
        yield from feedforward(settings, ours, theirs, fused=fused)


def attention(
    settings: TransformerSettings, ours: str, theirs: str, *, fused: bool = False
) -> Iterator[Rule]:
    heads, there = split(settings), f"{theirs}.self_attn"
    bias = settings.bias if settings.qkv_bias is None else settings.qkv_bias
    for part in ["weight", *(["bias"] if bias else [])]:
        name = f"{ours}.attention.project.{part}"
        if fused:
            yield heads.by_kind(name, f"{there}.qkv_proj.{part}")
        else:
            q, k, v = (f"{there}.{one}_proj.{part}" for one in "qkv")
            yield heads.separate(name, q, k, v)
    yield from biased(same, f"{ours}.attention.merge", f"{there}.o_proj", settings.bias)
    if settings.norm_heads:
        size = head_width(settings.attention, settings.width)
        for number, one in enumerate("qk"):
            name = f"{there}.{one}_norm.weight"
            if settings.head_gains:
                yield heads.gain(f"{ours}.attention.gains.{number}", name)
            else:
                yield constant(name, 0.0 if settings.norm_offset else 1.0, size)


def feedforward(
    settings: TransformerSettings, ours: str, theirs: str, *, fused: bool = False
) -> Iterator[Rule]:
    if fused:
        both = [f"{ours}.feedforward.{one}.weight" for one in ("gate", "up")]
        yield stacked(both, f"{theirs}.mlp.gate_up_proj.weight")
    for one in ("down",) if fused else ("gate", "up", "down"):
        name, there = f"{ours}.feedforward.{one}", f"{theirs}.mlp.{one}_proj"
        yield from biased(same, name, there, settings.bias)


# of the families


def _read_llama(fields: Fields) -> TransformerSettings:
    bias, mlp = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    if bias != mlp:
        raise fields.refused(
            "attention_bias", bias, f"mlp_bias is {mlp}, and attnlab has both or neither"
        )
    return read(fields, bias=bias)


def _write_llama(settings: TransformerSettings) -> dict[str, Any]:
    return write(settings) | {"attention_bias": settings.bias, "mlp_bias": settings.bias}


def _read_mistral(fields: Fields) -> TransformerSettings:
    window = fields.optional("sliding_window", fields.whole, 4096)
    return read(fields, window=(window,), context=131_072)


def _write_mistral(settings: TransformerSettings) -> dict[str, Any]:
    return write(settings) | {"sliding_window": settings.window[0]}


def windows(fields: Fields, usual: list[str], window: int | None) -> tuple[int | None, ...]:
    """Of the layers, by their types."""
    types = types_of(fields, usual)
    if window is None and "sliding_attention" in types:
        raise fields.refused("layer_types", types, "there is no window that is read")
    return shortest([window if one == "sliding_attention" else None for one in types])


def types_of(fields: Fields, usual: list[str]) -> list[str]:
    """Of the layers; `usual` where the config does not say."""
    types = fields.sequence("layer_types", len(usual)) or usual
    for one in types:
        if one not in KINDS:
            raise fields.refused("layer_types", one, f"attnlab reads {' and '.join(KINDS)}")
    return types


def layer_types(settings: TransformerSettings) -> dict[str, Any]:
    """With one window for all layers that have one."""
    found = [settings.window_of(layer) for layer in range(settings.depth)]
    different = sorted({one for one in found if one is not None})
    if len(different) > 1:
        raise Unsupported(f"window is {different} in different layers; there is one there")
    return {
        "layer_types": ["full_attention" if one is None else "sliding_attention" for one in found],
        "sliding_window": different[0] if different else None,
    }


def _read_ministral(fields: Fields) -> TransformerSettings:
    window = fields.optional("sliding_window", fields.whole, 4096)
    depth = fields.layers()
    usual = ["full_attention" if window is None else "sliding_attention"] * depth
    return read(fields, window=windows(fields, usual, window), context=131_072)


def _read_qwen(fields: Fields, **more: Any) -> TransformerSettings:
    used = fields.flag("use_sliding_window", False)
    window = fields.optional("sliding_window", fields.whole, 4096)
    first = fields.take("max_window_layers", 28)
    if type(first) is not int or first < 0:
        raise fields.refused("max_window_layers", first, "it counts layers")
    window = window if used else None
    usual = [
        "sliding_attention" if window is not None and layer >= first else "full_attention"
        for layer in range(fields.layers())
    ]
    return read(fields, window=windows(fields, usual, window), context=32_768, **more)


def _write_qwen(settings: TransformerSettings) -> dict[str, Any]:
    types = layer_types(settings)
    used = types["sliding_window"] is not None
    return write(settings) | types | {"use_sliding_window": used, "max_window_layers": 0}


def _read_qwen2(fields: Fields) -> TransformerSettings:
    return _read_qwen(fields, qkv_bias=True)


def _read_qwen3(fields: Fields) -> TransformerSettings:
    fields.refuse_unless("attention_bias", False, False, "attnlab has biases everywhere or nowhere")
    if "head_dim" not in fields:
        fields.take("head_dim", None)
        raise fields.refused("head_dim", None, "Qwen3 has one; write it")
    return _read_qwen(fields, norm_heads=True, head_gains=True)


def _read_smollm3(fields: Fields) -> TransformerSettings:
    fields.refuse_unless("attention_bias", False, False)
    fields.refuse_unless("mlp_bias", False, False)
    depth, every = fields.layers(), fields.whole("no_rope_layer_interval", 4)
    turns = fields.sequence("no_rope_layers", depth) or [
        int((layer + 1) % every != 0) for layer in range(depth)
    ]
    for one in turns:
        if one not in (0, 1):
            raise fields.refused(
                "no_rope_layers", one, "1 is a layer that turns, 0 one that does not"
            )
    window = fields.optional("sliding_window", fields.whole)
    window = window if fields.flag("use_sliding_window", False) else None
    usual = ["full_attention" if one or window is None else "sliding_attention" for one in turns]
    which = windows(fields, usual, window)
    made = read(fields, window=which, tied=True, context=32_768, base=2_000_000.0)
    assert isinstance(made.positions, Rotary)
    base = made.positions.bases[0]
    bases = shortest([base if one else None for one in turns])
    if bases == (base,):
        return made
    if bases == (None,):
        return replace(made, positions=NoPositions())
    return replace(made, positions=replace(made.positions, base=bases))


def _write_smollm3(settings: TransformerSettings) -> dict[str, Any]:
    positions = settings.positions
    if not isinstance(positions, Rotary):
        raise Unsupported("SmolLM3 has rotary positions")
    bases = [positions.bases[n % len(positions.bases)] for n in range(settings.depth)]
    different = {one for one in bases if one is not None}
    if len(different) != 1:
        raise Unsupported(f"positions.base is {sorted(different)}; SmolLM3 has one")
    types = layer_types(settings)
    turns = [int(one is not None) for one in bases]
    used = types["sliding_window"] is not None
    plain = write(replace(settings, positions=replace(positions, base=different.pop())))
    return plain | types | {"no_rope_layers": turns, "use_sliding_window": used}


def _read_phi3(fields: Fields) -> TransformerSettings:
    window = fields.optional("sliding_window", fields.whole)
    made = read(fields, window=(window,), context=4096, epsilon=1e-5, part=1.0)
    assert isinstance(made.positions, Rotary)
    if not isinstance(made.positions.scaling, NoScaling):
        raise fields.refused("rope_parameters", made.positions.scaling, "Phi-3 has no such scaling")
    return made


def _write_phi3(settings: TransformerSettings) -> dict[str, Any]:
    made = write(settings) | {"sliding_window": settings.window[0]}
    return made | {"original_max_position_embeddings": settings.context}


LLAMA = Family("llama", "LlamaForCausalLM", _read_llama, _write_llama, rules)
MISTRAL = Family("mistral", "MistralForCausalLM", _read_mistral, _write_mistral, rules)
MINISTRAL = Family(
    "ministral",
    "MinistralForCausalLM",
    _read_ministral,
    lambda settings: write(settings) | layer_types(settings),
    rules,
)
QWEN2 = Family(
    "qwen2", "Qwen2ForCausalLM", _read_qwen2, _write_qwen, rules, only_its_tokenizer=True
)
QWEN3 = Family("qwen3", "Qwen3ForCausalLM", _read_qwen3, _write_qwen, rules)
SMOLLM3 = Family("smollm3", "SmolLM3ForCausalLM", _read_smollm3, _write_smollm3, rules)
PHI3 = Family("phi3", "Phi3ForCausalLM", _read_phi3, _write_phi3, partial(rules, fused=True))
