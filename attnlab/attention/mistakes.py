"""Two known mistakes in rotary positions, to be trained beside the right ones as controls.

Axes: b batch, t time, h heads, p pairs.

Both train without complaint and answer some questions, so nobody notices. By name only: the summary
in the registry, reports and tables call them mistakes.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from attnlab.attention.positions import Positions, Rotary, RotaryPositions, Shape
from attnlab.config import refusal, settings
from attnlab.kernels.rotary import Rotation


@settings
class GrowingRotary(Rotary):
    """The sign of the exponent lost: pair n turns by position · base^(+n / pairs).

    From one token to the next all pairs but the first turn by more than a radian, so nearness can
    hardly be told.
    """

    def build(self, shape: Shape) -> Positions:
        return self.in_layers(lambda base, scaled: RotaryPositions(self, shape, 1 / base, scaled))


@settings
class HeadRotary(Rotary):
    """The axes mixed up: the angle counts heads, not tokens.

    Queries and keys of a head turn by the same angle everywhere, which no score notices: a model
    without positions, at the cost of one with them.
    """

    def check(self) -> None:
        super().check()
        if self.sections:
            raise refusal(self, "sections", "no angle counts positions here; leave it out")

    def build(self, shape: Shape) -> Positions:
        return self.in_layers(lambda base, scaled: HeadRotaryPositions(self, shape, base, scaled))


class HeadRotaryPositions(RotaryPositions):
    def rotation(self, positions: Int[Tensor, "#b t"], dtype: torch.dtype) -> Rotation:
        heads = torch.arange(self.heads, device=positions.device)[None]
        turned = super().rotation(heads, dtype)
        count = positions.shape[1]
        return Rotation(
            turned.cos.transpose(1, 2).expand(-1, -1, count, -1),
            turned.sin.transpose(1, 2).expand(-1, -1, count, -1),
            turned.layout,
        )
