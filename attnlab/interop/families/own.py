"""Models that are no standard architecture: type `attnlab`, with a modelling file of their own.

The config holds our settings, and besides them what the modelling file would otherwise have to
compute as we do: rates of rotations, slopes, windows of layers.
"""

from collections.abc import Iterator
from typing import Any

import torch

from attnlab import config, registry
from attnlab.attention.heads import head_width
from attnlab.attention.norms import NORM_EPSILON
from attnlab.attention.positions import AlibiPositions, Positions, RotaryPositions
from attnlab.interop.families.family import Family, inner_width
from attnlab.interop.fields import Fields, Unsupported
from attnlab.interop.rules import Rule, same
from attnlab.models.transformer import Transformer, TransformerSettings

ATTENTIONS = ("multi-head", "grouped", "multi-query")
SCORES = ("scaled-dot", "multiplicative", "concatenated", "additive")
POSITIONS = ("none", "learned", "sinusoidal", "rotary", "alibi")
CODE = "modeling_attnlab"


def read(fields: Fields) -> TransformerSettings:
    plain = fields.take("settings")
    try:
        settings = config.from_dict(TransformerSettings, plain)
    except ValueError as error:
        raise Unsupported(f"config.json: settings: {error}") from None
    for name, value in write(settings).items():
        if fields.take(name) != value:
            raise fields.refused(name, fields.take(name), "that does not follow from its settings")
    return settings


def write(settings: TransformerSettings) -> dict[str, Any]:
    for kind, known in (("attention", ATTENTIONS), ("score", SCORES), ("positions", POSITIONS)):
        name = registry.name_of(kind, getattr(settings, kind))
        if name not in known:
            raise Unsupported(
                f"{kind} is {name}, which the modelling file does not have; it has "
                f"{', '.join(known)}"
            )
    with torch.device("meta"):
        model = settings.build()
    schemes = list(model.positions.of_layers())
    turning = [one for one in schemes if isinstance(one, RotaryPositions)]
    width = head_width(settings.attention, settings.width)
    scale = getattr(settings.score, "scale", None)
    usual = 1e-5 if settings.norm == "layer" else NORM_EPSILON
    return {
        "auto_map": {
            "AutoConfig": f"{CODE}.AttnlabConfig",
            "AutoModelForCausalLM": f"{CODE}.AttnlabForCausalLM",
        },
        "settings": config.to_dict(settings),
        "layers": [_layer(model, layer, turning) for layer in range(settings.depth)],
        "rotations": [_rotation(one) for one in turning],
        "slopes": _slopes(schemes),
        "vocab_size": settings.vocabulary,
        "hidden_size": settings.width,
        "num_hidden_layers": settings.depth,
        "num_attention_heads": settings.attention.heads,
        "num_key_value_heads": settings.attention.kv_heads,
        "head_dim": width,
        "intermediate_size": inner_width(settings),
        "max_position_embeddings": settings.context,
        "norm_epsilon": usual if settings.norm_epsilon is None else settings.norm_epsilon,
        "score_scale": width**-0.5 if scale is None else scale,
        "qkv_bias": settings.bias if settings.qkv_bias is None else settings.qkv_bias,
        "tie_word_embeddings": settings.tied,
    }


def _layer(model: Transformer, layer: int, turning: list[RotaryPositions]) -> dict[str, Any]:
    settings, schemes = model.settings, list(model.positions.of_layers())
    scheme = schemes[model.positions.number(layer)]
    return {
        "window": settings.window_of(layer),
        "chunk": settings.chunk_of(layer),
        "shared_kv": settings.shares_with(layer),
        "value_embedding": settings.value_embedding[layer % len(settings.value_embedding)],
        "rotation": turning.index(scheme) if isinstance(scheme, RotaryPositions) else None,
        "tempered": type(scheme).__name__ == "TemperedPositions",
    }


def _rotation(scheme: RotaryPositions) -> dict[str, Any]:
    rates, length = scheme.frequencies(torch.device("cpu"))
    return {"rates": rates.tolist(), "length": length}


def _slopes(schemes: list[Positions]) -> list[float] | None:
    for one in schemes:
        if isinstance(one, AlibiPositions):
            from attnlab.attention.positions import alibi_slopes

            return alibi_slopes(one.slopes.shape[0]).tolist()
    return None


def rules(settings: TransformerSettings) -> Iterator[Rule]:
    """The names are ours."""
    with torch.device("meta"):
        model = settings.build()
    for name, _ in model.named_parameters():
        yield same(name, name)


OWN = Family("attnlab", "AttnlabForCausalLM", read, write, rules, prefix="")
