"""Banded attention as one differentiable operation; engines: native (C) and tiled (PyTorch).

Axes: b batch, h query heads, g key/value heads, q queries, k keys, e value width.

Registered with torch.library, so that autograd, torch.compile and gradcheck all see one operation.
It has no second derivative.
"""

from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.kernels import native, tiled
from attnlab.kernels.band import Band, Ranges, band_of
from attnlab.kernels.request import Request

_ENGINES: dict[str, ModuleType] = {"native": native, "tiled": tiled}


def refusal(request: Request, engine: str) -> str | None:
    if request.dropout:
        return "it leaves out no weights at random"
    if isinstance(request.bias, Tensor):
        return "a bias given as a tensor is dense"
    if engine == "native":
        if request.q.device.type != "cpu":
            return f"compiled C runs on the CPU, not on {request.q.device.type}"
        return native.why_unavailable()
    return None


def attend(request: Request, engine: str) -> Float[Tensor, "b h q e"]:
    band = band_of(request)
    out, _ = _forward(
        band.q,
        band.k,
        band.v,
        band.table,
        band.sinks,
        band.padding,
        band.mask.ranges(),
        band.scale,
        band.cap,
        band.zero,
        engine,
    )
    return out


@torch.library.custom_op("attnlab::banded", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor | None,
    sinks: Tensor | None,
    padding: Tensor | None,
    ranges: Tensor,
    scale: float,
    cap: float,
    zero: int,
    engine: str,
) -> tuple[Tensor, Tensor]:
    band = _band(q, k, v, table, sinks, padding, ranges, scale, cap, zero)
    return _ENGINES[engine].forward(band)


@torch.library.custom_op("attnlab::banded_backward", mutates_args=())
def _backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax: Tensor,
    table: Tensor | None,
    sinks: Tensor | None,
    padding: Tensor | None,
    ranges: Tensor,
    scale: float,
    cap: float,
    zero: int,
    engine: str,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, the table (empty unless it is learned) and the sinks."""
    band = _band(q, k, v, table, sinks, padding, ranges, scale, cap, zero)
    return _ENGINES[engine].backward(band, out, softmax, grad_out, learned)


def _band(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor | None,
    sinks: Tensor | None,
    padding: Tensor | None,
    ranges: Tensor,
    scale: float,
    cap: float,
    zero: int,
) -> Band:
    return Band(
        q=q,
        k=k,
        v=v,
        mask=Ranges(ranges),
        scale=scale,
        cap=cap,
        table=table,
        zero=zero,
        sinks=sinks,
        padding=padding,
    )


@_forward.register_fake
def _(q, k, v, table, sinks, padding, ranges, scale, cap, zero, engine):  # type: ignore[no-untyped-def]
    out = q.new_empty(*q.shape[:3], v.shape[3])
    if engine == "tiled":
        return out, q.new_empty(*q.shape[:3], 0)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return out, q.new_empty(*q.shape[:3], 2, dtype=wide)


@_backward.register_fake
def _(grad_out, q, k, v, out, softmax, table, sinks, *rest):  # type: ignore[no-untyped-def]
    learned = rest[-1]
    grad_table = torch.empty_like(table) if learned else q.new_empty(0)
    grad_sinks = q.new_empty(0) if sinks is None else torch.empty_like(sinks)
    grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    return *grads, grad_table, grad_sinks


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, table, sinks, padding, ranges, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, *output, table, sinks, padding, ranges)


def _differentiate(ctx, grad_out, _):  # type: ignore[no-untyped-def]
    saved = ctx.saved_tensors  # once: gradient checkpointing computes them when they are asked for
    learned, sunk = ctx.needs_input_grad[3], saved[6] is not None
    *grads, of_table, of_sinks = _backward(grad_out, *saved, *ctx.rest, learned)
    rest = (None,) * 6
    return *grads, of_table if learned else None, of_sinks if sunk else None, *rest


torch.library.register_autograd("attnlab::banded", _differentiate, setup_context=_save)
