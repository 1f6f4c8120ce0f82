"""What training costs, counted before it begins.

A product of a matrix with n entries costs 2n operations a token, and twice that again on the way
back; attention costs 2 products of head_width a pair of query and key, likewise. Norms, activations
and the optimiser are left out: the usual convention.
"""

from torch import nn

from attnlab.attention.heads import head_width
from attnlab.models.recurrent import PrefixBidirectionalLM
from attnlab.models.transformer import Transformer


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def flops_per_token(model: nn.Module, context: int) -> float:
    """Operations of a training step for one token of a sample of `context` tokens."""
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    forward = 2.0 * linear
    if isinstance(model, Transformer):
        settings = model.settings
        width = settings.attention.heads * head_width(settings.attention, settings.width)
        for layer in range(settings.depth):
            forward += 4.0 * width * _keys_seen(context, settings.window_of(layer))
    if isinstance(model, PrefixBidirectionalLM) and model.settings.readout == "mean":
        back = model.network.back.from_hidden.weight.numel()
        join = model.network.from_ahead.weight.numel() + model.network.from_back.weight.numel()
        forward += 2.0 * (back + join) * (context - 1) / 2
    return 3.0 * forward


def _keys_seen(context: int, window: int | None) -> float:
    """Keys that a query sees, on average over a causal sample."""
    if window is None or window >= context:
        return (context + 1) / 2
    return window - window * (window - 1) / (2 * context)
