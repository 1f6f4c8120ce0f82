"""PyTorch's FlexAttention, compiled: block-sparse windows on CUDA (on the CPU, forward only).

Axes: b batch, h heads, q queries, e value width.
Cost: O(q · band) time.
"""

import functools
import sys
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from attnlab import compat
from attnlab.kernels import hardware
from attnlab.kernels.band import bias_table
from attnlab.kernels.mask import Mask, Reach
from attnlab.kernels.request import Bias, LinearBias, Request

BLOCK = 128  # of queries and of keys, the size that PyTorch takes too
FEWEST_QUERIES = 128  # below, PyTorch takes a decoding kernel that does not compile for all shapes
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def refusal(request: Request) -> str | None:
    if request.q.device.type not in ("cuda", "cpu"):
        return f"FlexAttention does not run on {request.q.device.type}"
    if request.dropout:
        return "FlexAttention leaves out no weights at random"
    if request.q.device.type == "cpu" and request.needs_grad:
        return "FlexAttention has no backward pass on the CPU"
    if request.q.dtype not in _DTYPES:
        return f"FlexAttention does not run in {request.q.dtype}"
    if isinstance(request.bias, Tensor):
        return "a bias given as a tensor is dense"
    if isinstance(request.bias, Bias) and request.needs_grad and request.bias.learned.requires_grad:
        return "it is not used for the gradient of a bias"
    widths = (request.q.shape[3], request.v.shape[3])
    if any(width < 16 or width & (width - 1) for width in widths):
        return f"head widths {widths} are not powers of two of at least 16"
    if request.keys == 0:
        return "there is nothing to attend to"
    if request.queries < FEWEST_QUERIES:
        return f"{request.queries} queries are fewer than the {FEWEST_QUERIES} of its main kernel"
    if request.q.device.type == "cpu" and not _has_vectors():
        return "FlexAttention needs AVX2 on the CPU, which PyTorch does not use here"
    if request.q.device.type == "cpu" and _cpp_compiler() is None:
        return "FlexAttention needs a C++ compiler on the CPU, and none was found"
    return None


def attend(request: Request) -> Float[Tensor, "b h q e"]:
    blocks, score = _blocks(request), _score(request)
    q, k, v = request.q, request.k, request.v
    sinks = request.sinks
    # Uncompiled it takes quadratic memory: there may be as many shapes and windows as a person has,
    # and never a silent substitute.
    with compat.recompile_limit(1 << 10):
        if sinks is None:
            return _compiled()(q, k, v, score, blocks, request.factor, request.group > 1)
        out, total = _compiled()(
            q, k, v, score, blocks, request.factor, request.group > 1, return_lse=True
        )
    # a sink takes its part of the weight: e^total / (e^total + e^sink) is left
    return out * (total - sinks[:, None].to(total.dtype)).sigmoid()[..., None].to(out.dtype)


def _has_vectors() -> bool:
    """Its CPU kernel is there for x86 with AVX2, and not on macOS."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") and sys.platform != "darwin"


_cpp_compiler = functools.cache(compat.cpp_compiler)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    hardware.tag_compiled_code()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def _blocks(request: Request) -> BlockMask:
    queries, keys, padding = request.queries, request.keys, request.key_padding
    if request.is_band:
        left, right = request.mask.sides
        if padding is None:
            return _band_blocks(queries, keys, left, right, request.q.device)
        mask = _band(queries, keys, left, right)
    else:
        mask = _ranges(request.mask.ranges().expand(request.q.shape[0], -1, -1))
    return _blocks_of_ranges(request.mask.ranges(), keys, mask, padding)


def _blocks_of_ranges(
    ranges: Int[Tensor, "b q 3"],
    keys: int,
    mask: Callable[..., Tensor],
    padding: Bool[Tensor, "_b k"] | None = None,
) -> BlockMask:
    """From the first and last keys of each tile of queries: PyTorch's way makes the whole mask.

    Blocks that all queries of a tile attend to are computed without asking the mask.
    """
    rows, queries = ranges.shape[:2]
    if padding is not None:
        rows, mask = padding.shape[0], _without_padding(mask, padding)
    if torch.compiler.is_compiling():
        # with what is below, a graph from the compiler's cache cannot be captured (torch 2.11)
        make = torch.compile(create_block_mask)
        return make(mask, rows, None, queries, keys, device=ranges.device)
    last = ranges[:, -1:].expand(-1, -queries % BLOCK, -1)
    tiles = torch.cat([ranges, last], 1).unflatten(1, (-1, BLOCK))
    least, most = tiles.amin(2)[:, None, :, None, :], tiles.amax(2)[:, None, :, None, :]
    begin = torch.arange(0, keys, BLOCK, device=ranges.device)
    some = (begin < most[..., 1]) & (begin + BLOCK > least[..., 0])
    full = (begin >= most[..., 0]) & (begin + BLOCK <= least[..., 1])
    counts, which = _listed(some if padding is not None else some & ~full)
    full_counts, full_which = (None, None) if padding is not None else _listed(full)
    return BlockMask.from_kv_blocks(
        counts,
        which,
        full_counts,
        full_which,
        BLOCK_SIZE=BLOCK,
        mask_mod=mask,
        seq_lengths=(queries, keys),
    )


def _listed(blocks: Bool[Tensor, "b 1 q k"]) -> tuple[Tensor, Tensor]:
    """How many blocks each tile of queries has, and which, those first."""
    order = blocks.int().argsort(stable=True, dim=-1, descending=True)
    return blocks.sum(-1, dtype=torch.int32), order.to(torch.int32)


def _score(request: Request) -> Callable[..., Tensor] | None:
    """What becomes of a score: capped, then biased."""
    cap = request.soft_cap
    if not isinstance(request.bias, Bias):
        return None if cap is None else _capped(cap)
    if isinstance(request.bias, LinearBias) and request.is_band and cap is None:
        return _alibi(request.bias.slopes, request.keys - request.queries)
    table, zero = bias_table(request.bias, request.queries, request.keys)
    at = request.mask.positions().expand(request.q.shape[0], -1)
    return _biased(table, zero, at, cap)


@functools.lru_cache(maxsize=64)
def _band_blocks(queries: int, keys: int, left: int, right: int, device: torch.device) -> BlockMask:
    reach = Reach(before=left, after=right)
    mask = Mask(queries=queries, keys=keys, device=device, causal=False, window=reach)
    return _blocks_of_ranges(mask.ranges(), keys, _band(queries, keys, left, right))


# Lambdas, since FlexAttention counts their arguments and the tests' shape checks wrap functions.


def _band(queries: int, keys: int, left: int, right: int) -> Callable[..., Tensor]:
    offset = keys - queries
    return lambda b, h, i, j: (i + offset - j <= left) & (i + offset - j >= -right)


def _without_padding(mask: Callable[..., Tensor], padding: Tensor) -> Callable[..., Tensor]:
    return lambda b, h, i, j: mask(b, h, i, j) & ~padding[b, j]


def _ranges(ranges: Tensor) -> Callable[..., Tensor]:
    return lambda b, h, i, j: (j >= ranges[b, i, 0]) & (j < ranges[b, i, 1])


def _alibi(slopes: Tensor, offset: int) -> Callable[..., Tensor]:
    return lambda score, b, h, i, j: score - slopes[h] * (i + offset - j).abs()


def _capped(cap: float) -> Callable[..., Tensor]:
    return lambda score, b, h, i, j: cap * torch.tanh(score / cap)


def _biased(table: Tensor, zero: int, at: Tensor, cap: float | None) -> Callable[..., Tensor]:
    if cap is None:
        return lambda score, b, h, i, j: score + table[h, zero + j - at[b, i]]
    return lambda score, b, h, i, j: cap * torch.tanh(score / cap) + table[h, zero + j - at[b, i]]
