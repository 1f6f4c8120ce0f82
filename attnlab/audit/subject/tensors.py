"""Inputs drawn from a seed, and the tensor of outputs among whatever code returns.

Axes: b batch, t time, e width of the outputs.
"""

from typing import Any

import torch
from torch import Tensor

from attnlab.audit.errors import SubjectError
from attnlab.audit.repro.prelude import sample, scalar_in


def normal(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers that depend on the seed only."""
    return sample(shape, None, seed, torch.float64)


def first_tensor(found: Any) -> Tensor:
    """Of a tensor, a tuple or something with logits."""
    if isinstance(found, Tensor):
        return found
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(found, name, None), Tensor):
            return getattr(found, name)  # type: ignore[no-any-return]
    values = found.values() if isinstance(found, dict) else found
    if isinstance(values, list | tuple) or isinstance(found, dict):
        for value in values:
            if isinstance(value, Tensor):
                return value
    raise SubjectError(f"the code gave {type(found).__name__}, not a tensor or a tuple of them")


def sequence_in(found: Any, x: Tensor) -> Tensor:
    """The outputs [b, t, e], checked to have the batch and the length of x."""
    out = first_tensor(found)
    if out.dim() < 3 or out.shape[:2] != x.shape[:2]:
        raise SubjectError(
            f"the code gave {list(out.shape)} for inputs {list(x.shape)}; "
            "outputs must be [batch, time, width]"
        )
    if out.is_complex() or out.dtype is torch.bool or not out.numel():
        raise SubjectError(f"the code gave {list(out.shape)} of {out.dtype}, which are no numbers")
    return out.flatten(2)


def step_in(found: Any) -> Tensor:
    """The outputs [b, n, e] of a step: of all new positions, or of the last only."""
    out = first_tensor(found)
    if out.dim() < 3:
        raise SubjectError(
            f"the code gave {list(out.shape)} for a step; outputs must be [batch, time, width]"
        )
    return out.flatten(2)


def loss_in(found: Any) -> Tensor:
    """The loss among what a model gave."""
    try:
        return scalar_in(found)
    except ValueError as error:
        raise SubjectError(str(error)) from None
