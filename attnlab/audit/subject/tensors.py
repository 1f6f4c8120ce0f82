"""Inputs drawn from a seed, and the tensor of outputs among whatever code returns.

Axes: b batch, t time, e width of the outputs.
"""

import torch
from torch import Tensor

from attnlab.audit.errors import SubjectError
from attnlab.audit.repro.prelude import NoOutputs, sample, scalar_in, tensor_in


def normal(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers that depend on the seed only."""
    return sample(shape, None, seed, torch.float64)


def first_tensor(found: object) -> Tensor:
    """The outputs, of a tensor, a tuple or something with logits."""
    try:
        return tensor_in(found)
    except NoOutputs as error:
        raise SubjectError(str(error)) from None


def sequence_in(found: object, x: Tensor) -> Tensor:
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


def step_in(found: object) -> Tensor:
    """The outputs [b, n, e] of a step: of all new positions, or of the last only."""
    out = first_tensor(found)
    if out.dim() < 3:
        raise SubjectError(
            f"the code gave {list(out.shape)} for a step; outputs must be [batch, time, width]"
        )
    return out.flatten(2)


def loss_in(found: object) -> Tensor:
    """The loss among what a model gave."""
    try:
        return scalar_in(found)
    except NoOutputs as error:
        raise SubjectError(str(error)) from None
