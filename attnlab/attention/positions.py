"""Position schemes: how a model knows the position of a token.

Axes: b batch (1 when all rows share their positions), t time, c model width, h heads, d head width.

A scheme can act in three places, and the model asks each of them: it can add to the token vectors,
rotate queries and keys, or bias the scores.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.config import setting, settings
from attnlab.kernels.request import LinearBias
from attnlab.kernels.rotary import Layout, Rotation, rotation

BASE = "frequencies fall from 1 to nearly 1 / base"
POWERS = "frequencies are its powers"


@dataclass(frozen=True)
class Shape:
    """What a scheme needs to know of the model around it."""

    width: int
    heads: int
    head_width: int
    context: int


class Positions(nn.Module):
    """No position information; the others change one of the three answers."""

    longest: int | None = None  # how many positions there are, if that is limited

    def add_to(
        self, x: Float[Tensor, "b t c"], positions: Int[Tensor, "#b t"]
    ) -> Float[Tensor, "b t c"]:
        return x

    def rotation(self, positions: Int[Tensor, "#b t"], dtype: torch.dtype) -> Rotation | None:
        return None

    def rotation_of_span(
        self, start: int, stop: int, device: torch.device, dtype: torch.dtype
    ) -> Rotation | None:
        """The rotation of the positions start … stop - 1."""
        return self.rotation(torch.arange(start, stop, device=device)[None], dtype)

    def bias(self) -> LinearBias | None:
        return None


@runtime_checkable
class PositionsSettings(Protocol):
    """The settings of a position scheme: what `positions` in the registry names."""

    def build(self, shape: Shape) -> Positions: ...


@settings
class NoPositions:
    def build(self, shape: Shape) -> Positions:
        return Positions()


@settings
class Learned:
    """x[t] + table[t], the table trained; no position past the model's context."""

    def build(self, shape: Shape) -> Positions:
        return LearnedPositions(shape)


class LearnedPositions(Positions):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.longest = shape.context
        self.table = nn.Embedding(shape.context, shape.width)

    def add_to(
        self, x: Float[Tensor, "b t c"], positions: Int[Tensor, "#b t"]
    ) -> Float[Tensor, "b t c"]:
        return x + self.table(positions)


@settings
class Sinusoidal:
    """x[t] + (sin(t·f_0), cos(t·f_0), sin(t·f_1), …) with f_n = base^(-2n / width)."""

    base: float = setting(10_000.0, above=0, because=POWERS, about=BASE)

    def build(self, shape: Shape) -> Positions:
        return SinusoidalPositions(self.base)


class SinusoidalPositions(Positions):
    def __init__(self, base: float) -> None:
        super().__init__()
        self.base = base

    def add_to(
        self, x: Float[Tensor, "b t c"], positions: Int[Tensor, "#b t"]
    ) -> Float[Tensor, "b t c"]:
        return x + sinusoids(positions, x.shape[-1], self.base).to(x.dtype)


def sinusoids(
    positions: Int[Tensor, "#b t"], width: int, base: float = 10_000.0
) -> Float[Tensor, "#b t {width}"]:
    """Sine and cosine side by side for each frequency; an odd width ends with a sine."""
    powers = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
    angles = positions[..., None].double() * base**-powers
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]


@settings
class Rotary:
    """Turns pairs of coordinates of q and k by angles proportional to the position."""

    base: float = setting(10_000.0, above=0, because=POWERS, about=BASE)
    fraction: float = setting(
        1.0,
        above=0,
        high=1,
        because="it is a part of the head width",
        about="fraction of each head's coordinates that rotates; the rest keeps no position",
    )
    layout: Layout = setting(
        "half-split",
        about="which coordinates are a pair: n and n + half of them, or neighbours (interleaved)",
    )

    def build(self, shape: Shape) -> Positions:
        return RotaryPositions(self, shape)


class RotaryPositions(Positions):
    def __init__(self, settings: Rotary, shape: Shape) -> None:
        super().__init__()
        self.settings = settings
        self.context = shape.context
        self.heads = shape.heads
        # no buffer: converting a model to a half precision would round the angles
        self._tables: dict[tuple[torch.device, torch.dtype], Rotation] = {}
        self.pairs = int(shape.head_width * settings.fraction) // 2
        if self.pairs < 1:
            raise ValueError(
                f"positions.fraction {settings.fraction} of a head width of {shape.head_width} is "
                "less than one pair of coordinates; use wider heads or a larger fraction"
            )

    def rotation(self, positions: Int[Tensor, "#b t"], dtype: torch.dtype) -> Rotation:
        settings = self.settings
        return rotation(positions, self.pairs, settings.base, settings.layout, wide(dtype))

    def rotation_of_span(
        self, start: int, stop: int, device: torch.device, dtype: torch.dtype
    ) -> Rotation:
        """From a table: a compiler would compute sines and cosines anew in every layer."""
        key = device, wide(dtype)
        table = self._tables.get(key)
        if table is None or table.cos.shape[2] < stop:
            longest = max(self.context, stop if table is None else 2 * stop)
            with torch.inference_mode(False):  # it will be used in training too
                table = self.rotation(torch.arange(longest, device=device)[None], dtype)
            self._tables[key] = table
        return Rotation(table.cos[:, :, start:stop], table.sin[:, :, start:stop], table.layout)


def wide(dtype: torch.dtype) -> torch.dtype:
    """A half precision would round the angles; float32 is enough for it."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@settings
class Alibi:
    """Scores minus slope · distance, the slopes a geometric sequence over the heads."""

    def build(self, shape: Shape) -> Positions:
        return AlibiPositions(shape.heads)


class AlibiPositions(Positions):
    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def bias(self) -> LinearBias:
        return LinearBias(self.slopes)


def alibi_slopes(heads: int) -> Float[Tensor, " {heads}"]:
    """2^(-8/n), 2^(-16/n), … for n heads, n a power of two.

    Otherwise the slopes of the power below come first, then every second one of the power above.
    """
    below = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * (n + 1) / below) for n in range(below)]
    between = [2.0 ** (-8 * (n + 1) / (2 * below)) for n in range(0, 2 * below, 2)]
    return torch.tensor((slopes + between)[:heads])
