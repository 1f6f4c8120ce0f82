"""Weights: made from a recipe, put in place from a checkpoint, refused where they do not fit."""

import dataclasses
import math
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import nn

from attnlab import config, counter_rng
from attnlab.kernels.hardware import HALVES, cpu_multiplies
from attnlab.memory import machine_memory
from attnlab.models.meta import measure
from attnlab.models.model import LanguageModel, ModelSettings
from attnlab.training.initial_shards import Unfit, build_rows
from attnlab.training.recipe import Recipe
from attnlab.training.shards import Cut, join

LAYER = 40_000  # bytes of Python objects that a layer needs besides its weights


def build_model(recipe: Recipe) -> LanguageModel:
    """The model with the weights it begins with: a function of the recipe."""
    _refuse_too_large(recipe.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(counter_rng.number(recipe.seed, "weights"))
        return recipe.model.build()


def build_shards(
    recipe: Recipe, cut: Cut, *, local: int, fill: bool, note: Callable[[str], None]
) -> tuple[LanguageModel, dict[str, torch.Tensor]]:
    """As build_model, with large weights on "meta", and of these the rows of one process, by name.

    `local` is the number of processes on this machine. Without `fill` the rows hold nothing yet.
    """
    _refuse_too_large(recipe.model, local / cut.shards)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(counter_rng.number(recipe.seed, "weights"))
            return build_rows(recipe.model.build, cut, fill=fill)
    except Unfit as reason:
        note(f"every process begins with the whole model ({reason}); it is cut afterwards")
        _refuse_too_large(recipe.model, local)
        return build_model(recipe), {}


def put_rows(model: nn.Module, rows: dict[str, torch.Tensor], device: torch.device) -> None:
    """Give a model that FSDP has cut on "meta" its rows."""
    named = dict(model.named_parameters())
    made = {
        id(named[name]): nn.Parameter(join(one.to(device), named[name]))
        for name, one in rows.items()
    }
    every = model.named_parameters(remove_duplicate=False)  # the two names of tied weights
    state = {name: made[id(one)] for name, one in every if id(one) in made}
    model.load_state_dict(state, strict=False, assign=True)


def _refuse_too_large(settings: ModelSettings, part: float = 1) -> None:
    """Before the machine begins to swap or ends the process."""
    wanted, there = bytes_wanted(settings) * part, machine_memory()
    if wanted > there:
        raise ValueError(
            f"the weights alone need {wanted / 1e9:,.0f} GB and this machine has "
            f"{there / 1e9:,.0f}; use a smaller width, depth or vocabulary"
        )


def bytes_wanted(settings: ModelSettings) -> float:
    """What a model takes, without making it: a layer more is always as much more."""
    depth = getattr(settings, "depth", 1)
    if depth <= 2:
        return _bytes_of(settings)
    one, two = (_bytes_of(dataclasses.replace(settings, depth=layers)) for layers in (1, 2))
    return one + (depth - 1) * (two - one + LAYER)


def _bytes_of(settings: ModelSettings) -> float:
    try:
        return measure(
            settings, lambda model: sum(p.numel() * p.element_size() for p in model.parameters())
        )
    except (RuntimeError, OverflowError, TypeError):  # a number that no tensor can count to
        return math.inf


def load_weights(model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Put weights in place; a missing, foreign or misshapen one is refused by name.

    With them come buffers that steps change, if a model has any.
    """
    own = refuse_other_weights(model, weights)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])


def refuse_other_weights(
    model: nn.Module, weights: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What has a place for them: parameters, and buffers that are among them."""
    own: dict[str, torch.Tensor] = dict(model.named_parameters())
    running = {name: one for name, one in model.named_buffers() if name in weights}
    for name in sorted(own.keys() ^ (weights.keys() - running.keys())):
        place = "has no place in this model" if name in weights else "is missing in the checkpoint"
        raise ValueError(f"weight {name} {place}; use the settings the checkpoint was made with")
    for name, parameter in {**own, **running}.items():
        if parameter.shape != weights[name].shape:
            raise ValueError(
                f"weight {name} has shape {tuple(weights[name].shape)} in the checkpoint and "
                f"{tuple(parameter.shape)} here; use the settings the checkpoint was made with"
            )
        if name in own and not weights[name].is_floating_point():
            raise ValueError(f"weight {name} has dtype {weights[name].dtype}; a weight has floats")
    return {**own, **running}


def build_with(
    recipe: Recipe, weights: dict[str, torch.Tensor], device: torch.device
) -> LanguageModel:
    """A model to use, with these weights, in their dtype where the device multiplies it.

    Weights in half precision take no more memory than they have: they become the model's own.
    """
    dtype = _half_of(weights, device)
    if dtype is None:
        model = build_model(recipe)
        load_weights(model, weights)
        return model
    with torch.device("meta"):
        model = recipe.model.build()
    refuse_other_weights(model, weights)
    model.load_state_dict({name: one.to(dtype) for name, one in weights.items()}, False, True)
    if getattr(recipe.model, "tied", False):
        model.head.weight = model.embed.weight  # type: ignore[union-attr, assignment]
    lost = [name for name, one in model.named_buffers() if one.is_meta]
    if lost:  # made by the code, not kept with the weights
        model = build_model(recipe).to(dtype)
        load_weights(model, weights)
    return model


def _half_of(weights: dict[str, torch.Tensor], device: torch.device) -> torch.dtype | None:
    """The half precision that all weights have, if products run in it there."""
    kinds = {one.dtype for one in weights.values()}
    dtype = kinds.pop()
    if kinds or dtype not in HALVES:
        return None
    name = str(dtype).removeprefix("torch.")
    return dtype if device.type != "cpu" or cpu_multiplies(name) else None


def _settings_in(saved: dict[str, object]) -> dict[str, object]:
    """Of the model; what was no setting yet when they were saved has its default."""
    theirs = saved.get("model")
    if not isinstance(theirs, dict):
        return {}
    if "name" in theirs:
        with suppress(ValueError):  # else as they are: the difference is said
            theirs = config.to_dict(config.from_dict(Recipe, {"model": theirs}))["model"]
    return config.flat(theirs)


def refuse_other_model(recipe: Recipe, saved: dict[str, object]) -> None:
    """Weights mean something only in the architecture they were trained in."""
    here = config.flat(config.to_dict(recipe)["model"])
    there = _settings_in(saved)
    free = {"dropout", "attention_dropout"}
    if here.get("positions.name") != "learned":
        free.add("context")  # any length will do
    names = [n for n in [*here, *there] if n not in free and here.get(n) != there.get(n)]
    if names:
        name = names[0]
        word = f"model.{name}".removesuffix(".name")  # positions.name is set by positions=…
        advice = f"; set {word}={there[name]} to load it" if name in there else ""
        raise ValueError(
            f"model.{name} is {there.get(name, 'not set')} in the checkpoint and "
            f"{here.get(name, 'not set')} here{advice}"
        )
