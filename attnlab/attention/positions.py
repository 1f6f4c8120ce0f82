"""Position schemes: how a model knows the position of a token.

Axes: b batch (1 when all rows share their positions), t time, c model width, h heads, d head width,
a axes of a position (M-RoPE).

A scheme can act in four places, and the model asks each of them: it can add to the token vectors,
rotate queries and keys, bias the scores, or scale queries. It may do so differently in each layer:
then it consists of several schemes, which repeat over the layers.

What is added, turned or scaled depends on the position that a token is given. A bias depends on the
distance of query and key, counted in tokens: padding before a text and documents before one's own
do not change it.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.attention.rotary_scaling import Frequencies, NoScaling, ScalingSettings
from attnlab.config import choice, refusal, setting, settings
from attnlab.kernels.request import Bias, LinearBias
from attnlab.kernels.rotary import Layout, Rotation, frequencies, rotation_at

BASE = "frequencies fall from 1 to nearly 1 / base"
POWERS = "frequencies are its powers"
TEMPERATURE_STEP = 8192  # positions, as Llama 4 has it


@dataclass(frozen=True)
class Shape:
    """What a scheme needs to know of the model around it."""

    width: int
    heads: int
    head_width: int
    context: int


class Positions(nn.Module):
    """No position information; the others change one of the four answers."""

    longest: int | None = None  # how many positions there are, if that is limited
    axes: int = 0  # of a position, where sections of the pairs turn by one each

    def of_layers(self) -> Iterable["Positions"]:
        """The schemes of the layers, each once: a model asks each once a call."""
        return (self,)

    def number(self, layer: int) -> int:
        """Which of those is the layer's."""
        return 0

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

    def rotation_by_axes(
        self, positions: Int[Tensor, "#b a t"], dtype: torch.dtype
    ) -> Rotation | None:
        """The rotation where positions have axes; only for schemes with `axes`, or none at all."""
        return None

    def bias(self, positions: Int[Tensor, "#b t"], keys: int) -> Bias | Tensor | None:
        """For queries at these positions, the last of so many keys."""
        return None

    def temperature(
        self, positions: Int[Tensor, "#b t"], dtype: torch.dtype
    ) -> Float[Tensor, "#b 1 t 1"] | None:
        """What queries are multiplied by."""
        return None


class LayeredPositions(Positions):
    """Several schemes, in a pattern that repeats over the layers."""

    def __init__(self, schemes: Sequence[Positions], pattern: Sequence[int]) -> None:
        super().__init__()
        self.schemes, self.pattern = nn.ModuleList(schemes), tuple(pattern)

    def of_layers(self) -> Iterable[Positions]:
        return self.schemes  # type: ignore[return-value]

    def number(self, layer: int) -> int:
        return self.pattern[layer % len(self.pattern)]

    def rotation(self, positions: Int[Tensor, "#b t"], dtype: torch.dtype) -> Rotation | None:
        raise AssertionError("each layer has a rotation of its own: ask of_layers()")


Kind = TypeVar("Kind", bound=Hashable)


def layered(pattern: Sequence[Kind], build: Callable[[Kind], Positions]) -> Positions:
    """A scheme for each kind of layer; a single one stands for itself."""
    kinds = list(dict.fromkeys(pattern))
    schemes = [build(kind) for kind in kinds]
    if len(schemes) == 1:
        return schemes[0]
    return LayeredPositions(schemes, [kinds.index(kind) for kind in pattern])


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

    base: float | tuple[float | None, ...] = setting(
        10_000.0,
        above=0,
        because=POWERS,
        none="a layer without rotation",
        about=f"{BASE}; a list repeats over the layers",
    )
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
    sections: tuple[int, ...] = setting(
        (),
        low=1,
        because="it counts pairs",
        about="M-RoPE: pairs that turn by each axis of a position, such as 16,24,24 for frame, "
        "row and column (Qwen2-VL); text has the same on all axes",
    )
    alternate: bool = setting(
        False, about="pairs of the sections take turns (Qwen3-VL), and do not lie in blocks"
    )
    scaling: ScalingSettings = choice(
        "scaling", "none", about="how rates change so that texts may be longer"
    )
    scaled: tuple[bool, ...] = setting(
        (True,), about="whether a layer's rotation is scaled; a list repeats over the layers"
    )
    temperature: float | None = setting(
        None,
        above=0,
        because="queries grow by it",
        none="no temperature",
        about="in layers without rotation, queries times 1 + it · ln(1 + ⌊(t + 1) / step⌋)",
    )
    temperature_step: int = setting(
        TEMPERATURE_STEP,
        low=1,
        because="it counts positions",
        about="positions between two temperatures",
    )

    def check(self) -> None:
        rotates = any(base is not None for base in self.bases)
        if not rotates:
            raise refusal(self, "base", "no layer would rotate; use positions=none")
        if not any(self.scaled):
            raise refusal(self, "scaled", "no layer would be scaled; use positions.scaling=none")
        if not all(self.scaled) and isinstance(self.scaling, NoScaling):
            raise refusal(
                self, "scaled", "there is no scaling; give positions.scaling, such as yarn"
            )
        if len(self.sections) == 1:
            raise refusal(
                self, "sections", "one axis is usual rotary; give two or more, or leave it out"
            )
        if self.alternate and not self.sections:
            raise refusal(self, "alternate", "there are no positions.sections to take turns")
        if self.temperature is None and self.temperature_step != TEMPERATURE_STEP:
            raise refusal(self, "temperature_step", "there is no positions.temperature to step")
        if self.temperature is not None and None not in self.bases:
            raise refusal(
                self,
                "temperature",
                "it is for layers without rotation, and each has one; give positions.base a none, "
                "as in 10000,10000,10000,none",
            )

    @property
    def bases(self) -> tuple[float | None, ...]:
        """Of the layers, in a pattern that repeats."""
        return (self.base,) if isinstance(self.base, float | int) else tuple(self.base)

    def build(self, shape: Shape) -> Positions:
        return self.in_layers(lambda base, scaled: RotaryPositions(self, shape, base, scaled))

    def in_layers(self, build: Callable[[float, bool], Positions]) -> Positions:
        """Made by `build` where a layer has a base."""
        count = math.lcm(len(self.bases), len(self.scaled))
        bases = [self.bases[n % len(self.bases)] for n in range(count)]
        scaled = [self.scaled[n % len(self.scaled)] for n in range(count)]
        pattern = [
            (base, base is not None and one) for base, one in zip(bases, scaled, strict=True)
        ]

        def of_layer(kind: tuple[float | None, bool]) -> Positions:
            base, is_scaled = kind
            if base is not None:
                return build(base, is_scaled)
            if self.temperature is None:
                return Positions()
            return TemperedPositions(self.temperature, self.temperature_step)

        return layered(pattern, of_layer)


class RotaryPositions(Positions):
    def __init__(self, settings: Rotary, shape: Shape, base: float, scaled: bool = True) -> None:
        super().__init__()
        self.settings, self.base, self.scaled = settings, base, scaled
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
        self.frequencies(torch.device("cpu"))  # refuses a scaling that does not fit
        self.axes = len(settings.sections)
        self.axis = axis_of_pairs(settings.sections, self.pairs, alternate=settings.alternate)

    def frequencies(self, device: torch.device) -> Frequencies:
        rates = frequencies(self.pairs, self.base, device)
        if not self.scaled:
            return Frequencies(rates)
        return self.settings.scaling.apply(rates, self.base, self.context)

    def rotation(self, positions: Int[Tensor, "#b t"], dtype: torch.dtype) -> Rotation:
        return self._turned(positions, dtype)

    def rotation_by_axes(self, positions: Int[Tensor, "#b a t"], dtype: torch.dtype) -> Rotation:
        """An axis of length 1 stands for all."""
        every = positions.expand(-1, self.axes, -1)
        return self._turned(every[:, self.axis].transpose(1, 2).contiguous(), dtype)

    def _turned(self, positions: Int[Tensor, "#b t *p"], dtype: torch.dtype) -> Rotation:
        rates, length = self.frequencies(positions.device)
        layout = self.settings.layout
        return rotation_at(positions, rates, length=length, layout=layout, dtype=wide(dtype))

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


def axis_of_pairs(sections: Sequence[int], pairs: int, *, alternate: bool) -> list[int]:
    """By which axis of a position each pair turns.

    Where sections take turns, pair n has axis n mod a until that section is full, and then axis 0.
    """
    if not sections:
        return []
    count = len(sections)
    if sum(sections) != pairs:
        part, rest = divmod(pairs, count)
        near = [part + (axis >= count - rest) for axis in range(count)]
        use = f"use {','.join(map(str, near))}" if part else "use wider heads"
        raise ValueError(
            f"positions.sections {','.join(map(str, sections))} add up to {sum(sections)}, and "
            f"{pairs} pairs of coordinates turn; {use}"
        )
    if not alternate:
        return [axis for axis, size in enumerate(sections) for _ in range(size)]
    for axis, size in enumerate(sections):
        if axis and axis + count * (size - 1) >= pairs:
            raise ValueError(
                f"positions.sections {','.join(map(str, sections))}: {size} pairs of axis {axis} "
                f"that take turns do not fit into {pairs}; make the first section the largest, or "
                "write positions.alternate=false"
            )
    turns = [(pair % count, pair // count) for pair in range(pairs)]
    return [axis if turn < sections[axis] else 0 for axis, turn in turns]


def wide(dtype: torch.dtype) -> torch.dtype:
    """A half precision would round the angles; float32 is enough for it."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class TemperedPositions(Positions):
    """Queries t times 1 + growth · ln(1 + ⌊(t + 1) / step⌋), and no rotation (Llama 4).

    A softmax over more keys is flatter; larger queries make up for it.
    """

    def __init__(self, growth: float, step: int) -> None:
        super().__init__()
        self.growth, self.step = growth, step

    def temperature(
        self, positions: Int[Tensor, "#b t"], dtype: torch.dtype
    ) -> Float[Tensor, "#b 1 t 1"]:
        steps = (positions + 1) // self.step
        return (1 + self.growth * steps.double().log1p()).to(wide(dtype))[:, None, :, None]


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

    def bias(self, positions: Int[Tensor, "#b t"], keys: int) -> LinearBias:
        return LinearBias(self.slopes)


def alibi_slopes(heads: int) -> Float[Tensor, " {heads}"]:
    """2^(-8/n), 2^(-16/n), … for n heads, n a power of two.

    Otherwise the slopes of the power below come first, then every second one of the power above.
    """
    below = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * (n + 1) / below) for n in range(below)]
    between = [2.0 ** (-8 * (n + 1) / (2 * below)) for n in range(0, 2 * below, 2)]
    return torch.tensor((slopes + between)[:heads])
