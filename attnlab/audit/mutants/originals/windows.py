"""Sliding windows: a query attends to its own key and the window - 1 before it.

Axes: b batch, h heads, t time, d head width, c width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class WindowAttention(nn.Module):
    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1])
        back = places[:, None] - places[None, :]
        seen = (back >= 0) & (back < self.window)
        if key_padding_mask is not None:
            seen = seen & ~key_padding_mask[:, None, None, :] | (back == 0)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.merge(out.transpose(1, 2).flatten(2))


def tiled_window_attention(q: Tensor, k: Tensor, v: Tensor, window: int = 6) -> Tensor:
    """Queries in tiles, each with the keys that its queries can attend to."""
    t, tile = q.shape[2], 8
    outs = []
    for start in range(0, t, tile):
        stop = min(start + tile, t)
        first = max(start - window + 1, 0)
        scores = q[:, :, start:stop] @ k[:, :, first:stop].mT / math.sqrt(q.shape[-1])
        back = torch.arange(start, stop)[:, None] - torch.arange(first, stop)
        scores = scores.masked_fill((back < 0) | (back >= window), -math.inf)
        outs.append(scores.softmax(-1) @ v[:, :, first:stop])
    return torch.cat(outs, dim=2)
