"""GPT-2, GPT-NeoX and StarCoder 2: LayerNorm and biases."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from attnlab.attention.heads import MultiHead, head_width
from attnlab.attention.positions import Learned
from attnlab.interop import rope
from attnlab.interop.families import llama
from attnlab.interop.families.family import Family, expansion, heads_of, inner_width, split
from attnlab.interop.fields import Fields, Unsupported
from attnlab.interop.rules import Rule, biased, same, transposed
from attnlab.models.feedforward import FeedForwardKind
from attnlab.models.transformer import TransformerSettings

TANH: dict[str, FeedForwardKind] = dict.fromkeys(
    ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu-tanh"
)
ACTIVATIONS: dict[str, FeedForwardKind] = {"gelu": "gelu", **TANH}
WRITTEN = {"gelu": "gelu", "gelu-tanh": "gelu_new"}


def activation(settings: TransformerSettings) -> str:
    if settings.feedforward not in WRITTEN:
        raise Unsupported(f"feedforward is {settings.feedforward}, and gelu or gelu-tanh there")
    return WRITTEN[settings.feedforward]


def layer_epsilon(settings: TransformerSettings) -> float:
    return 1e-5 if settings.norm_epsilon is None else settings.norm_epsilon


def _read_gpt2(fields: Fields) -> TransformerSettings:
    fields.refuse_unless("scale_attn_weights", True, True)
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        fields.refuse_unless(name, False, False)
    fields.take("reorder_and_upcast_attn", False)  # precision, not function
    width = fields.whole("n_embd", 768)
    inner = fields.optional("n_inner", fields.whole) or 4 * width
    return TransformerSettings(
        vocabulary=fields.whole("vocab_size", 50257),
        context=fields.whole("n_positions", 1024),
        width=width,
        depth=fields.whole("n_layer", 12),
        attention=heads_of(heads := fields.whole("n_head", 12), heads, None, width, fields),
        positions=Learned(),
        norm="layer",
        norm_epsilon=fields.number("layer_norm_epsilon", 1e-5),
        feedforward=fields.one_of("activation_function", ACTIVATIONS, "gelu_new"),
        expansion=expansion(inner, width, gated=False),
        bias=True,
        tied=fields.flag("tie_word_embeddings", True),
    )


def _write_gpt2(settings: TransformerSettings) -> dict[str, Any]:
    if not isinstance(settings.attention, MultiHead):
        raise Unsupported("attention shares key/value heads, and GPT-2's does not")
    return {
        "vocab_size": settings.vocabulary,
        "n_positions": settings.context,
        "n_embd": settings.width,
        "n_layer": settings.depth,
        "n_head": settings.attention.heads,
        "n_inner": inner_width(settings),
        "activation_function": activation(settings),
        "layer_norm_epsilon": layer_epsilon(settings),
        "tie_word_embeddings": settings.tied,
        "resid_pdrop": settings.dropout,
        "embd_pdrop": settings.dropout,
        "attn_pdrop": settings.attention_dropout,
    }


def _rules_gpt2(settings: TransformerSettings) -> Iterator[Rule]:
    base, heads = "transformer.", split(settings)
    yield same("embed.weight", f"{base}wte.weight")
    yield same("positions.table.weight", f"{base}wpe.weight")
    yield from biased(same, "norm", f"{base}ln_f", True)
    if not settings.tied:
        yield same("head.weight", "lm_head.weight")
    for n in range(settings.depth):
        ours, theirs = f"blocks.{n}", f"{base}h.{n}"
        fused = partial(heads.by_kind, transpose=True)
        yield from biased(same, f"{ours}.attention_norm", f"{theirs}.ln_1", True)
        yield from biased(same, f"{ours}.feedforward_norm", f"{theirs}.ln_2", True)
        yield from biased(fused, f"{ours}.attention.project", f"{theirs}.attn.c_attn", True)
        yield from biased(transposed, f"{ours}.attention.merge", f"{theirs}.attn.c_proj", True)
        yield from biased(transposed, f"{ours}.feedforward.up", f"{theirs}.mlp.c_fc", True)
        yield from biased(transposed, f"{ours}.feedforward.down", f"{theirs}.mlp.c_proj", True)


def _read_neox(fields: Fields) -> TransformerSettings:
    fields.refuse_unless("attention_bias", True, True)
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    context = fields.whole("max_position_embeddings", 2048)
    found = rope.parameters(fields, part=0.25, names=("rotary_emb_base", "rotary_pct"))
    attention = heads_of(heads, heads, None, width, fields)
    return TransformerSettings(
        vocabulary=fields.whole("vocab_size", 50432),
        context=context,
        width=width,
        depth=fields.layers(),
        attention=attention,
        positions=rope.rotary(fields, found, context, head_width(attention, width)),
        norm="layer",
        norm_epsilon=fields.number("layer_norm_eps", 1e-5),
        parallel=fields.flag("use_parallel_residual", True),
        feedforward=fields.one_of("hidden_act", ACTIVATIONS, "gelu"),
        expansion=expansion(fields.whole("intermediate_size"), width, gated=False),
        bias=True,
        attention_dropout=fields.number("attention_dropout", 0.0),
        tied=fields.flag("tie_word_embeddings", False),
    )


def _write_neox(settings: TransformerSettings) -> dict[str, Any]:
    found = rope.written(settings.positions, settings.context)
    return {
        "vocab_size": settings.vocabulary,
        "max_position_embeddings": settings.context,
        "hidden_size": settings.width,
        "num_hidden_layers": settings.depth,
        "num_attention_heads": settings.attention.heads,
        "intermediate_size": inner_width(settings),
        "hidden_act": activation(settings),
        "layer_norm_eps": layer_epsilon(settings),
        "use_parallel_residual": settings.parallel,
        "attention_bias": True,
        "attention_dropout": settings.attention_dropout,
        "tie_word_embeddings": settings.tied,
        "rope_parameters": {"partial_rotary_factor": 1.0, **found},
    }


def _rules_neox(settings: TransformerSettings) -> Iterator[Rule]:
    base, heads = "gpt_neox.", split(settings)
    yield same("embed.weight", f"{base}embed_in.weight")
    yield from biased(same, "norm", f"{base}final_layer_norm", True)
    if not settings.tied:
        yield same("head.weight", "embed_out.weight")
    for n in range(settings.depth):
        ours, theirs = f"blocks.{n}", f"{base}layers.{n}"
        pairs = {
            "attention_norm": "input_layernorm",
            "feedforward_norm": "post_attention_layernorm",
            "attention.merge": "attention.dense",
            "feedforward.up": "mlp.dense_h_to_4h",
            "feedforward.down": "mlp.dense_4h_to_h",
        }
        for mine, other in pairs.items():
            yield from biased(same, f"{ours}.{mine}", f"{theirs}.{other}", True)
        there = f"{theirs}.attention.query_key_value"
        yield from biased(heads.by_group, f"{ours}.attention.project", there, True)


def _read_starcoder(fields: Fields) -> TransformerSettings:
    fields.refuse_unless("use_bias", True, True)
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    context = fields.whole("max_position_embeddings", 4096)
    kv_heads = fields.whole("num_key_value_heads", 2)
    size = fields.optional("head_dim", fields.whole)
    attention = heads_of(heads, kv_heads, size, width, fields)
    found = rope.parameters(fields)
    return TransformerSettings(
        vocabulary=fields.whole("vocab_size", 49152),
        context=context,
        width=width,
        depth=fields.layers(),
        attention=attention,
        positions=rope.rotary(fields, found, context, head_width(attention, width)),
        window=(fields.optional("sliding_window", fields.whole),),
        norm="layer",
        norm_epsilon=fields.number("norm_epsilon", 1e-5),
        feedforward=fields.one_of("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh"),
        expansion=expansion(fields.whole("intermediate_size"), width, gated=False),
        bias=True,
        attention_dropout=fields.number("attention_dropout", 0.0),
        tied=fields.flag("tie_word_embeddings", True),
    )


def _write_starcoder(settings: TransformerSettings) -> dict[str, Any]:
    made = llama.write(settings)
    for name in ("rms_norm_eps", "head_dim"):
        del made[name]
    return made | {
        "hidden_act": activation(settings),
        "norm_epsilon": layer_epsilon(settings),
        "use_bias": True,
        "sliding_window": settings.window[0],
    }


def _rules_starcoder(settings: TransformerSettings) -> Iterator[Rule]:
    yield same("embed.weight", "model.embed_tokens.weight")
    yield from biased(same, "norm", "model.norm", True)
    if not settings.tied:
        yield same("head.weight", "lm_head.weight")
    for n in range(settings.depth):
        ours, theirs = f"blocks.{n}", f"model.layers.{n}"
        pairs = {
            "attention_norm": "input_layernorm",
            "feedforward_norm": "post_attention_layernorm",
            "feedforward.up": "mlp.c_fc",
            "feedforward.down": "mlp.c_proj",
        }
        for mine, other in pairs.items():
            yield from biased(same, f"{ours}.{mine}", f"{theirs}.{other}", True)
        yield from llama.attention(settings, ours, theirs)


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    _read_gpt2,
    _write_gpt2,
    _rules_gpt2,
    prefix="transformer.",
    buffers=r".*attn\.(bias|masked_bias)",
)
NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    _read_neox,
    _write_neox,
    _rules_neox,
    prefix="gpt_neox.",
    buffers=r".*(attention\.(bias|masked_bias)|rotary_emb\.inv_freq)",
)
STARCODER2 = Family(
    "starcoder2", "Starcoder2ForCausalLM", _read_starcoder, _write_starcoder, _rules_starcoder
)
