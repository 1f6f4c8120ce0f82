"""PyTorch's scaled_dot_product_attention: full attention fast, anything else through a dense mask.

Axes: b batch, h heads, q queries, e value width.
Cost: O(q · k) time; O(q · k) memory as soon as a mask is needed.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.kernels import reference
from attnlab.kernels.request import Request

# Not cuDNN: it plans its backward pass for the layout of the first gradient it meets, and reads all
# later ones of that shape as if they had it (torch 2.11; docs/notes.md)
TRUSTED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


FEW_KEYS = 16  # below, PyTorch's kernel for the CPU gives 0 where a score is NaN (torch 2.13)


def refusal(request: Request) -> str | None:
    if request.soft_cap is not None:
        return "PyTorch's SDPA caps no scores"
    if request.sinks is not None:
        return "PyTorch's SDPA has no sinks"
    return None


def needs_mask(request: Request) -> bool:
    """Whether PyTorch's own flags cannot express the mask."""
    if request.bias is not None or request.key_padding is not None or not request.is_band:
        return True
    if not request.covers_all_keys:
        return True
    # its causal flag lines up the first query with the first key; ours the last with the last
    return request.causal and request.queries not in (1, request.keys)


def attend(request: Request) -> Float[Tensor, "b h q e"]:
    if request.q.device.type == "cuda":
        with allowed_backends():
            return _attend(request)
    out = _attend(request)
    # On the CPU PyTorch takes scores as they are: one too large for the dtype makes a row NaN. (On
    # CUDA looking would mean waiting for the device, and scores are float32 there.)
    if torch.compiler.is_compiling():
        return out
    lost = _loses_nan(request.q, request.k)
    return reference.attend(request) if lost or _has_nan(out) else out


def _has_nan(out: Tensor) -> bool:
    """No tensor with a NaN equals itself: asked so, it makes no tensor of answers."""
    return not torch.equal(out, out)


def _loses_nan(q: Tensor, k: Tensor) -> bool:
    return k.shape[2] < FEW_KEYS and (_has_nan(q) or _has_nan(k))


def is_decoding(request: Request) -> bool:
    """Whether `decode` serves a request: one query on the CPU, without gradient."""
    q = request.q
    return (
        q.shape[2] == 1
        and q.is_cpu
        and not request.needs_grad
        and not request.dropout
        and not isinstance(request.bias, Tensor)
        and request.is_band
        and request.is_plain_softmax
        and 0 not in (q.shape[0], request.k.shape[2])
        and not torch.compiler.is_compiling()
    )


def decode(request: Request) -> Float[Tensor, "b h 1 e"]:
    """One query, the last: it attends to every key of its window that is not padding.

    So the mask is the padding and nothing else, and keys and values are used where they lie. What
    `attend` avoids beforehand shows here as a NaN in the output: a score too large for the dtype, a
    NaN where a key is padding, on some of PyTorch's paths a row without keys. Such a request, which
    is rare, goes to the definition.
    """
    q, k, v, window = request.q, request.k, request.v, request.window
    first = 0
    if window is not None:
        keys = window if isinstance(window, int) else request.mask.sides[0] + 1
        if keys < k.shape[2]:
            first = k.shape[2] - keys
            k, v = k.narrow(2, first, keys), v.narrow(2, first, keys)
    mask = _mask_of_one(request, first)
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=request.scale, enable_gqa=grouped
    )
    lost = _loses_nan(q, k)
    return reference.attend(request.clear_padding()) if lost or _has_nan(out) else out


def _mask_of_one(request: Request, first: int) -> Tensor | None:
    """Over the keys from `first` on, for a query that attends to all of them but the padding."""
    mask, padding = request.padding_mask, request.key_padding
    if mask is not None and first:
        mask = mask[..., first:]
    if mask is None and padding is not None:
        kept = ~(padding[:, first:] if first else padding)
        mask = kept.view(-1, 1, 1, kept.shape[1])
    if request.bias is None:
        return mask
    bias = request.dense_bias(keys=slice(first, None))
    assert bias is not None
    if mask is None:
        return bias
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask


def allowed_backends() -> AbstractContextManager[None]:
    """A choice of kernels that a person has made without cuDNN stays as it is."""
    if torch.compiler.is_compiling() or torch.backends.cuda.cudnn_sdp_enabled():
        return sdpa_kernel(TRUSTED)
    return nullcontext()


def _attend(request: Request) -> Float[Tensor, "b h q e"]:
    grouped = request.group > 1
    if not needs_mask(request):
        return F.scaled_dot_product_attention(
            request.q,
            request.k,
            request.v,
            dropout_p=request.dropout,
            is_causal=request.causal and request.queries > 1,
            scale=request.factor,
            enable_gqa=grouped,
        )
    seen, bias = request.visible(), request.dense_bias()
    if bias is not None:
        seen = seen & (bias > -float("inf"))
    blind = ~seen.any(-1, keepdim=True)
    mask = seen | blind  # a row without keys is NaN on some of PyTorch's paths
    if bias is not None:
        mask = bias.masked_fill(blind, 0).masked_fill(~mask, -float("inf")).to(request.q.dtype)
    out = F.scaled_dot_product_attention(
        request.q,
        request.k,
        request.v,
        attn_mask=mask,
        dropout_p=request.dropout,
        scale=request.factor,
        enable_gqa=grouped,
    )
    return out.masked_fill(blind, 0)
