"""What tests of the kernels share: the problems of the package, and how exact an answer must be."""

import torch
from torch import Tensor

from attnlab.kernels.problems import (
    FAST_PATHS,
    SHAPES,
    Problem,
    errors,
    limit_in_float64,
    limits_of_plain,
    refusal,
    solve,
)

__all__ = [
    "FAST_PATHS",
    "SHAPES",
    "Problem",
    "assert_as_good_as_plain",
    "errors",
    "limit_in_float64",
    "refusal",
    "solve",
]


def assert_as_good_as_plain(
    found: list[Tensor], plain: list[Tensor], true: list[Tensor], dtype: torch.dtype
) -> None:
    """Errors at most twice those of plain PyTorch in the same dtype."""
    names = ["output", "grad q", "grad k", "grad v", "grad of bias or sinks", "grad of sinks"]
    limits = limits_of_plain(plain, true, dtype)
    rows = zip(found, errors(found, true), limits, strict=True)
    for name, (mine, error, limit) in zip(names, rows, strict=False):
        assert mine.dtype == dtype
        assert error <= limit, f"{name} is off by {error:.2e}; plain PyTorch allows {limit:.2e}"
