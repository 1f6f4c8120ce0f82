"""Rotary positions in a config.json: `rope_parameters`, and as versions before 5 wrote them."""

from collections.abc import Mapping
from typing import Any

from attnlab import registry
from attnlab.attention.positions import PositionsSettings, Rotary
from attnlab.attention.rotary_scaling import Linear, Llama3, NoScaling, ScalingSettings, Yarn
from attnlab.interop.fields import Fields, Unsupported

# our name of a setting: theirs
LINEAR = {"factor": "factor"}
LLAMA3 = {
    "factor": "factor",
    "original": "original_max_position_embeddings",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
}
YARN = {
    "factor": "factor",
    "original": "original_max_position_embeddings",
    "fast": "beta_fast",
    "slow": "beta_slow",
    "attention_factor": "attention_factor",
    "truncate": "truncate",
}
SCALINGS: dict[str, tuple[type, dict[str, str]]] = {
    "linear": (Linear, LINEAR),
    "llama3": (Llama3, LLAMA3),
    "yarn": (Yarn, YARN),
}
WHOLE = {"original"}


def parameters(fields: Fields, base: float = 10_000.0) -> dict[str, Any]:
    """One mapping, however old the config is. `base` is the family's where none is written."""
    found = fields.take("rope_parameters", None)
    theta, scaling = fields.take("rope_theta", None), fields.take("rope_scaling", None)
    part = fields.take("partial_rotary_factor", None)
    if found is None:
        found = {} if scaling is None else scaling
    if not isinstance(found, Mapping):
        raise fields.refused("rope_parameters", found, "it is an object")
    made = {key: value for key, value in found.items() if value is not None}
    if "type" in made:  # of old configs
        made.setdefault("rope_type", made["type"])
        del made["type"]
    made.setdefault("rope_theta", base if theta is None else theta)
    made.setdefault("partial_rotary_factor", 1.0 if part is None else part)
    return made


def rotary(fields: Fields, given: Mapping[str, Any], context: int) -> Rotary:
    """From one flat mapping."""
    rest = dict(given)
    base, part = rest.pop("rope_theta"), rest.pop("partial_rotary_factor", 1.0)
    return Rotary(base=float(base), fraction=float(part), scaling=scaling_of(fields, rest, context))


def scaling_of(fields: Fields, given: Mapping[str, Any], context: int) -> ScalingSettings:
    rest = dict(given)
    kind = rest.pop("rope_type", "default")
    if kind == "default":
        rest.pop("original_max_position_embeddings", None)
        _refuse_rest(fields, rest)
        return NoScaling()
    if kind not in SCALINGS:
        known = ", ".join(["default", *SCALINGS])
        raise fields.refused("rope_type", kind, f"attnlab reads {known}")
    settings, names = SCALINGS[kind]
    if "original" in names:
        rest.setdefault("original_max_position_embeddings", context)
    words: dict[str, Any] = {}
    for ours, theirs in names.items():
        if theirs in rest:
            value = rest.pop(theirs)
            words[ours] = value if isinstance(value, bool) or ours in WHOLE else float(value)
    rest.pop("original_max_position_embeddings", None)  # linear scaling has no use for it
    _refuse_rest(fields, rest)
    made: ScalingSettings = settings(**words)
    return made


def _refuse_rest(fields: Fields, rest: Mapping[str, Any]) -> None:
    for name, value in rest.items():
        raise fields.refused(f"rope_parameters.{name}", value, "attnlab does not know this field")


def written(positions: PositionsSettings, context: int) -> dict[str, Any]:
    """`rope_parameters` of layers that are all alike."""
    if not isinstance(positions, Rotary):
        raise Unsupported(f"positions are {_name(positions)}, and rotary there")
    made: dict[str, Any] = {"rope_type": "default", "rope_theta": positions.bases[0]}
    if positions.fraction != 1.0:
        made["partial_rotary_factor"] = positions.fraction
    return made | scaling_written(positions.scaling, context)


def scaling_written(scaling: ScalingSettings, context: int) -> dict[str, Any]:
    if isinstance(scaling, NoScaling):
        return {}
    for kind, (settings, names) in SCALINGS.items():
        if isinstance(scaling, settings):
            values = {theirs: getattr(scaling, ours) for ours, theirs in names.items()}
            if "original" in names and values["original_max_position_embeddings"] is None:
                factor: float = values["factor"]
                if context % factor:
                    raise Unsupported(
                        "the original context of positions.scaling is no whole number; set "
                        "model.positions.scaling.original"
                    )
                values["original_max_position_embeddings"] = int(context / factor)
            given = {name: value for name, value in values.items() if value is not None}
            return {"rope_type": kind, **given}
    raise Unsupported("transformers has no such positions.scaling in this family")


def _name(positions: PositionsSettings) -> str:
    return registry.name_of("positions", positions)
