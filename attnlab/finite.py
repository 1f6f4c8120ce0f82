"""Whether a tensor holds NaN or Inf, looked at a piece at a time: the answer takes no memory."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who only lists runs need not wait for torch
    from torch import Tensor

PIECE = 1 << 20  # numbers


def is_finite(tensor: "Tensor") -> bool:
    pieces = tensor.detach().reshape(-1).split(PIECE)
    if tensor.is_floating_point() and tensor.itemsize == 1:  # PyTorch has no isfinite of float8
        return all(bool(piece.float().isfinite().all()) for piece in pieces)
    return all(bool(piece.isfinite().all()) for piece in pieces)
