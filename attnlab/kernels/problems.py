"""Attention problems of awkward shapes: what each path makes of them, and how far it may be off.

The tests and `attnlab check machines` use the same ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.kernels.dispatch import PATHS, Options, attention, request_of
from attnlab.kernels.mask import Align, Reach, Segments
from attnlab.kernels.request import DistanceBias, LinearBias

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
    reach: tuple[int | None, int | None] | None = None  # before and after, in place of a window
    align: Align = "end"
    chunk: int | None = None
    prefix: bool = False  # of another length in each row
    documents: int | None = None  # in a row, of other lengths in each row
    lengths: bool = False  # of keys, another in each row
    soft_cap: float | None = None
    sinks: bool = False
    table: bool = False  # a bias by distance
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
        options |= self._mask(keys, rng)
        if self.sinks:
            options["sinks"] = torch.randn(heads, generator=rng, dtype=torch.float64)
        if self.table:
            table = torch.randn(heads, 25, generator=rng, dtype=torch.float64)
            options["bias"] = DistanceBias(table, 8)
        return [q, k, v], grad, options

    def _mask(self, keys: int, rng: torch.Generator) -> Options:
        options: Options = {"align": self.align, "chunk": self.chunk, "soft_cap": self.soft_cap}
        if self.reach is not None:
            options["window"] = Reach(before=self.reach[0], after=self.reach[1])
        if self.prefix:
            options["prefix"] = torch.randint(keys + 1, (self.batch,), generator=rng)
        if self.lengths:
            options["key_lengths"] = torch.randint(keys + 1, (self.batch,), generator=rng)
        if self.documents is not None:
            high, sizes = self.documents, (self.queries, keys)
            ours, theirs = (
                torch.randint(high, (self.batch, size), generator=rng).sort(1).values
                for size in sizes
            )
            options["segments"] = theirs if self.keys is None else Segments(ours, theirs)
        return options


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
    "more to one side": Problem(queries=90, reach=(5, 17), causal=False, ratio=3),
    "all before, some after": Problem(queries=75, keys=81, reach=(None, 3), causal=False),
    "reach, causal": Problem(queries=75, reach=(12, 0), padding=True),
    "first queries": Problem(queries=40, keys=90, align="start"),
    "first queries, a window": Problem(queries=90, keys=70, align="start", window=9, alibi=True),
    "chunks": Problem(queries=100, chunk=24),
    "chunks, last queries, padding": Problem(queries=30, keys=77, chunk=16, padding=True),
    "chunks, both ways, a window": Problem(queries=70, chunk=30, window=11, causal=False),
    "prefix": Problem(queries=80, prefix=True, batch=3),
    "prefix, last queries": Problem(queries=33, keys=80, prefix=True, alibi=True, batch=3),
    "documents": Problem(queries=150, documents=5, batch=3),
    "documents, a window, alibi": Problem(queries=150, documents=4, window=21, alibi=True),
    "documents, both ways, chunks": Problem(queries=99, documents=3, chunk=13, causal=False),
    "documents of other lengths": Problem(queries=60, keys=90, documents=4, padding=True, batch=3),
    "documents without keys": Problem(queries=130, keys=20, documents=6, batch=3),
    "documents, first queries": Problem(queries=90, keys=60, documents=4, align="start"),
    "key lengths": Problem(queries=70, lengths=True, batch=4),
    "key lengths, both ways": Problem(queries=30, keys=70, lengths=True, causal=False, window=9),
    "key lengths, first queries": Problem(queries=70, lengths=True, align="start", batch=3),
    "soft cap": Problem(queries=80, soft_cap=1.5, ratio=3),
    "soft cap, hardly felt": Problem(queries=80, soft_cap=50.0, window=20, padding=True),
    "sinks": Problem(queries=80, sinks=True, ratio=3),
    "sinks, padding": Problem(queries=80, sinks=True, padding=True, window=3),
    "bias by distance": Problem(queries=90, keys=100, table=True, ratio=3),
    "bias by distance, both ways": Problem(queries=90, table=True, window=20, causal=False),
    "everything": Problem(
        queries=150,
        documents=3,
        window=40,
        chunk=33,
        soft_cap=2.0,
        sinks=True,
        table=True,
        padding=True,
        batch=3,
    ),
    "documents, long": Problem(queries=3000, documents=9, batch=2, kv_heads=1, ratio=2, sinks=True),
    "long": Problem(queries=4099, window=130, batch=1, kv_heads=1, ratio=1, width=32),
    "long, few heads": Problem(queries=4500, keys=4700, window=700, batch=1, kv_heads=1, ratio=2),
}


def solve(
    problem: Problem, path: str, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> list[Tensor]:
    """The output and the gradients of q, k, v, bias and sinks, by a path in a dtype."""
    inputs, grad, options = problem.tensors()
    leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
    q, k, v = leaves
    bias, sinks, segments = options.get("bias"), options.get("sinks"), options.get("segments")
    if isinstance(bias, LinearBias):
        leaves.append(bias.slopes.to(device, dtype).requires_grad_())
        options["bias"] = LinearBias(leaves[-1])
    elif isinstance(bias, DistanceBias):
        leaves.append(bias.values.to(device, dtype).requires_grad_())
        options["bias"] = DistanceBias(leaves[-1], bias.zero)
    if isinstance(sinks, Tensor):
        leaves.append(sinks.to(device, dtype).requires_grad_())
        options["sinks"] = leaves[-1]
    if isinstance(segments, Segments):
        options["segments"] = Segments(segments.queries.to(device), segments.keys.to(device))
    elif segments is not None:
        options["segments"] = segments.to(device)
    for name in ("key_padding", "prefix", "key_lengths"):
        if isinstance(given := options.get(name), Tensor):
            options[name] = given.to(device)
    options["path"] = path
    out = attention(q, k, v, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(device, dtype))]


def refusal(problem: Problem, path: str) -> str | None:
    (q, k, v), _, options = problem.tensors()
    return PATHS[path].refusal(request_of(q, k, v, **options))


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
