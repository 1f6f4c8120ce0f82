"""The feed-forward part of a layer: each token by itself, through a wider inner layer.

Axes: b batch, t time, c width.
"""

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

FeedForwardKind = Literal["gelu", "gelu-tanh", "swiglu", "geglu", "squared-relu"]


class FeedForward(nn.Module):
    """down(activation(up(x)))"""

    def __init__(self, width: int, expansion: float, *, bias: bool) -> None:
        super().__init__()
        inner = max(round(expansion * width), 1)
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)


class Gelu(FeedForward):
    """down(gelu(up(x)))"""

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        return self.down(F.gelu(self.up(x)))


class TanhGelu(FeedForward):
    """down(gelu(up(x))) by the approximation with tanh, as in GPT-2"""

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class SquaredRelu(FeedForward):
    """down(relu(up(x))²)"""

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        return self.down(F.relu(self.up(x)).square())


class GatedFeedForward(nn.Module):
    """2/3 of the inner width, so that it has the parameters of one without a gate."""

    def __init__(self, width: int, expansion: float, *, bias: bool) -> None:
        super().__init__()
        inner = max(round(expansion * width * 2 / 3), 1)
        self.gate = nn.Linear(width, inner, bias=bias)
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)


class SwiGlu(GatedFeedForward):
    """down(silu(gate(x)) * up(x))"""

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class GeGlu(GatedFeedForward):
    """down(gelu(gate(x)) * up(x)), gelu by the approximation with tanh, as in Gemma"""

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        return self.down(F.gelu(self.gate(x), approximate="tanh") * self.up(x))


KINDS: dict[FeedForwardKind, type[FeedForward | GatedFeedForward]] = {
    "gelu": Gelu,
    "gelu-tanh": TanhGelu,
    "swiglu": SwiGlu,
    "geglu": GeGlu,
    "squared-relu": SquaredRelu,
}


def make_feedforward(
    kind: FeedForwardKind, width: int, expansion: float, *, bias: bool
) -> nn.Module:
    return KINDS[kind](width, expansion, bias=bias)
