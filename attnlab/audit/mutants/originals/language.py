"""A language model of two layers with its loss, and training in parts.

Axes: b batch, t time, c width, v vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def attend(self, x: Tensor, padding: Tensor | None) -> Tensor:
        t = x.shape[1]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        if padding is not None:
            seen = seen & ~padding[:, None, None, :] | torch.eye(t, dtype=torch.bool)
        drop = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=drop)
        return self.merge(out.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        x = x + self.attend(self.norm(x), padding)
        return x + self.down(F.gelu(self.up(self.after(x))))


class Language(nn.Module):
    """Learned positions; labels are the text itself, and the shift is made here."""

    def __init__(self, vocab_size: int = 37, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.vocab_size, self.depth = vocab_size, 2
        self.embed = nn.Embedding(vocab_size, width)
        self.place = nn.Embedding(160, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(self.depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size)

    def forward(
        self,
        input_ids: Tensor,
        key_padding_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        places = torch.arange(input_ids.shape[1])[None]
        if key_padding_mask is not None:  # counted from the first token that is none
            places = ((~key_padding_mask).cumsum(1) - 1).clamp(min=0)
        x = self.embed(input_ids) + self.place(places)
        for block in self.blocks:
            x = block(x, key_padding_mask)
        logits = self.head(self.norm(x))
        if labels is None:
            return logits
        guesses, wanted = logits[:, :-1], labels[:, 1:]
        loss = F.cross_entropy(guesses.flatten(0, 1), wanted.flatten())
        return loss, logits


class Accumulating(nn.Module):
    """Works through a batch in parts: the gradient is that of the whole."""

    def __init__(self, vocab_size: int = 37, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + out[:, 0])

    def loss(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        labels = tokens if padding is None else tokens.masked_fill(padding, -100)
        guesses = self(tokens)[:, :-1]
        return F.cross_entropy(guesses.flatten(0, 1), labels[:, 1:].flatten())

    def accumulate(self, tokens: Tensor, parts: int, padding: Tensor | None = None) -> None:
        labels = tokens if padding is None else tokens.masked_fill(padding, -100)
        count = (labels[:, 1:] != -100).sum()
        for some, wanted in zip(tokens.chunk(parts), labels.chunk(parts), strict=True):
            guesses, targets = self(some)[:, :-1].flatten(0, 1), wanted[:, 1:].flatten()
            loss = F.cross_entropy(guesses, targets, reduction="sum") / count
            loss.backward()
