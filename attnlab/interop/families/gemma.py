"""Gemma, Gemma 2 and Gemma 3 (text): gains that are offsets, scaled embeddings, GeGLU.

Gemma 2 and 3 have norms before and after each part, and windows in most layers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from attnlab.attention.heads import head_width
from attnlab.attention.positions import Rotary
from attnlab.attention.rotary_scaling import NoScaling
from attnlab.attention.scores import ScaledDot
from attnlab.interop import rope
from attnlab.interop.families import llama
from attnlab.interop.families.family import Family, shortest
from attnlab.interop.fields import Fields, Unsupported
from attnlab.interop.rules import Rule
from attnlab.models.transformer import TransformerSettings

LOCAL, FULL = "sliding_attention", "full_attention"
LOCAL_BASE, FULL_BASE = 10_000.0, 1_000_000.0  # of Gemma 3


def _read(fields: Fields, **more: Any) -> TransformerSettings:
    width = fields.whole("hidden_size")
    fields.refuse_unless("attention_bias", False, False)
    if fields.take("use_bidirectional_attention", None):
        raise fields.refused("use_bidirectional_attention", True, "attnlab's model is causal")
    acts = {"gelu_pytorch_tanh": "geglu", "gelu_tanh": "geglu"}
    name = "hidden_activation" if "hidden_activation" in fields else "hidden_act"
    usual = "gelu_pytorch_tanh"
    feedforward = fields.one_of(name, acts, usual)
    for other in ("hidden_act", "hidden_activation"):
        fields.take(other, None)  # old configs have both; the second decides
    if "head_dim" not in fields:
        raise fields.refused("head_dim", None, "Gemma has one; write it")
    return llama.read(
        fields,
        tied=True,
        feedforward=feedforward,
        norm_offset=True,
        embedding_scale=width**0.5,
        **{"context": 8192, **more},
    )


def _write(settings: TransformerSettings) -> dict[str, Any]:
    made = llama.write(settings) | {"attention_bias": False}
    del made["hidden_act"]
    return made | {"hidden_activation": "gelu_pytorch_tanh"}


def _read_gemma2(fields: Fields) -> TransformerSettings:
    window = fields.optional("sliding_window", fields.whole, 4096)
    depth = fields.layers()
    usual = [FULL if layer % 2 else LOCAL for layer in range(depth)]
    return _read(
        fields,
        norm_place="both",
        window=llama.windows(fields, usual, window),
        **_scores(fields, cap=50.0, logit_cap=30.0),
    )


def _scores(fields: Fields, *, cap: float | None, logit_cap: float | None) -> dict[str, Any]:
    """The divisor of scores and the caps; None: as the family has them."""
    scalar = fields.number("query_pre_attn_scalar", 256)
    if scalar <= 0:
        raise fields.refused("query_pre_attn_scalar", scalar, "scores are divided by its root")
    return {
        "score": ScaledDot(scale=scalar**-0.5),
        "soft_cap": fields.optional("attn_logit_softcapping", fields.number, cap),
        "logit_cap": fields.optional("final_logit_softcapping", fields.number, logit_cap),
    }


def _write_gemma2(settings: TransformerSettings) -> dict[str, Any]:
    scale = getattr(settings.score, "scale", None)
    size = head_width(settings.attention, settings.width)
    made = _write(settings) | llama.layer_types(settings)
    return made | {
        "query_pre_attn_scalar": size if scale is None else _whole(scale**-2),
        "attn_logit_softcapping": settings.soft_cap,
        "final_logit_softcapping": settings.logit_cap,
    }


def _whole(value: float) -> float:
    """A whole number where rounding alone has made it none."""
    return round(value) if abs(value - round(value)) < 1e-6 * value else value


def _read_gemma3(fields: Fields) -> TransformerSettings:
    window = fields.optional("sliding_window", fields.whole, 4096)
    depth, every = fields.layers(), fields.whole("sliding_window_pattern", 6)
    usual = [LOCAL if (layer + 1) % every else FULL for layer in range(depth)]
    types = llama.types_of(fields, usual)
    fields.refuse_unless(
        "attn_logit_softcapping", None, None, "the code of this model type caps no scores"
    )
    return _read(
        fields,
        norm_place="both",
        norm_heads=True,
        head_gains=True,
        window=llama.windows(fields, usual, window),
        positions=_two_rotations(fields, types),
        context=131_072,
        **_scores(fields, cap=None, logit_cap=None),
    )


def _two_rotations(fields: Fields, types: list[str]) -> Rotary:
    """Local layers turn at one base; the others at a larger one, whose rates may be scaled."""
    context = fields.whole("max_position_embeddings", 131_072)
    size = fields.whole("head_dim")
    given = fields.take("rope_parameters", None)
    if given is None:  # before version 5
        local = {"rope_theta": fields.take("rope_local_base_freq", LOCAL_BASE)}
        scaling = fields.take("rope_scaling", None) or {}
        if not isinstance(scaling, Mapping):
            raise fields.refused("rope_scaling", scaling, "it is an object")
        full = {"rope_theta": fields.take("rope_theta", FULL_BASE), **scaling}
        given = {LOCAL: local, FULL: full}
    if not isinstance(given, Mapping) or not set(given) >= set(types):
        raise fields.refused("rope_parameters", given, f"it has {LOCAL} and {FULL}")
    made: dict[str, Rotary] = {}
    for kind in sorted(set(types)):
        if not isinstance(given[kind], Mapping):
            raise fields.refused(f"rope_parameters.{kind}", given[kind], "it is an object")
        one = rope.filled(fields, given[kind], LOCAL_BASE if kind == LOCAL else FULL_BASE)
        made[kind] = rope.rotary(fields, one, context, size)
    scaled = [one for one in made.values() if not isinstance(one.scaling, NoScaling)]
    if len(scaled) > 1 and scaled[0].scaling != scaled[1].scaling:
        raise fields.refused("rope_parameters", given, "attnlab has one scaling")
    bases = shortest([made[kind].bases[0] for kind in types])
    flags = shortest([not isinstance(made[kind].scaling, NoScaling) for kind in types])
    return Rotary(
        base=bases[0] if len(bases) == 1 and bases[0] is not None else bases,
        scaling=scaled[0].scaling if scaled else NoScaling(),
        scaled=flags if any(flags) else (True,),
    )


def _write_gemma3(settings: TransformerSettings) -> dict[str, Any]:
    positions = settings.positions
    if not isinstance(positions, Rotary):
        raise Unsupported("Gemma 3 has rotary positions")
    types = llama.layer_types(settings)
    found: dict[str, dict[str, Any]] = {}
    for layer, kind in enumerate(types["layer_types"]):
        base = positions.bases[layer % len(positions.bases)]
        scaled = positions.scaled[layer % len(positions.scaled)]
        scaling = positions.scaling if scaled else NoScaling()
        if base is None:
            raise Unsupported("positions.base has none, and all layers turn there")
        alone = replace(positions, base=base, scaling=scaling, scaled=(True,))
        one = rope.written(alone, settings.context)
        if found.setdefault(kind, one) != one:
            raise Unsupported(f"rotations differ among layers of {kind}; there they are alike")
    alike = replace(settings, positions=Rotary())
    made = _write_gemma2(alike) | types | {"rope_parameters": found}
    usual = {LOCAL: LOCAL_BASE, FULL: FULL_BASE}
    for kind, base in usual.items():
        found.setdefault(kind, {"rope_type": "default", "rope_theta": base})
    return made


def _rules(settings: TransformerSettings) -> Iterator[Rule]:
    """Of Gemma 2 and 3: four norms a layer."""
    yield from llama.outside(settings)
    for n in range(settings.depth):
        ours, theirs = f"blocks.{n}", f"model.layers.{n}"
        norms = {
            "attention_norm": "input_layernorm",
            "attended_norm": "post_attention_layernorm",
            "feedforward_norm": "pre_feedforward_layernorm",
            "forwarded_norm": "post_feedforward_layernorm",
        }
        for mine, other in norms.items():
            yield llama.gain(settings, f"{ours}.{mine}", f"{theirs}.{other}")
        yield from llama.attention(settings, ours, theirs)
        yield from llama.feedforward(settings, ours, theirs)


GEMMA = Family("gemma", "GemmaForCausalLM", _read, _write, llama.rules)
GEMMA2 = Family("gemma2", "Gemma2ForCausalLM", _read_gemma2, _write_gemma2, _rules)
GEMMA3 = Family("gemma3_text", "Gemma3ForCausalLM", _read_gemma3, _write_gemma3, _rules)
