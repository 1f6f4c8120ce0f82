"""Banded attention as one differentiable operation; engines: native (C), tiled (PyTorch), triton.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, e value width.

Registered with torch.library, so that autograd, torch.compile and gradcheck all see one operation.
It has no second derivative.
"""

from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.kernels import native, tiled
from attnlab.kernels.band import Band, Ranges, band_of, laid_out_as
from attnlab.kernels.mask import Mask, Reach
from attnlab.kernels.request import Request
from attnlab.kernels.rotary import Rotation
from attnlab.kernels.triton import engine as on_cuda

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
    return on_cuda.refusal(request) if engine == "triton" else None


def attend(request: Request, engine: str) -> Float[Tensor, "b h q e"]:
    band = band_of(request, slopes=engine == "triton")
    mask, rotary = band.mask, band.rotary
    assert isinstance(mask, Mask)
    out, _, _ = _forward(
        band.q,
        band.k,
        band.v,
        band.table,
        band.sinks,
        band.padding,
        None if mask.is_band else mask.ranges(),
        None if rotary is None else rotary.cos,
        None if rotary is None else rotary.sin,
        *mask.sides,
        band.scale,
        band.cap,
        band.zero,
        rotary is not None and rotary.layout == "interleaved",
        engine,
        not request.needs_grad,
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
    ranges: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    before: int,
    after: int,
    scale: float,
    cap: float,
    zero: int,
    interleaved: bool,
    engine: str,
    alone: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, what its gradient needs of the softmax, and the keys if they were turned here.

    Without `ranges` a query attends to so many keys before and after its own. `alone`: no gradient
    will be asked for.
    """
    band = _band(
        q,
        k,
        v,
        table,
        sinks,
        padding,
        ranges,
        cos,
        sin,
        before,
        after,
        scale,
        cap,
        zero,
        interleaved,
    )
    if engine == "triton":
        return on_cuda.forward(band, alone)
    return *_ENGINES[engine].forward(band), q.new_empty(0)


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
    ranges: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    before: int,
    after: int,
    scale: float,
    cap: float,
    zero: int,
    interleaved: bool,
    engine: str,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, the table (empty unless it is learned) and the sinks.

    With cos and sin k comes turned, as the forward pass has it.
    """
    band = _band(
        q,
        k,
        v,
        table,
        sinks,
        padding,
        ranges,
        cos,
        sin,
        before,
        after,
        scale,
        cap,
        zero,
        interleaved,
    )
    if engine == "triton":
        return on_cuda.backward(band, out, softmax, grad_out, learned)
    return _ENGINES[engine].backward(band, out, softmax, grad_out, learned)


def _band(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor | None,
    sinks: Tensor | None,
    padding: Tensor | None,
    ranges: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    before: int,
    after: int,
    scale: float,
    cap: float,
    zero: int,
    interleaved: bool,
) -> Band:
    mask: Mask | Ranges
    if ranges is not None:
        mask = Ranges(ranges)
    else:
        reach = Reach(before=before, after=after)
        mask = Mask(
            queries=q.shape[2], keys=k.shape[2], device=q.device, causal=False, window=reach
        )
    rotary = None
    if cos is not None and sin is not None:
        rotary = Rotation(cos, sin, "interleaved" if interleaved else "half-split")
    return Band(
        q=q,
        k=k,
        v=v,
        mask=mask,
        scale=scale,
        cap=cap,
        table=table,
        zero=zero,
        sinks=sinks,
        padding=padding,
        rotary=rotary,
    )


@_forward.register_fake
def _(q, k, v, table, sinks, padding, ranges, cos, *rest):  # type: ignore[no-untyped-def]
    engine, empty = rest[-2], q.new_empty(0)
    if engine == "triton":
        stats = q.new_empty(2 if sinks is None else 3, *q.shape[:3], dtype=torch.float32)
        turned = empty if cos is None else laid_out_as(k, k.shape[3])
        return laid_out_as(q, v.shape[3]), stats, turned
    out = q.new_empty(*q.shape[:3], v.shape[3])
    if engine == "tiled":
        return out, q.new_empty(*q.shape[:3], 0), empty
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return out, q.new_empty(*q.shape[:3], 2, dtype=wide), empty


@_backward.register_fake
def _(grad_out, q, k, v, out, softmax, table, sinks, *rest):  # type: ignore[no-untyped-def]
    engine, learned = rest[-2:]
    grad_table = torch.empty_like(table) if learned else q.new_empty(0)
    grad_sinks = q.new_empty(0) if sinks is None else torch.empty_like(sinks)
    if engine == "triton":
        grads = [laid_out_as(x, x.shape[3]) for x in (q, k, v)]
    else:
        grads = [torch.empty_like(x) for x in (q, k, v)]
    return *grads, grad_table, grad_sinks


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, table, sinks, padding, ranges, cos, sin, *ctx.rest, _ = inputs
    out, softmax, turned = output
    k = k if cos is None else turned
    ctx.save_for_backward(q, k, v, out, softmax, table, sinks, padding, ranges, cos, sin)


def _differentiate(ctx, grad_out, *_):  # type: ignore[no-untyped-def]
    saved = ctx.saved_tensors  # once: gradient checkpointing computes them when they are asked for
    learned, sunk = ctx.needs_input_grad[3], saved[6] is not None
    *grads, of_table, of_sinks = _backward(grad_out, *saved, *ctx.rest, learned)
    rest = (None,) * 12
    return *grads, of_table if learned else None, of_sinks if sunk else None, *rest


torch.library.register_autograd("attnlab::banded", _differentiate, setup_context=_save)
