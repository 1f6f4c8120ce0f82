"""Attention of one's own: scores fall with distance, and each head learns how fast.

    attnlab train tiny model.attention=examples/mine.py:Mine model.attention.slope=0.2
    attnlab compare tiny tiny:model.attention=examples/mine.py:Mine

Axes of q, k, v: b batch, h heads, t time, d head width.
"""

import torch
from torch import Tensor, nn


class Mine(nn.Module):
    def __init__(self, heads: int, slope: float = 0.1) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.full((heads, 1, 1), slope))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        time = torch.arange(q.shape[2], device=q.device)
        distance = time[:, None] - time
        scores = q @ k.mT / q.shape[3] ** 0.5 - self.slope * distance
        return scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v
