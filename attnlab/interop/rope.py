"""Rotary positions in a config.json: `rope_parameters`, and as versions before 5 wrote them."""

import math
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
NEEDED = {  # by its code
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
WHOLE, FLAGS = {"original"}, {"truncate"}


def parameters(
    fields: Fields,
    base: float = 10_000.0,
    *,
    part: float | None = None,
    names: tuple[str, str] = ("rope_theta", "partial_rotary_factor"),
) -> dict[str, Any]:
    """One mapping, however old the config is.

    `base` and `part` (of a head that turns) are the family's where none is written; None: it turns
    whole heads, and nothing of its code reads another part. `names`: as old configs call the two.
    """
    theta = fields.take(names[0], None)
    given = None if part is None else fields.take(names[1], None)
    usual = None if part is None else part if given is None else given
    made = filled(fields, _one_of_two(fields), base if theta is None else theta, usual)
    original = fields.take("original_max_position_embeddings", None)
    if original is not None and made.get("rope_type") in ("llama3", "yarn"):
        made["original_max_position_embeddings"] = original  # the one outside decides
    return made


def filled(fields: Fields, found: Mapping[str, Any], base: Any, part: Any = None) -> dict[str, Any]:
    """A flat mapping with all that it leaves out; `part` is None where whole heads turn."""
    made = {key: value for key, value in found.items() if value is not None}
    if "type" in made:  # of old configs
        made.setdefault("rope_type", made["type"])
        del made["type"]
    made.setdefault("rope_theta", base)
    if part is not None:
        made.setdefault("partial_rotary_factor", part)
    elif made.get("partial_rotary_factor", 1.0) != 1.0:
        raise fields.refused(
            "rope_parameters.partial_rotary_factor",
            made["partial_rotary_factor"],
            "the code of this model type turns whole heads",
        )
    return made


def _one_of_two(fields: Fields) -> Mapping[str, Any]:
    """`rope_parameters`, or `rope_scaling` as it was called before version 5."""
    new, old = fields.take("rope_parameters", None), fields.take("rope_scaling", None)
    if new and old:
        raise fields.refused(
            "rope_scaling",
            old,
            "rope_parameters stands beside it, which transformers then drops, its rope_theta too; "
            "write rope_parameters alone, with all that holds",
        )
    name, found = ("rope_scaling", old) if old else ("rope_parameters", new)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise fields.refused(name, found, "it is an object")
    return found


def rotary(fields: Fields, given: Mapping[str, Any], context: int, size: int) -> Rotary:
    """From one flat mapping, for heads of this width."""
    rest = dict(given)
    base = number(fields, "rope_theta", rest.pop("rope_theta", None))
    part = number(fields, "partial_rotary_factor", rest.pop("partial_rotary_factor", 1.0))
    if int(size * part) % 2:
        raise fields.refused(
            "rope_parameters.partial_rotary_factor",
            part,
            f"{int(size * part)} of {size} coordinates turn, which are no pairs",
        )
    return Rotary(base=base, fraction=part, scaling=scaling_of(fields, rest, context))


def number(fields: Fields, name: str, value: object) -> float:
    """Of `rope_parameters`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fields.refused(f"rope_parameters.{name}", value, "it is a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise fields.refused(f"rope_parameters.{name}", value, "no float holds it")
    return found


def scaling_of(fields: Fields, given: Mapping[str, Any], context: int) -> ScalingSettings:
    rest = dict(given)
    kind = rest.pop("rope_type", "default")
    if kind == "default":
        rest.pop("original_max_position_embeddings", None)
        _refuse_rest(fields, rest)
        return NoScaling()
    if not isinstance(kind, str) or kind not in SCALINGS:
        known = ", ".join(["default", *SCALINGS])
        raise fields.refused("rope_type", kind, f"attnlab reads {known}")
    settings, names = SCALINGS[kind]
    if "original" in names:
        rest.setdefault("original_max_position_embeddings", context)
    if kind == "yarn":
        _fill_attention_factor(fields, rest)
    for name in NEEDED[kind]:
        if name not in rest:
            raise fields.refused("rope_parameters", dict(given), f"{kind} scaling needs {name}")
    words: dict[str, Any] = {}
    for ours, theirs in names.items():
        if theirs in rest:
            words[ours] = _word(fields, ours, theirs, rest.pop(theirs))
    rest.pop("original_max_position_embeddings", None)  # linear scaling has no use for it
    _refuse_rest(fields, rest)
    try:
        made: ScalingSettings = settings(**words)
    except ValueError as error:
        raise Unsupported(f"config.json: rope_parameters: {error}") from None
    return made


def _word(fields: Fields, ours: str, theirs: str, value: object) -> bool | int | float:
    """A value as our settings have it."""
    if ours in FLAGS:
        if not isinstance(value, bool):
            raise fields.refused(f"rope_parameters.{theirs}", value, "it is true or false")
        return value
    found = number(fields, theirs, value)
    if ours not in WHOLE:
        return found
    if found != int(found):
        raise fields.refused(f"rope_parameters.{theirs}", value, "it is a whole number")
    return int(found)


def _fill_attention_factor(fields: Fields, rest: dict[str, Any]) -> None:
    """Of YaRN from `mscale` and `mscale_all_dim`, which act together and on nothing else."""
    above, below = rest.pop("mscale", 0), rest.pop("mscale_all_dim", 0)
    if rest.get("attention_factor") is None and above and below and "factor" in rest:
        scale = max(number(fields, "factor", rest["factor"]), 1.0)
        one, other = number(fields, "mscale", above), number(fields, "mscale_all_dim", below)
        rest["attention_factor"] = (0.1 * one * math.log(scale) + 1.0) / (
            0.1 * other * math.log(scale) + 1.0
        )


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
