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


def refusal(request: Request) -> str | None:
    return None


def needs_mask(request: Request) -> bool:
    """Whether PyTorch's own flags cannot say who sees whom."""
    if request.bias is not None or request.key_padding is not None or not request.sees_everything:
        return True
    # its causal flag lines up the first query with the first key; ours the last with the last
    return request.causal and request.queries not in (1, request.keys)


def attend(request: Request) -> Float[Tensor, "b h q e"]:
    if request.q.device.type == "cuda":
        with _trusted():
            return _attend(request)
    out = _attend(request)
    # On the CPU PyTorch takes scores as they are: one too large for the dtype makes a row NaN. (On
    # CUDA looking would mean waiting for the device, and scores are float32 there.)
    if not torch.compiler.is_compiling() and out.isnan().any():
        return reference.attend(request)
    return out


def _trusted() -> AbstractContextManager[None]:
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
