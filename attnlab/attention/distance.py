"""Learned functions of the distance, added to scores: T5's buckets, KERPLE and FIRE.

Axes: b batch (1 when all rows share their positions), t time: queries, k keys, h heads.

One function for each head, the same in all layers. T5 and KERPLE are tables by distance, which the
fast paths read, with gradients. FIRE depends on the query's position too, so its bias is a tensor
of all queries and keys: O(t · k) memory, on the paths that take one. It is made once for all layers
and rows; its operations are not counted.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.attention.positions import Positions, Shape, alibi_slopes, wide
from attnlab.config import refusal, setting, settings
from attnlab.kernels.request import DistanceBias


@settings
class T5:
    """A learned number for each bucket of distances and head (Raffel et al. 2020, decoder).

    Half of the buckets hold one distance each; the others grow as powers, up to max_distance.
    Later keys, where a prefix lets a query attend to them, are in the bucket of distance 0.
    """

    buckets: int = setting(
        32, low=2, because="some hold one distance", about="buckets of distances, each a number"
    )
    max_distance: int = setting(
        128, low=2, high=1 << 20, about="from this distance on all are in the last bucket"
    )

    def check(self) -> None:
        if self.max_distance <= self.buckets // 2:
            raise refusal(
                self,
                "max_distance",
                f"the first {self.buckets // 2} of positions.buckets hold one distance each; use "
                f"{self.buckets // 2 + 1} or more",
            )

    def build(self, shape: Shape) -> Positions:
        return T5Positions(self, shape.heads)


class T5Positions(Positions):
    bucket: Tensor

    def __init__(self, settings: T5, heads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(settings.buckets, heads)
        found = [
            bucket(distance, settings.buckets, settings.max_distance)
            for distance in range(settings.max_distance + 1)
        ]
        self.register_buffer("bucket", torch.tensor(found), persistent=False)

    def bias(self, positions: Int[Tensor, "#b t"], keys: int) -> DistanceBias:
        return DistanceBias(self.table(self.bucket).T, zero=0)


def bucket(distance: int, buckets: int, max_distance: int) -> int:
    """The bucket of a distance from a query back to a key."""
    exact = buckets // 2
    if distance < exact:
        return distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    # where a distance begins a bucket, rounding on this machine or that must not put it before
    return min(exact + int(share * (buckets - exact) + 1e-9), buckets - 1)


@settings
class Kerple:
    """-r1 · ln(1 + r2 · d), or -r1 · d^r2, of the distance d (Chi et al. 2022).

    r1 and r2 are learned, above 0, for each head; r2 of a power is below 2. Power starts as ALiBi.
    """

    function: Literal["log", "power"] = setting("log", about="how scores fall with the distance")

    def build(self, shape: Shape) -> Positions:
        return KerplePositions(self, shape.heads)


class KerplePositions(Positions):
    def __init__(self, settings: Kerple, heads: int) -> None:
        super().__init__()
        self.function = settings.function
        slopes = alibi_slopes(heads) if settings.function == "power" else torch.ones(heads)
        self.log_scale = nn.Parameter(slopes.log())
        self.shape = nn.Parameter(torch.zeros(heads))

    def bias(self, positions: Int[Tensor, "#b t"], keys: int) -> DistanceBias:
        scale, shape = (_precise(one)[:, None] for one in (self.log_scale, self.shape))
        distances = torch.arange(1 - keys, keys, device=positions.device).abs().to(scale.dtype)
        if self.function == "log":
            fallen = (shape.exp() * distances).log1p()
        else:
            fallen = distances ** (2 * shape.sigmoid())
        return DistanceBias(-scale.exp() * fallen, zero=keys - 1)


@settings
class Fire:
    """f(ψ(d) / ψ(max(i, L))), ψ(x) = ln(1 + c·x), of the distance d and the query's position i.

    f has one hidden layer with ReLU and an output for each head; c and L are learned (Li et al.
    2024). A constant that f could add for all keys would change no softmax; it has none.
    """

    hidden: int = setting(32, low=1, high=1 << 12, about="units of the hidden layer of f")
    threshold: float | None = setting(
        None,
        above=0,
        because="positions up to it are not told apart",
        none="a quarter of the context",
        about="L before training",
    )

    def build(self, shape: Shape) -> Positions:
        return FirePositions(self, shape)


class FirePositions(Positions):
    def __init__(self, settings: Fire, shape: Shape) -> None:
        super().__init__()
        self.log_c = nn.Parameter(torch.full((), math.log(0.1)))
        self.log_threshold = nn.Parameter(
            torch.full((), math.log(settings.threshold or shape.context / 4))
        )
        self.inner = nn.Parameter(torch.randn(settings.hidden))
        self.shift = nn.Parameter(torch.zeros(settings.hidden))
        self.outer = nn.Parameter(
            torch.randn(shape.heads, settings.hidden) / math.sqrt(settings.hidden)
        )

    def bias(self, positions: Int[Tensor, "#b t"], keys: int) -> Float[Tensor, "#b h t k"]:
        c, threshold = _precise(self.log_c).exp(), _precise(self.log_threshold).exp()
        time = positions.shape[1]
        at = torch.arange(keys - time, keys, device=positions.device)
        to = torch.arange(keys, device=positions.device)
        distances = (at[:, None] - to).abs()
        longest = positions.to(c.dtype).maximum(threshold)[:, :, None]
        share = (c * distances).log1p() / (c * longest).log1p()  # [b, t, k]
        units = (share[..., None] * self.inner + self.shift).relu()
        return (units @ self.outer.T.to(units.dtype)).movedim(-1, 1).to(self.outer.dtype)


def _precise(parameter: Tensor) -> Tensor:
    """Distances of some hundreds are no numbers of a half precision."""
    return parameter.to(wide(parameter.dtype))
