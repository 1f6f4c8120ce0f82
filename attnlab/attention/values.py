"""Values beyond the projection of a token's vector: of the first layer, or of the token itself.

Axes: b batch, g key/value heads, t time, e value width.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class FirstValues(nn.Module):
    """(1 − λ) v + λ v₁: values mixed with those of the first layer, by a learned λ (Zhou et al.).

    One λ a layer, which starts at 1/2; the first layer has none and leaves its values behind.
    """

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.part = nn.Parameter(torch.full((1,), 0.5)) if layer else None

    def forward(self, v: Float[Tensor, "b g t e"], first: list[Tensor]) -> Float[Tensor, "b g t e"]:
        if self.part is None:
            first[:] = [v]
            return v
        if not first:
            raise ValueError(
                "value_residual mixes in values of the model's first layer, which has not run; "
                "call the whole model, or give the options that its first layer was given"
            )
        return v + self.part * (first[0] - v)


class TokenValues(nn.Module):
    """λ v + μ table[token]: values mixed with an embedding of the token (value embeddings).

    A table a layer, as wide as all its values; λ and μ are learned and start at 1/2, as in the
    speed runs of nanoGPT.
    """

    def __init__(self, vocabulary: int, heads: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, heads * width)
        self.parts = nn.Parameter(torch.full((2,), 0.5))

    def forward(
        self, v: Float[Tensor, "b g t e"], tokens: Int[Tensor, "b t"] | None
    ) -> Float[Tensor, "b g t e"]:
        if tokens is None:
            raise ValueError(
                "value_embedding needs the tokens, and a layer alone is given vectors; call the "
                "whole model, or give the layer options with tokens"
            )
        own = self.table(tokens).unflatten(-1, (v.shape[1], -1)).transpose(1, 2)
        return self.parts[0] * v + self.parts[1] * own
