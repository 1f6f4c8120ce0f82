"""The loss of a large vocabulary: output layer and cross-entropy, a chunk of rows at a time.

Axes: n rows (tokens of a batch), c width, v vocabulary.

    loss = sum over rows of -log softmax(cap · tanh((x Wᵀ + b) / cap))[target]

Logits are never there for all rows at once. The gradients of x, W and b are computed from those of
a chunk while they are there, and wait for the backward pass, which scales them. So nothing is
computed twice. Memory at the peak, measured on a CPU: forward, three chunks and a gradient of W and
of x; backward, three gradients of W and of x.

Registered with torch.library, so that autograd and torch.compile see one operation: a compiler that
saw into it would keep the logits of all chunks. It has no second derivative.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnlab.data.batches import IGNORE

# Bytes of logits in float32. Up to LARGE they are computed at once. On a CPU a chunk stays below
# 32 MiB, beyond which glibc maps fresh pages for every tensor, and near its caches (docs/notes.md).
# The sizes for CUDA are not measured: few chunks, since each of them reads and writes the gradient
# of W, and little beside the memory of a GPU.
LARGE = {"cpu": 1 << 27, "cuda": 1 << 30}
CHUNK = {"cpu": 30 << 20, "cuda": 1 << 29}


def is_large(rows: int, vocabulary: int, device: str) -> bool:
    """Whether logits are too many to be there at once, on such a device."""
    return 4 * rows * vocabulary > LARGE[device]


def head_loss(
    x: Float[Tensor, "*n c"],
    head: nn.Linear,
    targets: Int[Tensor, "*n"],
    cap: float | None = None,
) -> Float[Tensor, ""]:
    """Sum of the nats over all targets that are not IGNORE.

    By the plain definition where the head is another class, or somebody has hooks on it.
    """
    if targets.shape != x.shape[:-1]:
        raise ValueError(
            f"targets have shape {list(targets.shape)}; there is one for each row of logits: "
            f"{list(x.shape[:-1])}"
        )
    kind = x.device.type
    if not (kind in CHUNK and _is_plain(head)):
        return _at_once(head(x), targets, cap)
    if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:  # which it leaves alone
        x = x.to(torch.get_autocast_dtype(kind))
    rows = max(CHUNK[kind] // (4 * head.out_features), 1)
    compiled = torch.compiler.is_compiling()
    flat, chosen = x.flatten(0, -2), targets.flatten()
    loss: Tensor = _chunked(flat, head.weight, head.bias, chosen, cap, rows, compiled)[0]
    return loss


def _is_plain(head: nn.Linear) -> bool:
    hooks = (head._forward_hooks, head._forward_pre_hooks, head._backward_hooks)
    return type(head) is nn.Linear and not any((*hooks, head._backward_pre_hooks))


def _at_once(logits: Tensor, targets: Tensor, cap: float | None) -> Tensor:
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    wide = logits.to(_wide(logits)).flatten(0, -2)
    return F.cross_entropy(wide, targets.flatten(), ignore_index=IGNORE, reduction="sum")


@torch.library.custom_op("attnlab::head_loss", mutates_args=())
def _chunked(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    cap: float | None,
    rows: int,
    compiled: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and the gradients of x, weight and bias for a factor of 1.

    Products in the dtype of x, all else in float32 or wider, sums over chunks too.
    """
    terms = _compiled() if compiled else _terms
    wide = _wide(x)
    with torch.autocast(x.device.type, enabled=False):
        matrix = weight.to(x.dtype)
        offsets = None if bias is None else bias.to(x.dtype)
        scored = targets != IGNORE
        x = torch.where(scored[:, None], x, 0)  # whatever it holds: it takes no part
        loss = torch.zeros((), dtype=wide, device=x.device)
        of_x = torch.empty_like(x)
        of_weight = torch.zeros_like(weight, dtype=wide)
        of_bias = torch.zeros(0 if bias is None else len(bias), dtype=wide, device=x.device)
        for start in range(0, len(x), rows):
            part = slice(start, start + rows)
            logits = F.linear(x[part], matrix, offsets)
            nats, of_logits = terms(logits, targets[part], cap)
            loss += nats
            torch.mm(of_logits, matrix, out=of_x[part])
            if of_logits.dtype == wide:
                of_weight.addmm_(of_logits.T, x[part])
            else:
                of_weight += of_logits.T @ x[part]
            if bias is not None:
                of_bias += of_logits.T.to(wide) @ scored[part].to(wide)
        of_x.masked_fill_(~scored[:, None], 0)
        return loss, of_x, of_weight.to(weight.dtype), of_bias.to(weight.dtype)


def _terms(
    logits: Float[Tensor, "n v"], targets: Int[Tensor, " n"], cap: float | None
) -> tuple[Float[Tensor, ""], Float[Tensor, "n v"]]:
    """The nats of a chunk, and their gradient in the dtype of the logits; not 0 where IGNORE is."""
    dtype, wide, scored = logits.dtype, _wide(logits), targets != IGNORE
    logits = logits.to(wide)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    logs = F.log_softmax(logits, -1)
    where = targets.where(scored, 0)[:, None]
    chosen = logs.gather(-1, where)
    gradient = logs.exp_().scatter_(-1, where, chosen.expm1())  # softmax, less 1 at the target
    if cap is not None:
        gradient *= 1 - (logits / cap) ** 2
    return -chosen[:, 0].where(scored, 0).sum(), gradient.to(dtype)


@cache
def _compiled() -> Callable[[Tensor, Tensor, float | None], tuple[Tensor, Tensor]]:
    return torch.compile(_terms, dynamic=False)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


@_chunked.register_fake
def _(x, weight, bias, *rest):  # type: ignore[no-untyped-def]
    of_bias = weight.new_empty(0 if bias is None else len(bias))
    return x.new_empty((), dtype=_wide(x)), torch.empty_like(x), torch.empty_like(weight), of_bias


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    _, *gradients = output
    ctx.biased = inputs[2] is not None
    ctx.mark_non_differentiable(*gradients)
    ctx.save_for_backward(*gradients)


@once_differentiable  # type: ignore[untyped-decorator]
def _differentiate(ctx, grad, *_):  # type: ignore[no-untyped-def]
    of_x, of_weight, of_bias = (grad * one for one in ctx.saved_tensors)
    return of_x, of_weight, of_bias if ctx.biased else None, None, None, None, None


torch.library.register_autograd("attnlab::head_loss", _differentiate, setup_context=_save)
