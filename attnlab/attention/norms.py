"""Norms: vectors brought to one length, with a gain for each coordinate or without.

Axes: c width.

    LayerNorm   (x - mean) / √(variance + ε) · g + b
    RMS-norm    x / √(mean of squares + ε) · g, with g = 1 + w where gains are offsets (Gemma)
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Norm = Literal["layer", "rms", "unit"]

# Under RMS-norms. PyTorch's default is the epsilon of the dtype, so that a model would compute
# something else in float64 or bfloat16; this is float32's.
NORM_EPSILON = 2.0**-23


class OffsetNorm(nn.Module):
    """RMS-norm whose gains are 1 + weight: a decay of weights draws them to 1."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c"]:
        return F.rms_norm(x, self.weight.shape, 1 + self.weight, self.epsilon)


def make_norm(
    kind: Norm,
    width: int,
    *,
    epsilon: float | None = None,
    offset: bool = False,
    bias: bool = False,
) -> nn.Module:
    """`bias` is LayerNorm's, `offset` that of the gains of RMS-norm."""
    if kind == "layer":
        return nn.LayerNorm(width, eps=1e-5 if epsilon is None else epsilon, bias=bias)
    epsilon = NORM_EPSILON if epsilon is None else epsilon
    if kind == "rms" and offset:
        return OffsetNorm(width, epsilon)
    return nn.RMSNorm(width, eps=epsilon, elementwise_affine=kind == "rms")
