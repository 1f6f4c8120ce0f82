"""Attention that sees the future by mistake: the mask's rows and columns are the wrong way round.

attnlab audit examples/leaky.py:LeakyAttention width=32 --declare causal=true
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LeakyAttention(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.merge(out.transpose(1, 2).flatten(2))
