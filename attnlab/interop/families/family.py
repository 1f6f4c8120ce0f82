"""What an architecture of `transformers` is to us: its config to settings and back, its tensors.

Whether a family can hold a model is not listed anywhere: `write` makes its config, `read` reads
that again, and what has changed on the way (`meaning`) is the reason why not.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from attnlab import config
from attnlab.attention.heads import Grouped, HeadSettings, MultiHead, head_width
from attnlab.attention.norms import NORM_EPSILON
from attnlab.attention.positions import Rotary
from attnlab.attention.scores import ScaledDot
from attnlab.interop.fields import Fields, Unsupported, short
from attnlab.interop.rules import Heads, Rule
from attnlab.models.hybrid import BY_LAYER
from attnlab.models.transformer import TransformerSettings

T = TypeVar("T")


@dataclass(frozen=True)
class Family:
    model_type: str
    architecture: str
    read: Callable[[Fields], TransformerSettings]
    write: Callable[[TransformerSettings], dict[str, Any]]
    rules: Callable[[TransformerSettings], Iterator[Rule]]
    prefix: str = "model."  # of the names, which some folders leave out
    buffers: str = r".*rotary_emb\.inv_freq"  # what a folder may hold besides weights
    only_its_tokenizer: bool = False  # AutoTokenizer takes the family's own, whatever is there

    def settings(self, plain: dict[str, Any]) -> TransformerSettings:
        """Of a config.json; Unsupported names the field that we cannot express."""
        fields = Fields(plain, self.model_type)
        made = self.read(fields)
        fields.refuse_rest()
        return made

    def config(self, settings: TransformerSettings) -> dict[str, Any]:
        """A config.json; Unsupported names what of our settings this family has not."""
        made = {"model_type": self.model_type, "architectures": [self.architecture]}
        made |= self.write(settings)
        wanted, found = (_by_key(meaning(one)) for one in (settings, self.settings(made)))
        for name in {**wanted, **found}:
            if wanted.get(name) != found.get(name):
                raise Unsupported(
                    f"{name} is {_said(wanted.get(name))}, and a {self.model_type} model of this "
                    f"kind has {_said(found.get(name))}"
                )
        return made


def _by_key(made: dict[str, Any]) -> dict[str, Any]:
    """Named as in settings: `positions.sections`."""
    keys: dict[str, Any] = {}
    for name, value in made.items():
        inner = value.items() if isinstance(value, dict) else ()
        keys |= {f"{name}.{key}": one for key, one in inner} or {name: value}
    return keys


def _said(value: object) -> str:
    return short("none" if value is None else str(value))


def meaning(settings: TransformerSettings) -> dict[str, Any]:
    """What a model computes, in one spelling: equal for settings that are the same function."""
    made = config.to_dict(settings)
    layers = range(settings.depth)
    for name in ("initial", "dropout", "attention_dropout", "expansion"):
        del made[name]
    width = head_width(settings.attention, settings.width)
    attention = settings.attention
    if isinstance(made["attention"], dict) and set(made["attention"]) <= {
        *("name", "heads", "kv_heads", "head_width")
    }:
        made["attention"] = {
            "heads": attention.heads,
            "kv_heads": attention.kv_heads,
            "head_width": width,
        }
    if settings.score == ScaledDot(scale=getattr(settings.score, "scale", None)):
        scale = getattr(settings.score, "scale", None)
        made["score"] = {"scale": round(width**-0.5 if scale is None else scale, 12)}
    for name in BY_LAYER:
        pattern = made[name]
        made[name] = [pattern[layer % len(pattern)] for layer in layers]
    positions = settings.positions
    if isinstance(positions, Rotary):
        bases = [positions.bases[layer % len(positions.bases)] for layer in layers]
        flags = [positions.scaled[layer % len(positions.scaled)] for layer in layers]
        made["positions"] = {
            "bases": bases,
            "pairs": int(width * positions.fraction) // 2,
            "scaling": _scalings(positions, bases, flags, settings.context),
            "temperature": positions.temperature if None in bases else None,
            "sections": positions.sections or None,
            "alternate": positions.alternate,
        }
    if not isinstance(positions, Rotary) and made["positions"]["name"] != "learned":
        made["positions"] = dict(made["positions"])
    if made["positions"].get("name") != "learned":
        del made["context"]
    made["inner"] = inner_width(settings)
    made["norm"] = "rms" if settings.norm == "unit" else settings.norm
    epsilon = 1e-5 if settings.norm == "layer" else NORM_EPSILON
    made["norm_epsilon"] = epsilon if settings.norm_epsilon is None else settings.norm_epsilon
    made["qkv_bias"] = settings.bias if settings.qkv_bias is None else settings.qkv_bias
    made["head_gains"] = None  # norms without gains are norms with gains of 1
    return made


def _scalings(
    positions: Rotary, bases: Sequence[float | None], flags: Sequence[bool], context: int
) -> list[dict[str, Any] | None]:
    plain = config.to_dict(replace(positions))["scaling"]
    if "original" in plain and plain["original"] is None:
        plain = {**plain, "original": context / plain.get("factor", 1.0)}
    if "attention_factor" in plain and plain["attention_factor"] is None:
        plain = {**plain, "attention_factor": None}
    if plain["name"] == "none":
        return [None] * len(bases)
    return [
        plain if flag and base is not None else None
        for base, flag in zip(bases, flags, strict=True)
    ]


def inner_width(settings: TransformerSettings) -> int:
    part = settings.expansion * settings.width
    return max(round(part * 2 / 3 if is_gated(settings) else part), 1)


def is_gated(settings: TransformerSettings) -> bool:
    return settings.feedforward in ("swiglu", "geglu")


def expansion(inner: int, width: int, *, gated: bool) -> float:
    """So that the feed-forward part has this inner width."""
    found = inner / width * (3 / 2 if gated else 1)
    assert max(round(found * width * (2 / 3 if gated else 1)), 1) == inner
    return found


def heads_of(
    heads: int, kv_heads: int, head_size: int | None, width: int, fields: Fields
) -> HeadSettings:
    if heads % kv_heads:
        raise fields.refused(
            "num_key_value_heads", kv_heads, f"{heads} query heads do not divide by it"
        )
    if head_size is None and width % heads:
        raise fields.refused("num_attention_heads", heads, f"a width of {width} is no multiple")
    size = None if head_size is None or head_size * heads == width else head_size
    if kv_heads == heads:
        return MultiHead(heads=heads, head_width=size)
    return Grouped(heads=heads, kv_heads=kv_heads, head_width=size)


def shortest(pattern: Sequence[T]) -> tuple[T, ...]:
    """The beginning that repeats over all layers, in whole turns or not."""
    for size in range(1, len(pattern) + 1):
        if all(one == pattern[n % size] for n, one in enumerate(pattern)):
            return tuple(pattern[:size])
    return tuple(pattern)


def split(settings: TransformerSettings) -> Heads:
    """How the heads of our fused product are taken apart, with rotation as they have it."""
    positions, rotated = settings.positions, None
    if isinstance(positions, Rotary) and positions.layout == "interleaved":
        size = head_width(settings.attention, settings.width)
        rotated = 2 * (int(size * positions.fraction) // 2)
    return Heads(settings.attention.heads, settings.attention.kv_heads, rotated)


def square_root(width: int) -> float:
    return math.sqrt(width)
