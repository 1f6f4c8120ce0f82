"""Rotary positions as they are measured: which coordinates turn in pairs, and how fast.

Axes: t time, d head width, n pairs. Queries of one token that is repeated differ by their rotation
alone, so that layout, rates and direction can be read off them, whatever code turned them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from attnlab.doctor.rounding import FLOAT32

Layout = Literal["half-split", "interleaved"]
EXACT = 1e-9  # of the size of what turns: float64, some products on the way


@dataclass(frozen=True)
class Rotation:
    layout: Layout
    rotated: int  # coordinates of each head that turn
    rates: tuple[float, ...]  # radians a position, signed, [n]
    start: int = 0  # the first of them

    @property
    def direction(self) -> int:
        return -1 if sum(self.rates) < 0 else 1

    @property
    def base(self) -> float | None:
        """Of rates base^(-i/n), or None if they are others."""
        sizes = [abs(one) for one in self.rates]
        n = len(sizes)
        if (
            n < 2
            or abs(sizes[0] - 1) > 1e-7
            or not sizes[1]
            or {r > 0 for r in self.rates} == {True, False}
        ):
            return None
        # of rates in float32 the last one tells most; their base is told to 5 digits
        for at, tolerance, digits in ((1, 1e-9, 7), (n - 1, FLOAT32, 5)):
            base = sizes[at] ** (-n / at) if sizes[at] else math.inf
            pairs = zip(sizes, rates_of(base, n), strict=True)
            if all(abs(x - y) <= tolerance * y + 1e-12 for x, y in pairs):
                near = float(f"{base:.{digits}g}")
                return near if abs(near - base) <= tolerance * base else base
        return None


def rates_of(base: float, pairs: int) -> tuple[float, ...]:
    return tuple(base ** (-i / pairs) for i in range(pairs))


def measure(turned: Tensor) -> Rotation | None:
    """Of queries or keys [..., t, d] of one token repeated; None if they do not turn in pairs."""
    x = turned.double().reshape(-1, *turned.shape[-2:])
    d, size = x.shape[-1], float(turned.abs().max())
    if x.shape[1] < 3 or size == 0 or not math.isfinite(size):
        return None
    moving = (x - x[:, :1]).abs().amax((0, 1)) > EXACT * size
    if not bool(moving.any()):
        return None
    first, last = int(moving.nonzero().min()), int(moving.nonzero().max()) + 1
    parts = [(0, rotated) for rotated in range(last + last % 2, d + 1, 2)]
    if first and (last - first) % 2 == 0:  # what does not move stands before what does
        parts.insert(0, (first, last - first))
    for start, rotated in parts:
        for layout in ("half-split", "interleaved"):
            rates = _rates(pairs(x[..., start : start + rotated], layout), size)
            if rates is not None:
                return Rotation(layout, rotated, rates, start)
    return None


def pairs(part: Tensor, layout: str) -> Tensor:
    """The coordinates that turn as complex numbers, [..., n]."""
    if layout == "interleaved":
        return torch.complex(part[..., 0::2], part[..., 1::2])
    return torch.complex(*part.chunk(2, -1))


def unpaired(z: Tensor, layout: str) -> Tensor:
    if layout == "interleaved":
        return torch.stack([z.real, z.imag], -1).flatten(-2)
    return torch.cat([z.real, z.imag], -1)


def _rates(z: Tensor, size: float) -> tuple[float, ...] | None:
    """Radians a position by pair, if every pair goes round a circle at one speed."""
    now, after = z[:, :-1], z[:, 1:]
    ratio = (now.conj() * after).sum((0, 1)) / now.abs().square().sum((0, 1)).clamp(min=1e-300)
    if float((after - ratio * now).abs().max()) > EXACT * size:
        return None
    if float((ratio.abs() - 1).abs().max()) > EXACT:
        return None
    return tuple(float(one) for one in ratio.angle())


def turn(
    x: Tensor, rotation: Rotation, positions: Tensor, rates: Sequence[float] | None = None
) -> Tensor:
    """x [..., t, d] turned to its positions [t], by other rates if given."""
    speed = torch.tensor(rotation.rates if rates is None else list(rates), dtype=torch.float64)
    angles = positions.double()[:, None] * speed
    wide = x.double()
    end = rotation.start + rotation.rotated
    z = pairs(wide[..., rotation.start : end], rotation.layout)
    z = z * torch.polar(torch.ones_like(angles), angles)
    turned = unpaired(z, rotation.layout)
    return torch.cat([wide[..., : rotation.start], turned, wide[..., end:]], -1).to(x.dtype)


def changed(own: Rotation, **fields: Any) -> Rotation | None:
    """With another layout, direction, base, other rates, or another part of each head; None if it
    cannot be said."""
    sign = -1 if fields.get("reversed") else 1
    rotated, rates, base = fields.get("rotated", own.rotated), fields.get("rates"), own.base
    if rates is None and {"base", "rotated"} & set(fields):
        base = fields.get("base", base)
        if base is None:
            return None
        rates = tuple(own.direction * one for one in rates_of(base, rotated // 2))
    found = replace(
        own,
        layout=fields.get("layout", own.layout),
        rotated=rotated,
        rates=tuple(sign * one for one in (own.rates if rates is None else rates)),
        start=fields.get("start", own.start),
    )
    return found if len(found.rates) * 2 == rotated else None
