"""Weights: made from a recipe, put in place from a checkpoint, refused where they do not fit."""

import os
from typing import Any

import torch
from torch import nn

from attnlab import chance, config
from attnlab.training.recipe import Recipe


def build_model(recipe: Recipe) -> nn.Module:
    """The model with the weights it begins with: a function of the recipe."""
    with torch.device("meta"):
        wanted = sum(p.numel() * p.element_size() for p in recipe.model.build().parameters())
    _refuse_too_large(wanted)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chance.number(recipe.seed, "weights"))
        return recipe.model.build()


def _refuse_too_large(wanted: int) -> None:
    """Before the machine begins to swap or ends the process."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > memory:
        raise ValueError(
            f"the weights alone need {wanted / 1e9:,.0f} GB and this machine has "
            f"{memory / 1e9:,.0f}; use a smaller width, depth or vocabulary"
        )


def load_weights(model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Put weights in place; a missing, foreign or misshapen one is refused by name."""
    own = dict(model.named_parameters())
    for name in sorted(own.keys() ^ weights.keys()):
        place = "has no place in this model" if name in weights else "is missing in the checkpoint"
        raise ValueError(f"weight {name} {place}; use the settings the checkpoint was made with")
    for name, parameter in own.items():
        if parameter.shape != weights[name].shape:
            raise ValueError(
                f"weight {name} has shape {tuple(weights[name].shape)} in the checkpoint and "
                f"{tuple(parameter.shape)} here; use the settings the checkpoint was made with"
            )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])


def refuse_other_model(recipe: Recipe, saved: dict[str, Any]) -> None:
    """Weights mean something only in the architecture they were trained in."""
    here = flat(config.to_dict(recipe)["model"])
    there = flat(saved.get("model", {}))
    free = {"dropout"}
    if here.get("positions.name") != "learned":
        free.add("context")  # any length will do
    names = [n for n in [*here, *there] if n not in free and here.get(n) != there.get(n)]
    if names:
        name = names[0]
        raise ValueError(
            f"model.{name} is {there.get(name, 'not set')} in the checkpoint and "
            f"{here.get(name, 'not set')} here; set model.{name}={there.get(name)} to go on from it"
        )


def flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}"""
    found: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = value
    return found
