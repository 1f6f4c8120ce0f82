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
from attnlab.kernels.band import Band
from attnlab.kernels.request import LinearBias, Request

_ENGINES: dict[str, ModuleType] = {"native": native, "tiled": tiled}


def refusal(request: Request, engine: str) -> str | None:
    if request.dropout:
        return "it leaves out no weights at random"
    if isinstance(request.bias, Tensor):
        return "a bias given as a tensor is dense"
    if request.bias is not None and request.needs_grad and request.bias.slopes.requires_grad:
        return "it has no gradient for the slopes of a bias"
    if engine == "native":
        if request.q.device.type != "cpu":
            return f"compiled C runs on the CPU, not on {request.q.device.type}"
        return native.why_unavailable()
    return None


def attend(request: Request, engine: str) -> Float[Tensor, "b h q e"]:
    left, right = request.band
    slopes = request.bias.slopes if isinstance(request.bias, LinearBias) else None
    q, k, v = request.q, request.k, request.v
    out, _ = _forward(
        q, k, v, slopes, request.key_padding, left, right, float(request.factor), engine
    )
    return out


@torch.library.custom_op("attnlab::banded", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor | None,
    padding: Tensor | None,
    left: int,
    right: int,
    scale: float,
    engine: str,
) -> tuple[Tensor, Tensor]:
    return _ENGINES[engine].forward(Band(q, k, v, slopes, padding, left, right, scale))


@torch.library.custom_op("attnlab::banded_backward", mutates_args=())
def _backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax: Tensor,
    slopes: Tensor | None,
    padding: Tensor | None,
    left: int,
    right: int,
    scale: float,
    engine: str,
) -> tuple[Tensor, Tensor, Tensor]:
    band = Band(q, k, v, slopes, padding, left, right, scale)
    return _ENGINES[engine].backward(band, out, softmax, grad_out)


@_forward.register_fake
def _(q, k, v, slopes, padding, left, right, scale, engine):  # type: ignore[no-untyped-def]
    out = q.new_empty(*q.shape[:3], v.shape[3])
    if engine == "tiled":
        return out, q.new_empty(*q.shape[:3], 0)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return out, q.new_empty(*q.shape[:3], 2, dtype=wide)


@_backward.register_fake
def _(grad_out, q, k, v, *rest):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, slopes, padding, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, *output, slopes, padding)


def _differentiate(ctx, grad_out, _):  # type: ignore[no-untyped-def]
    grads = _backward(grad_out, *ctx.saved_tensors, *ctx.rest)
    return *grads, None, None, None, None, None, None


torch.library.register_autograd("attnlab::banded", _differentiate, setup_context=_save)
