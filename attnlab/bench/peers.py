"""Peers of `attnlab bench window`, and what they are given to do besides.

Axes: b batch, h heads, t time, d head width.
"""

import functools
import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from attnlab.kernels import Request, Rotation, rotate

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def until(by: Rotation | None, keys: Tensor) -> Rotation | None:
    """The angles of the first places: of as many as there are keys."""
    if by is None:
        return None
    length = keys.shape[2]
    return Rotation(by.cos[:, :, :length], by.sin[:, :, :length], by.layout)


def turning(function: Function, by: Rotation) -> Function:
    """A peer that has its queries and keys turned before it: in one pass on CUDA, compiled."""

    def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        angles = until(by, k)
        assert angles is not None
        turn = _both_turned() if q.device.type == "cuda" else _turn_both
        return function(*turn(q, k, angles), v)

    return turned


def _turn_both(q: Tensor, k: Tensor, by: Rotation) -> tuple[Tensor, Tensor]:
    return rotate(q, by), rotate(k, by)


@functools.cache
def _both_turned() -> Callable[[Tensor, Tensor, Rotation], tuple[Tensor, Tensor]]:
    return torch.compile(_turn_both, dynamic=False, fullgraph=True)


def why_not_varlen(request: Request) -> str:
    """Why PyTorch's `varlen_attn` is not measured, or nothing."""
    if "window_size" not in _options_of_varlen():
        return f"PyTorch {torch.__version__} has none with windows"
    if request.q.dtype not in (torch.float16, torch.bfloat16):
        return f"it does not run in {request.q.dtype}"
    if request.group > 1 and "enable_gqa" not in _options_of_varlen():
        return f"PyTorch {torch.__version__} has none with key/value heads for groups"
    return ""


@functools.cache
def _options_of_varlen() -> frozenset[str]:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def varlen(window: int) -> Function:
    """All texts of a batch in one row, as FlashAttention has them; it counts the keys before."""
    from torch.nn.attention.varlen import varlen_attn

    packed: Callable[..., Tensor] = varlen_attn  # type: ignore[assignment]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, length, _ = q.shape
        ends = _ends(batch, length, q.device)
        grouped = {"enable_gqa": True} if heads != k.shape[1] else {}
        rows = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        out = packed(*rows, ends, ends, length, length, window_size=(window - 1, 0), **grouped)
        return out.unflatten(0, (batch, length)).transpose(1, 2)

    return attend


@functools.cache
def _ends(batch: int, length: int, device: torch.device) -> Tensor:
    return torch.arange(batch + 1, device=device, dtype=torch.int32) * length
