"""Hybrids: rules of a model in which some layers keep a state and the others have keys."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from attnlab.attention.positions import Rotary
from attnlab.config import refusal

BY_LAYER = ("window", "chunk", "value_embedding", "shared_kv")  # lists that repeat over the layers


@runtime_checkable
class Hybrid(Protocol):
    """What a model says of layers that keep a state, and others that have keys."""

    @property
    def depth(self) -> int: ...
    @property
    def value_residual(self) -> object: ...
    @property
    def positions(self) -> object: ...
    def has_state(self, layer: int) -> bool: ...


def check_hybrid(model: Hybrid) -> None:
    """Refuse what would reach no layer with keys.

    A single value is for the layers with keys alone; a list counts all layers.
    """
    states = [layer for layer in range(model.depth) if model.has_state(layer)]
    if len(states) == model.depth:
        fewer = f"use attention.full_every={model.depth} or fewer"
        advice = fewer if model.depth > 1 else "a hybrid has 2 layers or more"
        raise refusal(model, "depth", f"no layer has keys; {advice}")
    if model.value_residual is not None:
        raise refusal(model, "value_residual", "the first layer keeps a state; write none")
    for name in BY_LAYER:
        if lost := _lost(getattr(model, name), states):
            raise refusal(model, name, lost)
    if isinstance(model.positions, Rotary):
        keyed = [layer for layer in range(model.depth) if not model.has_state(layer)]
        _check_rotary(model.positions, states, keyed)


def _check_rotary(positions: Rotary, states: Sequence[int], keyed: Sequence[int]) -> None:
    for name, values in (("base", positions.bases), ("scaled", positions.scaled)):
        if lost := _lost(values, states):
            raise refusal(positions, name, lost).at("positions.")
    bases = {positions.bases[layer % len(positions.bases)] for layer in keyed}
    if positions.temperature is not None and None not in bases:
        advice = "it is for layers without rotation, and each with keys has one; leave it out"
        raise refusal(positions, "temperature", advice).at("positions.")


def _lost(values: Sequence[object], states: Sequence[int]) -> str | None:
    """Why a list is refused that has something for a layer with a state."""
    if len(values) == 1:
        return None
    return next(
        (
            f"layer {layer} keeps a state and has no keys; a list counts all layers, and a single "
            "value is for those with keys"
            for layer in states
            if values[layer % len(values)]
        ),
        None,
    )
