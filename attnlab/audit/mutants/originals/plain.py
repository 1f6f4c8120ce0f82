"""Plain attention: of x with a padding mask, by einsum, by PyTorch's own function, packed.

Axes: b batch, h heads, t time, d head width, c width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.width, self.heads, self.head_width = width, heads, width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.merge = nn.Linear(width, width)
        self.dropout = dropout

    def split(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        return x.view(b, t, self.heads, self.head_width).transpose(1, 2)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_width)
        if key_padding_mask is not None:
            lowest = torch.finfo(scores.dtype).min
            scores = scores.masked_fill(key_padding_mask[:, None, None, :], lowest)
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
        weights = scores.softmax(dim=-1)
        weights = F.dropout(weights, self.dropout, training=self.training)
        out = weights @ v
        return self.merge(out.transpose(1, 2).reshape(b, t, c))


class MaskedSdpa(nn.Module):
    """PyTorch's own function, given a mask of what is seen: the past that is no padding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        t = x.shape[1]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(t)
        seen = places[None, :] <= places[:, None]
        if attention_mask is not None:
            own = torch.eye(t, dtype=torch.bool)
            seen = seen & attention_mask[:, None, None, :].bool() | own
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.merge(out.transpose(1, 2).flatten(2))


class PackedAttention(nn.Module):
    """Several texts in a row, told apart by their numbers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def forward(self, x: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        t = x.shape[1]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        if segment_ids is not None:
            seen = seen & (segment_ids[:, None, :, None] == segment_ids[:, None, None, :])
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.merge(out.transpose(1, 2).flatten(2))


def einsum_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    t, scale = q.shape[2], q.shape[-1] ** -0.5
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * scale
    seen = torch.ones(t, t, dtype=torch.bool).tril()
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)
