"""The definition of attention, dense and slow on purpose: every other path equals this one.

    out[i] = Σ_j softmax_j(cap(scale · q[i]·k[j]) + bias[i, j]) · v[j],  over the keys i attends to

With a sink the softmax has one more score, the head's own, and that part of the weight is lost.

Axes: b batch, h heads, q queries, k keys, e value width.
Cost: O(q · k) time and memory.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab.kernels.request import ALL, Request


def refusal(request: Request) -> str | None:
    return None


def attend(request: Request) -> Float[Tensor, "b h q e"]:
    return attend_with_weights(request)[0]


def attend_with_weights(
    request: Request,
) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q k"]]:
    """The output, and the weight of each key for each query: 0 where it does not attend to it."""
    k = request.k.repeat_interleave(request.group, dim=1)
    v = request.v.repeat_interleave(request.group, dim=1)
    scores = request.q @ k.transpose(-1, -2) * request.factor
    weights = weights_of(scores, request)
    return weights @ v, weights


def weights_of(
    scores: Float[Tensor, "b h _q _k"], request: Request, queries: slice = ALL, keys: slice = ALL
) -> Float[Tensor, "b h _q _k"]:
    """Of the scores of all or some queries and keys; of these, all that such a query attends to."""
    if request.soft_cap is not None:
        scores = request.soft_cap * (scores / request.soft_cap).tanh()
    mask, bias = request.visible(queries, keys), request.dense_bias(queries, keys)
    return F.dropout(masked_softmax(scores, mask, bias, request.sinks), request.dropout)


def masked_softmax(
    scores: Float[Tensor, "*batch q k"],
    mask: Bool[Tensor, "..."],
    bias: Float[Tensor, "..."] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "*batch q k"]:
    """Weights where `mask` is True; a row that attends to no key is 0 and has zero gradient."""
    if bias is not None:
        scores = scores + bias
        mask = mask & (bias > -torch.inf)  # minus infinity in a bias is a mask
    largest = torch.finfo(scores.dtype).max
    scores = scores.clamp(-largest, largest)  # infinite scores would give inf - inf = NaN
    blind = ~mask.any(-1, keepdim=True)
    # softmax over nothing but -inf is NaN, also in its gradient: such a row gets zeros as scores
    scores = scores.masked_fill(~mask, -torch.inf).masked_fill(blind, 0)
    if sinks is None:
        return scores.softmax(-1).masked_fill(blind, 0)
    sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sink), -1).softmax(-1)[..., :-1].masked_fill(blind, 0)
