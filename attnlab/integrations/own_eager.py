"""Whether a model's own eager attention is the one that ours computes: asked once, on few numbers.

An attention of `transformers` is told queries, keys, values, a mask and some options. What else a
model's eager attention does (a sink that it reads from its layer, a factor of its own) it does not
tell. So the first call of each layer, with each set of options, is tried on small random tensors
against the model's own function, and a layer that differs is refused.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

QUERIES, KEYS = 3, 5  # of the trial, if there are so many
LIMIT = 1e-4  # of float32 numbers of the size of 1; a wrong convention is off by a tenth or more
Attend = Callable[..., Tensor]
_known: WeakKeyDictionary[nn.Module, dict[tuple[str, ...], str | None]] = WeakKeyDictionary()


def disagreement(
    module: nn.Module,
    attend: Attend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Mapping[str, Any],
    more: Mapping[str, Any],
) -> str | None:
    """Why a layer's own attention is not ours; None if it is. `more` is told to its own only."""
    known, given = _known.setdefault(module, {}), tuple(options)
    if given not in known:
        known[given] = _trial(module, attend, q, k, v, options, more)
    return known[given]


def _trial(
    module: nn.Module,
    attend: Attend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Mapping[str, Any],
    more: Mapping[str, Any],
) -> str | None:
    own = _eager_functions(module)
    if not own:
        return None  # it has none: nothing is meant but the definition
    queries, keys = min(QUERIES, q.shape[2]), min(KEYS, k.shape[2])
    rng = torch.Generator().manual_seed(0)
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32

    def small(x: Tensor, time: int) -> Tensor:
        return torch.randn(1, x.shape[1], time, x.shape[3], generator=rng).to(x.device, dtype)

    three = small(q, queries), small(k, keys), small(v, keys)
    mask = torch.zeros(1, 1, queries, keys, dtype=dtype, device=q.device)
    mask[..., 0, keys - 1 :] = torch.finfo(dtype).min if keys > 1 else 0.0
    cut = dict(options)
    bias = cut.get("position_bias")
    if bias is not None:
        cut["position_bias"] = bias[:1, :, -queries:, -keys:].detach().to(dtype)
    said = []
    with torch.no_grad():
        ours = attend(*three, mask, **cut)
        for function in own:
            try:
                found = function(module, *three, mask, dropout=0.0, **cut, **more)[0]
                off = float((found.to(dtype).reshape(ours.shape) - ours).abs().max())
            except Exception as error:  # a stranger's code
                said.append(f"{type(error).__name__} in {function.__name__}")
                continue
            if off <= LIMIT:
                return None
            said.append(f"{function.__name__} differs from it by {off:.1e} on a trial")
    return "; ".join(said)


def _eager_functions(module: nn.Module) -> list[Callable[..., Any]]:
    """Those in the file of the layer, its classes' before it."""
    found: dict[str, Callable[..., Any]] = {}
    for one in type(module).__mro__:
        if one is nn.Module:
            break
        file = sys.modules.get(one.__module__)
        for name, value in vars(file).items() if file is not None else ():
            if name.endswith("eager_attention_forward") and callable(value):
                found.setdefault(f"{one.__module__}.{name}", value)
    return list(found.values())
