"""`attnlab bench window device=cuda tune=yes`: sizes of tiles, tried one after another.

Of each kernel all sizes are tried, the other kernels as they are: forward by the forward pass, the
two of the backward pass by forward and backward. What is printed goes into kernels/triton/tiles.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from attnlab.bench.measure import recorded, take_turns
from attnlab.kernels import Request, attention
from attnlab.kernels.dispatch import PATHS
from attnlab.kernels.triton import tiles
from attnlab.kernels.triton.tiles import KERNELS, Kernel, Tile

Inputs = tuple[Tensor, Tensor, Tensor]
PATIENCE = 0.2  # seconds of timing for each size


def sizes(kernel: Kernel, group: int) -> Iterator[Tile]:
    """Those that may be the fastest of a kernel; what a chip has no room for drops out."""
    shapes = {
        "forward": [(64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8)],
        "queries": [(64, 64, 4), (64, 128, 4), (64, 128, 8), (128, 64, 8), (128, 128, 8)],
        "keys": [(32, 64, 4), (64, 64, 4), (32, 128, 8), (64, 128, 8), (64, 64, 8), (128, 64, 8)],
    }[kernel]
    packs = [1] if kernel == "keys" or group % 2 else [1, 2, 4]
    for (rows, columns, warps), stages, parts, pack in product(shapes, (2, 3), (1, 3), packs):
        if group % pack == 0:
            yield Tile(rows, columns, warps, stages, parts=parts, pack=pack)


def run(
    inputs: Inputs,
    windows: Sequence[int],
    turns: int,
    tick: Callable[[str], None],
    tried: Callable[[Kernel, int], Iterator[Tile]] = sizes,
) -> dict[str, Any]:
    """For each window the tile of each kernel that took the least time."""
    (q, k, v), rows = inputs, []
    for window in windows:
        reason = PATHS["triton"].refusal(Request(q=q, k=k, v=v, window=window))
        if reason:
            raise ValueError(f"there is nothing to tune: {reason}; leave out tune=yes")
        for kernel in KERNELS:
            found = []
            for tile in tried(kernel, q.shape[1] // k.shape[1]):
                tick(f"window {window:,}, {kernel}: {tile}")
                found.append(_tried(kernel, tile, window, inputs, turns))
            ran = [one for one in found if one["ms"] is not None]
            best = min(ran, key=lambda one: one["ms"], default=None)
            usual = _time(kernel, window, inputs, turns)
            rows.append(
                {"window": window, "kernel": kernel, "usual": usual, "best": best, "tried": found}
            )
    device = torch.cuda.get_device_name(q.device) if q.is_cuda else q.device.type
    shape = {"length": q.shape[2], "heads": q.shape[1], "width": q.shape[3]}
    return {"device": device, **shape, "tuned": rows, "rows": []}


def _tried(kernel: Kernel, tile: Tile, window: int, inputs: Inputs, turns: int) -> dict[str, Any]:
    with tiles.forced(**{kernel: tile}):
        try:
            return {"tile": asdict(tile), "ms": _time(kernel, window, inputs, turns)}
        except Exception as error:  # Triton has a type of its own for each thing that runs out
            why = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            return {"tile": asdict(tile), "ms": None, "why": why}


def _time(kernel: Kernel, window: int, inputs: Inputs, turns: int) -> float:
    leaves = [x.detach().requires_grad_(kernel != "forward") for x in inputs]
    grad = torch.randn_like(inputs[0])

    def call() -> object:
        out = attention(*leaves, window=window, path="triton")
        return out if kernel == "forward" else torch.autograd.grad(out, leaves, grad)

    device = inputs[0].device
    timings = take_turns({"": recorded(call, device)}, device, turns, PATIENCE)
    return timings[""].median


def show(report: dict[str, Any], screen: Console) -> None:
    screen.print(
        f"tiles on {report['device']}, {report['length']:,} tokens, {report['heads']} heads of "
        f"{report['width']}; ms of forward, or of forward and backward",
        highlight=False,
    )
    for row in report["tuned"]:
        head = f"{row['kernel']}, window {row['window']:,}: usual {row['usual']:.3f}"
        if row["best"] is None:
            screen.print(f"{head}; no other size ran", highlight=False)
            continue
        tile = Tile(**row["best"]["tile"])
        line = f"{head}, best {row['best']['ms']:.3f}: ({report['width']}, {row['window']}): {tile}"
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
        failed = sum(one["ms"] is None for one in row["tried"])
        if failed:
            screen.print(f"  {failed} of {len(row['tried'])} sizes did not run", highlight=False)
