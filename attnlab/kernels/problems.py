"""Attention problems of awkward shapes: what each path makes of them, and how far it may be off.

The tests and `attnlab check machines` use the same ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.kernels.dispatch import PATHS, Options, attention
from attnlab.kernels.request import LinearBias, Request

FAST_PATHS = ["sdpa", "native", "tiled"]
TILE = 64  # of queries, in both engines


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

    def tensors(self) -> tuple[list[Tensor], Tensor, Options]:
        """float64 q, k, v; the gradient of the output; and the options."""
        rng = torch.Generator().manual_seed(self.seed)
        keys = self.queries if self.keys is None else self.keys
        heads, values = self.kv_heads * self.ratio, self.value_width or self.width
        shapes = [
            (self.batch, heads, self.queries, self.width),
            (self.batch, self.kv_heads, keys, self.width),
            (self.batch, self.kv_heads, keys, values),
            (self.batch, heads, self.queries, values),
        ]
        q, k, v, grad = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes)
        options: Options = {"causal": self.causal, "window": self.window}
        if self.alibi:
            options["bias"] = LinearBias(torch.rand(heads, generator=rng, dtype=torch.float64))
        if self.padding:
            options["key_padding"] = torch.rand(self.batch, keys, generator=rng) < 0.3
        return [q, k, v], grad, options


SHAPES = {
    "one token": Problem(queries=1, window=1),
    "two tokens": Problem(queries=2, window=1),
    "two tokens, a window of both": Problem(queries=2, window=2),
    "odd": Problem(queries=77, window=13, width=24),
    "window of one key": Problem(queries=70, window=1),
    "window a tile minus one": Problem(queries=3 * TILE + 5, window=TILE - 1, batch=1),
    "window a tile": Problem(queries=3 * TILE + 5, window=TILE, batch=1),
    "window a tile plus one": Problem(queries=3 * TILE + 5, window=TILE + 1, batch=1),
    "window past a tile of keys": Problem(queries=900, window=500, batch=1, kv_heads=1),
    "window of everything": Problem(queries=65, window=65),
    "window of more than everything": Problem(queries=65, window=1000),
    "no window": Problem(queries=101),
    "ratio 1": Problem(queries=50, window=9, ratio=1, kv_heads=3),
    "ratio 4": Problem(queries=50, window=9, ratio=4),
    "ratio 7": Problem(queries=50, window=9, ratio=7),
    "multi-query": Problem(queries=150, window=33, ratio=8, kv_heads=1),
    "odd width": Problem(queries=40, window=7, width=5, value_width=19),
    "wide heads": Problem(queries=130, window=40, width=128, batch=1),
    "very wide heads": Problem(queries=40, window=11, width=200, value_width=72, batch=1),
    "last queries": Problem(queries=9, keys=40, window=6),
    "last queries, longer": Problem(queries=100, keys=333, window=50),
    "last queries, no window": Problem(queries=100, keys=333),
    "more queries than keys": Problem(queries=40, keys=25, window=6),
    "alibi": Problem(queries=90, window=20, alibi=True, ratio=3),
    "alibi, last queries": Problem(queries=30, keys=90, alibi=True),
    "padding": Problem(queries=90, window=20, padding=True),
    "padding, window of one key": Problem(queries=90, window=1, padding=True),
    "padding and alibi": Problem(queries=50, keys=80, window=33, padding=True, alibi=True),
    "both ways": Problem(queries=90, window=20, causal=False, padding=True, alibi=True),
    "both ways, no window": Problem(queries=90, causal=False, alibi=True),
    "both ways, last queries": Problem(queries=30, keys=77, window=9, causal=False),
    "long": Problem(queries=4099, window=130, batch=1, kv_heads=1, ratio=1, width=32),
    "long, few heads": Problem(queries=4500, keys=4700, window=700, batch=1, kv_heads=1, ratio=2),
}


def solve(
    problem: Problem, path: str, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> list[Tensor]:
    """The output and the gradients of q, k and v, by a path in a dtype."""
    inputs, grad, options = problem.tensors()
    leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
    bias, padding = options.get("bias"), options.get("key_padding")
    if isinstance(bias, LinearBias):
        options["bias"] = LinearBias(bias.slopes.to(device, dtype))
    if padding is not None:
        options["key_padding"] = padding.to(device)
    options["path"] = path
    q, k, v = leaves
    out = attention(q, k, v, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(device, dtype))]


def refusal(problem: Problem, path: str) -> str | None:
    (q, k, v), _, options = problem.tensors()
    request = Request(
        q=q,
        k=k,
        v=v,
        causal=problem.causal,
        window=problem.window,
        bias=options.get("bias"),
        key_padding=options.get("key_padding"),
    )
    return PATHS[path].refusal(request)


def errors(found: Sequence[Tensor], true: Sequence[Tensor]) -> list[float]:
    """Largest difference of each tensor; infinite where there is a NaN, which `max` overlooks."""
    differences = [
        (mine.cpu().double() - exact).abs().max() for mine, exact in zip(found, true, strict=True)
    ]
    return [math.inf if one.isnan() else float(one) for one in differences]


def limit_in_float64(true: Sequence[Tensor]) -> float:
    """Both sides round; sums of some hundred terms lose a few bits of the 53."""
    return 64 * torch.finfo(torch.float64).eps * _largest(true)


def limits_of_plain(
    plain: Sequence[Tensor], true: Sequence[Tensor], dtype: torch.dtype
) -> list[float]:
    """For each tensor twice the error of plain PyTorch in the dtype.

    One rounding of the largest number of the problem is allowed on top: where plain PyTorch happens
    to be exact (a query that attends to one key), twice its error would be nothing at all.
    """
    rounding = torch.finfo(dtype).eps * _largest(true)
    return [2 * error + rounding for error in errors(plain, true)]


def _largest(tensors: Sequence[Tensor]) -> float:
    return max(float(one.abs().max()) for one in tensors)
