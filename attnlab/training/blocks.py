"""What is done to each block of a model for the sake of a training: recompute, compile.

A block's `forward` is replaced on the object. What FSDP does around a block stays outside: it hooks
into the call, and gathers weights before a forward pass and again before its recomputation.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from attnlab import compat
from attnlab.training.recipe import Recipe

T = TypeVar("T")


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a model that are alike; empty if it has no such list."""
    return list(getattr(model, "blocks", []))


def refuse_recompute(recipe: Recipe, model: nn.Module) -> None:
    """Of blocks that leave something for later ones besides what they return."""
    if not recipe.recompute:
        return
    settings = recipe.model
    if not blocks_of(model):
        raise ValueError("recompute is true, and this model has no list of blocks; use false")
    for name in ("value_residual", "shared_kv"):
        value = getattr(settings, name, None)
        if any(value) if isinstance(value, tuple) else value is not None:
            raise ValueError(
                f"recompute and model.{name} exclude each other: a block that is computed twice "
                "would leave its values twice for later ones; use recompute=false"
            )


def recompute_blocks(model: nn.Module, *, random: bool) -> None:
    """Keep a block's inputs alone, and compute the rest again in the backward pass.

    `random`: with the same random numbers, which costs a copy of the generators' states.
    """
    for block in blocks_of(model):
        block.forward = partial(_recomputed, block.forward, random)


def _recomputed(forward: Callable[..., T], random: bool, *args: Any, **options: Any) -> T:
    if not torch.is_grad_enabled():
        return forward(*args, **options)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=random, **options)


def compile_blocks(model: nn.Module) -> bool:
    """Compile each block by itself; False if the model has none.

    Where a block knows its number it is compiled for that number, once to train, once to evaluate.
    """
    compat.allow_recompiles(4 * len(blocks_of(model)))
    for block in blocks_of(model):
        block.forward = torch.compile(block.forward, dynamic=False)
    return bool(blocks_of(model))
