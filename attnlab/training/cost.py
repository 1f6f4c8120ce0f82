"""What training costs, counted before it begins: operations in products of matrices.

A product of a matrix with n entries costs 2n operations a token, and twice that again on the way
back. Attention is counted by its score (attention/scores.py), for the pairs of query and key that
attend to each other, and with what its backward pass computes again. Everything elementwise is left
out, as torch.utils.flop_counter does: norms, activations, softmax, the tanh of the additive score,
the optimiser. A step may therefore take longer than its operations say: match=seconds counts time.
"""

from typing import Any

from torch import nn

from attnlab.models.recurrent import PrefixBidirectionalLM
from attnlab.models.transformer import Transformer


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def flops_per_token(model: nn.Module, context: int) -> float:
    """Operations of a training step for one token of a sample of `context` tokens."""
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    found = 3 * 2.0 * linear
    if isinstance(model, Transformer):
        for block in model.blocks:
            heads: Any = block.attention
            keys = _keys_seen(context, heads.window)
            found += heads.heads * heads.score.operations(heads.head_width, keys).training
    if isinstance(model, PrefixBidirectionalLM) and model.settings.readout == "mean":
        back = model.network.back.from_hidden.weight.numel()
        join = model.network.from_ahead.weight.numel() + model.network.from_back.weight.numel()
        found += 3 * 2.0 * (back + join) * (context - 1) / 2
    return found


def _keys_seen(context: int, window: int | None) -> float:
    """Keys that a query sees, on average over a causal sample."""
    if window is None or window >= context:
        return (context + 1) / 2
    return window - window * (window - 1) / (2 * context)
