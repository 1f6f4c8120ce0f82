"""Where weights begin: normal numbers of 0.02, except in code of a person's own."""

import math
from collections.abc import Collection

from torch import nn

from attnlab.attention.heads import HeadedAttention
from attnlab.attention.own import OwnLayer, OwnPositionsModule, OwnScoreModule, PlainModule

STD = 0.02


def initialise(model: nn.Module, depth: int, *, flat: bool, own: Collection[nn.Module]) -> None:
    """What adds to the residual stream is smaller the deeper the model is.

    With `flat`, as in the first minGPT, that is no smaller than the rest. `own` are attentions that
    a person's code has made.
    """
    deep = STD if flat else STD / math.sqrt(2 * depth)
    theirs = {
        inside
        for module in model.modules()
        if isinstance(module, PlainModule | OwnScoreModule | OwnPositionsModule)
        or (module in own and not isinstance(module, HeadedAttention | OwnLayer))
        for inside in module.modules()
    }
    for name, module in model.named_modules():
        if module in theirs:  # their code begins as it wants to
            continue
        if isinstance(module, nn.Linear | nn.Embedding):
            into_stream = name.endswith(("merge", "down"))
            nn.init.normal_(module.weight, std=deep if into_stream else STD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
