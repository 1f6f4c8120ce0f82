"""Attention problems for the tests: tensors and options, and what each path makes of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.kernels import LinearBias, Request, attention
from attnlab.kernels.dispatch import PATHS

FAST_PATHS = ["sdpa", "native", "tiled"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    queries: int = 33
    keys: int | None = None  # as many as queries
    batch: int = 2
    kv_heads: int = 2
    ratio: int = 2
    width: int = 16
    value_width: int | None = None
    window: int | None = None
    causal: bool = True
    alibi: bool = False
    padding: bool = False
    seed: int = 0

    def tensors(self) -> tuple[list[Tensor], Tensor, dict]:
        """float64 q, k, v; the gradient of the output; and the options."""
        chance = torch.Generator().manual_seed(self.seed)
        keys = self.queries if self.keys is None else self.keys
        heads, values = self.kv_heads * self.ratio, self.value_width or self.width
        shapes = [
            (self.batch, heads, self.queries, self.width),
            (self.batch, self.kv_heads, keys, self.width),
            (self.batch, self.kv_heads, keys, values),
            (self.batch, heads, self.queries, values),
        ]
        q, k, v, grad = (
            torch.randn(shape, generator=chance, dtype=torch.float64) for shape in shapes
        )
        options: dict = {"causal": self.causal, "window": self.window}
        if self.alibi:
            options["bias"] = LinearBias(torch.rand(heads, generator=chance, dtype=torch.float64))
        if self.padding:
            options["key_padding"] = torch.rand(self.batch, keys, generator=chance) < 0.3
        return [q, k, v], grad, options


def solve(problem: Problem, path: str, dtype=torch.float64, device="cpu") -> list[Tensor]:
    """The output and the gradients of q, k and v, by a path in a dtype."""
    inputs, grad, options = problem.tensors()
    leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
    if "bias" in options:
        options["bias"] = LinearBias(options["bias"].slopes.to(device, dtype))
    if "key_padding" in options:
        options["key_padding"] = options["key_padding"].to(device)
    out = attention(*leaves, path=path, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(device, dtype))]


def refusal(problem: Problem, path: str) -> str | None:
    (q, k, v), _, options = problem.tensors()
    return PATHS[path].refusal(Request(q=q, k=k, v=v, **options))


def errors(found: list[Tensor], true: list[Tensor]) -> list[float]:
    """Largest difference of each tensor, NaN if there is one."""
    return [
        float((mine.cpu().double() - exact).abs().max())
        for mine, exact in zip(found, true, strict=True)
    ]


def assert_as_good_as_plain(
    found: list[Tensor], plain: list[Tensor], true: list[Tensor], dtype: torch.dtype
) -> None:
    """Errors at most twice those of plain PyTorch in the same dtype.

    One rounding of the largest number of the problem is allowed on top: where plain PyTorch happens
    to be exact (a query that sees one key), twice its error would be nothing at all.
    """
    rounding = torch.finfo(dtype).eps * max(float(exact.abs().max()) for exact in true)
    for name, mine, theirs, exact in zip(
        ("output", "grad q", "grad k", "grad v"), found, plain, true, strict=True
    ):
        assert mine.dtype == dtype
        (error,), (limit,) = errors([mine], [exact]), errors([theirs], [exact])
        limit = 2 * limit + rounding
        assert error <= limit, f"{name} is off by {error:.2e}; plain PyTorch allows {limit:.2e}"
