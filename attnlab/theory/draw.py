"""Random vectors and modules for experiments: functions of a seed and a purpose."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnlab import counter_rng

Array = NDArray[np.float64]
cached = lru_cache(4096)  # for functions that a slider calls again with the same arguments
Module = TypeVar("Module", bound=nn.Module)


def normal(seed: int, purpose: str, *shape: int) -> Array:
    """Independent standard normal numbers."""
    return counter_rng.normal(seed, purpose, np.arange(math.prod(shape)).reshape(shape))


def random_qkv(seed: int, length: int, head_width: int) -> list[Tensor]:
    """q, k and v [length, head_width]."""
    return [torch.from_numpy(normal(seed, name, length, head_width)) for name in "qkv"]


def orthonormal(seed: int, purpose: str, count: int, width: int) -> Array:
    """`count` orthogonal unit vectors of this width, as rows."""
    if count > width:
        raise ValueError(
            f"{count} vectors of width {width} cannot all be at right angles; "
            f"take a width of {count} or more"
        )
    columns, triangle = np.linalg.qr(normal(seed, purpose, width, count))
    # the signs of a QR decomposition are the library's choice; these are not
    return (columns * np.sign(np.diagonal(triangle))).T


def softmax(scores: Array) -> Array:
    """Over the last axis."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def largest(difference: Array) -> float:
    return float(np.abs(difference).max())


def uniform_distance(samples: int, error_rate: float) -> float:
    """Bound on the distance of an empirical distribution function from the true one.

    A sample exceeds it with a probability of at most `error_rate`, for every sample size and every
    distribution: Dvoretzky, Kiefer and Wolfowitz's inequality with Massart's constant.
    """
    return math.sqrt(math.log(2 / error_rate) / (2 * samples))


def frozen_module(make: Callable[[], Module]) -> Module:
    """A module in float64 without gradients, whose parameters the caller fills in."""
    with torch.random.fork_rng(devices=[]):  # initialisation must not move the global generator
        return make().double().eval().requires_grad_(False)


def random_module(make: Callable[[], Module], seed: int, purpose: str) -> Module:
    """A module with normal parameters that depend on the seed; matrices are scaled by 1/√width."""
    module = frozen_module(make)
    for name, parameter in module.named_parameters():
        size = math.sqrt(parameter.shape[-1]) if parameter.dim() > 1 else 1.0
        values = normal(seed, f"{purpose}, {name}", *parameter.shape) / size
        parameter.copy_(torch.from_numpy(values))
    return module
