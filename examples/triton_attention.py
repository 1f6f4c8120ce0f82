"""Causal attention as a Triton kernel, to be audited on a GPU.

    attnlab audit examples/triton_attention.py:Attention --device cuda --declare causal=true
    … the same with leak=true

The second has a bug that shows on a GPU only: a query attends to one key too many. On the CPU the
module computes the same in plain PyTorch, and the audit compares the two.

Axes: b batch, h query heads, g key/value heads, t time, d head width, c width.
Cost: O(t²) time, O(t) memory: scores are made block by block, with a running softmax.
"""

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BLOCK = 32  # queries, and keys, at a time
WIDEST = 64  # head width that fits into a block
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # by Triton, on the CPU, slowly

if triton is not None:

    @triton.jit(do_not_specialize=["length"])
    def attend_block(
        q,
        k,
        v,
        out,
        length,
        width,
        heads,
        kv_heads,
        scale,
        WIDTH: tl.constexpr,
        BLOCK: tl.constexpr,
        LEAK: tl.constexpr,
    ):
        """One block of queries of one head, over the blocks of keys up to its own."""
        block, number = tl.program_id(0), tl.program_id(1).to(tl.int64)
        row, head = number // heads, number % heads
        shared = row * kv_heads + head // (heads // kv_heads)
        places = block * BLOCK + tl.arange(0, BLOCK)
        columns = tl.arange(0, WIDTH)
        there = (places[:, None] < length) & (columns[None, :] < width)
        queries = number * length * width + places[:, None] * width + columns[None, :]
        query = tl.load(q + queries, mask=there, other=0.0)
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        mixed = tl.zeros([BLOCK, WIDTH], tl.float32)
        for start in range(0, (block + 1) * BLOCK + LEAK, BLOCK):
            keys = start + tl.arange(0, BLOCK)
            at = shared * length * width + keys[:, None] * width + columns[None, :]
            known = (keys[:, None] < length) & (columns[None, :] < width)
            key = tl.load(k + at, mask=known, other=0.0)
            value = tl.load(v + at, mask=known, other=0.0)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            seen = (keys[None, :] <= places[:, None] + LEAK) & (keys[None, :] < length)
            scores = tl.where(seen, scores, float("-inf"))
            top = tl.maximum(best, tl.max(scores, 1))
            weights, shrink = tl.exp(scores - top[:, None]), tl.exp(best - top)
            total = total * shrink + tl.sum(weights, 1)
            mixed = mixed * shrink[:, None]
            mixed += tl.dot(weights.to(value.dtype), value, input_precision="ieee")
            best = top
        result = mixed / total[:, None]
        tl.store(out + queries, result.to(out.dtype.element_ty), mask=there)


def attend(q: Tensor, k: Tensor, v: Tensor, leak: bool = False) -> Tensor:
    """Causal attention of q [b, h, t, d] over k and v [b, g, t, d], in one kernel."""
    if triton is None:
        raise ImportError("the kernel needs Triton: pip install triton")
    if not (q.is_cuda or INTERPRETED):
        raise ValueError("the kernel runs on a GPU only: audit it with --device cuda")
    if q.dtype not in DTYPES:
        raise TypeError(f"the kernel takes float32, bfloat16 and float16, not {q.dtype}")
    (b, h, t, d), g = q.shape, k.shape[1]
    if d > WIDEST or h % g:
        raise ValueError(f"head width {d} must be at most {WIDEST}, heads {h} a multiple of {g}")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out: Any = torch.empty_like(q)
    wide = max(16, triton.next_power_of_2(d))
    grid = (triton.cdiv(t, BLOCK), b * h)
    sizes = (t, d, h, g, d**-0.5)
    attend_block[grid](q, k, v, out, *sizes, WIDTH=wide, BLOCK=BLOCK, LEAK=int(leak))
    return out


class Attention(nn.Module):
    """Causal self-attention of x [b, t, c]: by the kernel on a GPU, else in plain PyTorch."""

    def __init__(self, width: int = 64, heads: int = 4, leak: bool = False) -> None:
        super().__init__()
        self.heads, self.leak = heads, leak
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if x.is_cuda or INTERPRETED:
            y = attend(q, k, v, self.leak)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outer(y.transpose(1, 2).flatten(2))
