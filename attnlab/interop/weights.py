"""Weights between our models and folders of `transformers`, by the rules of a family.

Every tensor of a folder has a place in our model and every weight of our model comes from the
folder, with its shape; what is left over or missing is refused by name.
"""

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from attnlab.interop.families.family import Family
from attnlab.interop.families.own import OWN
from attnlab.interop.fields import Unsupported
from attnlab.interop.folder import Found, Tensors
from attnlab.interop.rules import Rule
from attnlab.models.transformer import TransformerSettings

HEADS = {"lm_head.weight", "embed_out.weight"}  # which a tied model has or leaves out


def to_theirs(
    family: Family, settings: TransformerSettings, weights: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Our weights under their names."""
    used: set[str] = set()
    dtype = next(iter(weights.values())).dtype
    for rule in family.rules(settings):
        used.update(rule.ours)
        moved = rule.to_theirs([weights[name] for name in rule.ours])
        yield from zip(rule.theirs, (one.to(dtype) for one in moved), strict=True)
    tied = {"head.weight"} if settings.tied else set()
    lost = sorted(weights.keys() - used - tied)
    assert not lost, f"{family.model_type} has no place for {lost[0]}"


def to_ours(
    family: Family, settings: TransformerSettings, tensors: Tensors
) -> Iterator[tuple[str, Tensor]]:
    """Their tensors under our names, one rule at a time."""
    names = _with_prefix(family, tensors)
    rules = list(family.rules(settings))
    heads = HEADS & names.keys() if settings.tied and family is not OWN else set[str]()
    _refuse_others(family, rules, names, tensors, heads)
    _refuse_another_head(heads, rules, names, tensors)
    shapes = expected_shapes(settings)
    for rule in rules:
        given = [tensors.read(names[name]) for name in rule.theirs]
        _refuse_shapes(rule, shapes, given)
        yield from zip(rule.ours, rule.to_ours(given), strict=True)


def expected_shapes(settings: TransformerSettings) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = settings.build()
    return {name: tuple(one.shape) for name, one in model.state_dict().items()}


def _with_prefix(family: Family, tensors: Mapping[str, Found]) -> dict[str, str]:
    """The full name of each tensor: the one it has in the folder. Some leave out the prefix."""
    if any(name.startswith(family.prefix) for name in tensors):
        return {name: name for name in tensors}
    outside = ("lm_head.", "embed_out.")
    return {name if name.startswith(outside) else family.prefix + name: name for name in tensors}


def _refuse_another_head(
    heads: set[str], rules: list[Rule], names: Mapping[str, str], tensors: Tensors
) -> None:
    """A tied head is the table of embeddings: transformers takes one that differs for the head."""
    (table,) = (rule.theirs[0] for rule in rules if rule.ours == ("embed.weight",))
    for name in sorted(heads):
        if not tensors.read(names[name]).equal(tensors.read(names[table])):
            raise Unsupported(
                f"{tensors.folder} has a tensor {names[name]} that differs from {names[table]}, "
                "and its config.json says that they are one; write there tie_word_embeddings: "
                "false, so that the head is read"
            )


def _refuse_others(
    family: Family,
    rules: list[Rule],
    names: Mapping[str, str],
    tensors: Tensors,
    heads: set[str],
) -> None:
    wanted = {name for rule in rules for name in rule.theirs}
    missing = sorted(wanted - names.keys())
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Unsupported(f"{tensors.folder} has no tensor {missing[0]}{more}")
    extra = [
        name
        for name in sorted(names.keys() - wanted - heads)
        if not re.fullmatch(family.buffers, name)
    ]
    if extra:
        more = f", and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise Unsupported(
            f"{tensors.folder} has a tensor {names[extra[0]]}{more}, for which a "
            f"{family.model_type} model with this config.json has no place"
        )


def _refuse_shapes(rule: Rule, shapes: Mapping[str, tuple[int, ...]], given: list[Tensor]) -> None:
    """By the shapes that our weights would have as theirs."""
    there = [tuple(one.shape) for one in given]
    with torch.device("meta"):
        ours = [torch.empty(shapes[name]) for name in rule.ours]
        wanted = [tuple(one.shape) for one in rule.to_theirs(ours)]
    for name, found, right in zip(rule.theirs, there, wanted, strict=True):
        if found != right:
            raise Unsupported(
                f"tensor {name} has shape {list(found)}; with this config.json it has {list(right)}"
            )
