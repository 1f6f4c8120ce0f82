"""The input of the two engines of banded attention, as plain tensors and numbers."""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Band:
    """Query n stands at position n + keys - queries.

    It attends to its own position, `left` before and `right` after it.
    """

    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]
    slopes: Float[Tensor, " h"] | None  # of a bias that falls with distance
    padding: Bool[Tensor, "b k"] | None
    left: int
    right: int
    scale: float
