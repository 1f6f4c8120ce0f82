"""Calls of the kernels: what they are given, and the memory that they write.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.
"""

from typing import Any

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from attnlab.kernels.band import Band, laid_out_as
from attnlab.kernels.mask import Mask
from attnlab.kernels.triton import tiles
from attnlab.kernels.triton.backward import keys_kernel, queries_kernel, turn_kernel
from attnlab.kernels.triton.forward import combine_kernel, forward_kernel
from attnlab.kernels.triton.parts import LOG2E
from attnlab.kernels.triton.tiles import Kernel

NARROWEST = 16  # of what tl.dot multiplies
TURNED_ROWS = 64
WITH_DESCRIPTORS = (9, 0)  # compute capability: Hopper loads whole tiles by itself
INTERPRETED = bool(triton.knobs.runtime.interpret)
# few queries: so many programs to a multiprocessor, each with at least so many tiles of keys
SPLITS_PER_CORE, LEAST_TILES = 2, 4


def forward(band: Band, splits: int | None = 1) -> tuple[Tensor, Tensor, Tensor]:
    """The output, what the backward pass needs of the softmax, and the keys if they were turned.

    `splits` programs share out the keys of a tile of queries, and then there is no way back; None:
    as many as there are idle multiprocessors.
    """
    call = _Call(band, "forward")
    turned = call.turned_keys()
    q, k, v = call.q, call.k, call.v
    out = laid_out_as(q, v.shape[3])
    rows = q.shape[0] * q.shape[1] * q.shape[2]
    kinds = 2 if band.sinks is None else 3
    stats = q.new_empty(kinds, *q.shape[:3], dtype=torch.float32)
    parts, part_stats = out, stats
    splits = call.idle_splits() if splits is None else splits
    if splits > 1:
        parts = q.new_empty(splits, *q.shape[:3], v.shape[3], dtype=torch.float32)
        part_stats = q.new_empty(splits, 2, *q.shape[:3], dtype=torch.float32)
    forward_kernel[(call.programs * splits,)](
        q,
        *call.loaded(call.tile.columns, k, v),
        parts,
        part_stats,
        call.ranges,
        call.padding,
        call.slopes,
        call.table,
        band.sinks,
        call.cos,
        call.sin,
        *_strides(q, k, v, parts if splits == 1 else parts[0]),
        *call.numbers(q.shape[1]),
        splits,
        rows,
        PACK=call.tile.pack,
        SPLIT=splits > 1,
        **call.constants,
    )
    if splits > 1:
        combine_kernel[(triton.cdiv(q.shape[2], NARROWEST) * q.shape[0] * q.shape[1],)](
            parts,
            part_stats,
            out,
            band.sinks,
            *_strides(out),
            q.shape[1],
            q.shape[2],
            splits,
            rows,
            call.unit,
            ROWS=NARROWEST,
            VALUES=v.shape[3],
            WIDE_VALUES=call.constants["WIDE_VALUES"],
        )
    return out, stats, q.new_empty(0) if turned is None else turned


def backward(
    band: Band,
    out: Float[Tensor, "b h q e"],
    stats: Float[Tensor, "kinds b h q"],
    grad_out: Float[Tensor, "b h q e"],
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, the slopes (empty unless they are learned) and the sinks.

    Keys that are to be turned are turned already.
    """
    call = _Call(band, "queries")
    q, k, v = call.q, call.k, call.v
    out, grad_out = _side_by_side(out), _side_by_side(grad_out)
    heads, rows = q.shape[1], q.shape[0] * q.shape[1] * q.shape[2]
    grad_q = laid_out_as(q, q.shape[3])
    grad_k, grad_v = laid_out_as(k, k.shape[3]), laid_out_as(v, v.shape[3])
    along = q.new_empty(q.shape[:3], dtype=torch.float32)
    slants = torch.empty_like(along) if learned else None
    turned_q = None if band.rotary is None else q.new_empty(q.shape)
    queries_kernel[(call.programs,)](
        q,
        *call.loaded(call.tile.columns, k, v),
        out,
        grad_out,
        stats,
        grad_q,
        along,
        slants,
        turned_q,
        call.ranges,
        call.padding,
        call.slopes,
        call.table,
        call.cos,
        call.sin,
        *_strides(q, k, v, out, grad_out, grad_q),
        *call.numbers(heads),
        rows,
        PACK=call.tile.pack,
        **call.constants,
    )
    if turned_q is not None:
        q = turned_q
    call = _Call(band, "keys")
    q_rows, grad_rows = call.loaded(call.tile.rows, q, grad_out)
    seen_by = call.seen_by()
    keys_kernel[(triton.cdiv(k.shape[2], call.tile.columns) * k.shape[0] * k.shape[1],)](
        q_rows,
        k,
        v,
        grad_rows,
        stats,
        along,
        grad_k,
        grad_v,
        call.ranges,
        seen_by,
        call.padding,
        call.slopes,
        call.table,
        call.cos,
        call.sin,
        *_strides(q, k, v, grad_out, grad_k, grad_v),
        *call.numbers(k.shape[1], 0 if seen_by is None or len(seen_by) == 1 else seen_by.stride(0)),
        rows,
        **call.constants,
    )
    grad_slopes, grad_sinks = q.new_empty(0), q.new_empty(0)
    if slants is not None and call.slopes is not None:
        grad_slopes = -slants.sum((0, 2)).to(call.slopes.dtype)
    if band.sinks is not None:
        grad_sinks = -(stats[2] * along).sum((0, 2)).to(band.sinks.dtype)
    return grad_q, grad_k, grad_v, grad_slopes, grad_sinks


class _Call:
    """What all kernels take of a band, and the sizes of the tiles of one of them."""

    def __init__(self, band: Band, kernel: Kernel) -> None:
        self.band = band
        self.q, self.k, self.v = (_side_by_side(x) for x in (band.q, band.k, band.v))
        q, k, v = self.q, self.k, self.v
        self.group = q.shape[1] // k.shape[1]
        mask = band.mask
        self.ranges: Tensor | None = None
        if isinstance(mask, Mask) and mask.is_band:
            self.sides = mask.sides
        else:
            self.ranges, self.sides = mask.ranges().to(torch.int32).contiguous(), (0, 0)
        before, after = self.sides
        self.window = k.shape[2] if self.ranges is not None else before + after + 1
        self.tile = tiles.chosen(
            kernel,
            chip=_chip(q.device),
            width=max(q.shape[3], v.shape[3]),
            window=min(self.window, k.shape[2]),
            dtype=q.dtype,
            group=self.group,
        )
        self.padding = None if band.padding is None else band.padding.contiguous().view(torch.uint8)
        learned = None if band.table is None else band.table.detach().contiguous()
        self.slopes = learned if learned is not None and learned.dim() == 1 else None
        self.table = learned if learned is not None and learned.dim() == 2 else None
        rotary = band.rotary
        self.cos = None if rotary is None else rotary.cos.contiguous()
        self.sin = None if rotary is None else rotary.sin.contiguous()
        wide, wide_values = (max(triton.next_power_of_2(x.shape[3]), NARROWEST) for x in (q, v))
        self.constants: dict[str, Any] = {
            "ROWS": self.tile.rows,
            "COLUMNS": self.tile.columns,
            "WIDTH": q.shape[3],
            "WIDE_WIDTH": wide,
            "VALUES": v.shape[3],
            "WIDE_VALUES": wide_values,
            "PAIRS": 0 if self.cos is None else self.cos.shape[3],
            "INTERLEAVED": rotary is not None and rotary.layout == "interleaved",
            "CAPPED": band.cap != 0,
            "SAFE": q.dtype != torch.float16,  # whose products cannot overflow float32
            "PARTS": self.tile.parts,
            "PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
            "num_warps": self.tile.warps,
            "num_stages": self.tile.stages,
        }

    @property
    def programs(self) -> int:
        """Of a kernel over tiles of queries."""
        packs = self.q.shape[0] * self.q.shape[1] // self.tile.pack
        return triton.cdiv(self.q.shape[2] * self.tile.pack, self.tile.rows) * packs

    def idle_splits(self) -> int:
        """How many programs may share out the keys of a tile of queries, so that none is idle."""
        longest = min(self.window + self.tile.rows, self.k.shape[2])
        most = triton.cdiv(longest, LEAST_TILES * self.tile.columns)
        return max(min(SPLITS_PER_CORE * _cores(self.q.device) // self.programs, most), 1)

    @property
    def unit(self) -> float:
        bent = self.band.cap or self.slopes is not None or self.table is not None
        return 1.0 if bent else self.band.scale * LOG2E.value

    @property
    def angles(self) -> tuple[int, int]:
        """From row to row of the batch and from head to head, in places."""
        if self.cos is None:
            return 0, 0
        batch, heads, length, _ = self.cos.shape
        return heads * length * (batch > 1), length * (heads > 1)

    def numbers(self, heads: int, *more: int) -> list[float]:
        """Strides of what is not a tensor of heads, sizes, and how scores are made."""
        ranges = 0 if self.ranges is None or len(self.ranges) == 1 else self.ranges.stride(0)
        table = 0 if self.table is None else self.table.stride(0)
        size = 1 if self.table is None else self.table.shape[1]
        before, after = self.sides
        return [
            ranges,
            *more,
            table,
            *self.angles,
            heads,
            self.group,
            self.q.shape[2],
            self.k.shape[2],
            before,
            after,
            self.band.zero,
            size,
            self.band.scale,
            self.band.cap,
        ]

    def turned_keys(self) -> Tensor | None:
        """Keys turned by their angles; from here on they stand for the keys."""
        if self.cos is None:
            return None
        k, out = self.k, laid_out_as(self.k, self.k.shape[3])
        turn_kernel[(triton.cdiv(k.shape[2], TURNED_ROWS) * k.shape[0] * k.shape[1],)](
            k,
            out,
            self.cos,
            self.sin,
            *_strides(k, out),
            *self.angles,
            k.shape[1],
            k.shape[2],
            ROWS=TURNED_ROWS,
            WIDTH=k.shape[3],
            WIDE_WIDTH=self.constants["WIDE_WIDTH"],
            PAIRS=self.constants["PAIRS"],
            INTERLEAVED=self.constants["INTERLEAVED"],
        )
        self.k = out
        return out

    def seen_by(self) -> Int[Tensor, "#b tiles 4"] | None:
        """For each tile of keys: the queries that attend to any of it, and those to all of it."""
        if self.ranges is None:
            return None
        size, keys = self.tile.columns, self.k.shape[2]
        first, end = self.ranges[..., 0].contiguous(), self.ranges[..., 1].contiguous()
        begin = torch.arange(0, keys, size, device=first.device, dtype=torch.int32)
        begin = begin.expand(len(first), -1).contiguous()
        stop = (begin + size).clamp(max=keys)
        bounds = [
            torch.searchsorted(end, begin, right=True),
            torch.searchsorted(first, stop),
            torch.searchsorted(end, stop),
            torch.searchsorted(first, begin, right=True),
        ]
        return torch.stack(bounds, -1).to(torch.int32)

    def loaded(self, rows: int, x: Tensor, y: Tensor) -> list[Any]:
        """What the inner loop loads: as descriptors where the chip and the tensors allow it.

        A descriptor would read padding, which nobody may.
        """
        described = self.tile.described and self.padding is None and _is_aligned(x, y)
        described = described and (INTERPRETED or _capability(x.device) >= WITH_DESCRIPTORS)
        self.constants["DESCRIBED"] = described
        if not described:
            return [x, y]
        wide = (self.constants["WIDE_WIDTH"], self.constants["WIDE_VALUES"])
        return [
            TensorDescriptor.from_tensor(one, [1, 1, rows, width])
            for one, width in zip((x, y), wide, strict=True)
        ]


def _is_aligned(*tensors: Tensor) -> bool:
    """As descriptors need it: 16 bytes, and no row twice."""
    return all(
        x.data_ptr() % 16 == 0 and all(n and n * x.element_size() % 16 == 0 for n in x.stride()[:3])
        for x in tensors
    )


def _side_by_side(x: Tensor) -> Tensor:
    """The same numbers with the last axis contiguous in memory."""
    return x if x.stride(3) == 1 else x.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for x in tensors for stride in x.stride()[:3]]


def _chip(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _cores(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
