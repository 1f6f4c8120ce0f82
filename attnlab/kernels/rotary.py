"""Rotary positions: pairs of coordinates turn by an angle proportional to the position.

Axes: b batch (1 when all rows share their positions), h heads, t time, d head width, p pairs.

Two layouts of one idea: "half-split" pairs coordinate n with n + p, "interleaved" pairs 2n with
2n + 1. Only the first 2p coordinates turn. Angles are computed in float64: in float32 they lose the
fractions that matter at position 100,000.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Layout = Literal["half-split", "interleaved"]


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines of the angles at each position, the same for all heads or one a head."""

    cos: Float[Tensor, "#b #h t p"]
    sin: Float[Tensor, "#b #h t p"]
    layout: Layout = "half-split"

    def last(self, count: int) -> "Rotation":
        start = self.cos.shape[2] - count
        return Rotation(self.cos[:, :, start:], self.sin[:, :, start:], self.layout)

    def at(self, positions: Int[Tensor, "#b q"]) -> "Rotation":
        """Of what stands at these positions."""
        rows = max(self.cos.shape[0], positions.shape[0])
        shape = rows, self.cos.shape[1], positions.shape[1], self.cos.shape[3]
        index = positions[:, None, :, None].expand(shape)
        cos, sin = (one.expand(rows, -1, -1, -1).gather(2, index) for one in (self.cos, self.sin))
        return Rotation(cos, sin, self.layout)

    def of_heads(self, count: int) -> "Rotation":
        """For a tensor of so many heads; keys may have fewer than queries."""
        if self.cos.shape[1] in (1, count):
            return self
        return Rotation(self.cos[:, :count], self.sin[:, :count], self.layout)


def rotation(
    positions: Int[Tensor, "#b t"],
    pairs: int,
    base: float = 10_000.0,
    layout: Layout = "half-split",
    dtype: torch.dtype = torch.float32,
) -> Rotation:
    """Pair n turns by position · base^(-n / pairs)."""
    rates = frequencies(pairs, base, positions.device)
    return rotation_at(positions, rates, layout=layout, dtype=dtype)


def frequencies(
    pairs: int, base: float = 10_000.0, device: torch.device | None = None
) -> Float[Tensor, " {pairs}"]:
    """By how much each pair turns from one position to the next."""
    return base ** -(torch.arange(pairs, device=device, dtype=torch.float64) / pairs)


def rotation_at(
    positions: Int[Tensor, "#b t *p"],
    rates: Float[Tensor, " p"],
    *,
    length: float = 1.0,
    layout: Layout = "half-split",
    dtype: torch.dtype = torch.float32,
) -> Rotation:
    """Pair n turns by position · rates[n]; what turns becomes `length` times as long.

    All pairs have the same position, or each its own.
    """
    if positions.dim() == 2:
        positions = positions[..., None]
    angles = positions[:, None].double() * rates
    cos, sin = angles.cos(), angles.sin()
    if length != 1:
        cos, sin = cos * length, sin * length
    return Rotation(cos.to(dtype), sin.to(dtype), layout)


def rotate(x: Float[Tensor, "b h t d"], by: Rotation) -> Float[Tensor, "b h t d"]:
    """x with its first 2p coordinates turned; computed in the precision of the angles."""
    by, pairs = by.of_heads(x.shape[1]), by.cos.shape[-1]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if _as_complex(turned, by):
        out = _rotate_complex(turned, by)
        return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out
    if by.layout == "half-split":
        first, second = turned[..., :pairs], turned[..., pairs:]
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
    new_first = first * by.cos - second * by.sin
    new_second = second * by.cos + first * by.sin
    if by.layout == "half-split":
        out = torch.cat((new_first, new_second), dim=-1)
    else:
        out = torch.stack((new_first, new_second), dim=-1).flatten(-2)
    return torch.cat((out.to(x.dtype), rest), dim=-1) if rest.shape[-1] else out.to(x.dtype)


def _as_complex(x: Tensor, by: Rotation) -> bool:
    """Whether side by side pairs can be taken as complex numbers where they lie.

    On the CPU one product then replaces six passes. Compilers fuse those, and have no complex
    numbers.
    """
    return (
        by.layout == "interleaved"
        and x.device.type == "cpu"
        and x.dtype == by.cos.dtype
        and x.stride(-1) == 1
        and x.storage_offset() % 2 == 0
        and all(stride % 2 == 0 for stride in x.stride()[:-1])
        and not torch.compiler.is_compiling()
    )


def _rotate_complex(x: Tensor, by: Rotation) -> Tensor:
    """(first + i second) · (cos + i sin)"""
    product = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.complex(by.cos, by.sin)
    return torch.view_as_real(product).flatten(-2)


def check_rotation(by: Rotation, batch: int, keys: int, width: int) -> None:
    if by.cos.shape != by.sin.shape or by.cos.dim() != 4:
        raise ValueError(
            f"rotary has cos {list(by.cos.shape)} and sin {list(by.sin.shape)}; "
            "both must be [1 or batch, 1 or heads, keys, pairs]"
        )
    if by.cos.shape[0] not in (1, batch) or by.cos.shape[2] != keys:
        raise ValueError(
            f"rotary covers {list(by.cos.shape[:3])}; "
            f"it must be [1 or {batch}, 1 or heads, {keys} keys]"
        )
    if 2 * by.cos.shape[3] > width:
        raise ValueError(f"rotary turns {2 * by.cos.shape[3]} coordinates of a width of {width}")
