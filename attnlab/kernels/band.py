"""The input of the engines of banded attention, as plain tensors and numbers."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlab.kernels.mask import ALL, Mask
from attnlab.kernels.request import Bias, LinearBias, Request
from attnlab.kernels.rotary import Rotation


@dataclass(frozen=True)
class Ranges:
    """What a mask comes to, computed: it crosses the border of an operation as a tensor."""

    tensor: Int[Tensor, "#b q 3"]

    def ranges(self, queries: slice = ALL) -> Int[Tensor, "#b _q 3"]:
        return self.tensor[:, queries]


@dataclass(frozen=True, kw_only=True)
class Band:
    """Every query attends to one range of keys; both ends of it only grow along the queries.

    The table has the bias of a key by how far it stands after the query: table[h, zero + j - i].
    """

    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]
    mask: Mask | Ranges
    scale: float
    cap: float = 0.0  # on scores; 0: none
    table: Float[Tensor, "h n"] | Float[Tensor, " h"] | None = None  # one number: a slope
    zero: int = 0
    sinks: Float[Tensor, " h"] | None = None
    padding: Bool[Tensor, "b k"] | None = None
    rotary: Rotation | None = None  # of the keys, where q and k are still to be turned


def band_of(request: Request, slopes: bool = False) -> Band:
    """With `slopes` those of ALiBi stay what they are, and stand for the table."""
    table, zero = None, 0
    if slopes and isinstance(request.bias, LinearBias):
        table = request.bias.slopes
    elif isinstance(request.bias, Bias):
        table, zero = bias_table(request.bias, request.queries, request.keys)
    return Band(
        q=request.q,
        k=request.k,
        v=request.v,
        mask=request.mask,
        scale=float(request.factor),
        cap=float(request.soft_cap or 0.0),
        table=table,
        zero=zero,
        sinks=request.sinks,
        padding=request.key_padding,
        rotary=request.rotary,
    )


def bias_table(bias: Bias, queries: int, keys: int) -> tuple[Float[Tensor, "h n"], int]:
    """For every distance that a key can have from a query, whatever its position."""
    reach = queries + keys
    after = torch.arange(-reach, reach + 1, device=bias.learned.device)
    return bias.of_distance(-after), reach


def laid_out_as(like: Tensor, width: int) -> Tensor:
    """Memory for a result [b, h, t, width]: heads innermost where they are so in `like`."""
    batch, heads, time, _ = like.shape
    if like.stride(1) < like.stride(2):
        return like.new_empty(batch, time, heads, width).transpose(1, 2)
    return like.new_empty(batch, heads, time, width)
