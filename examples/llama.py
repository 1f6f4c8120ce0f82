"""A Llama written by hand, as its first authors wrote it: neighbouring coordinates turn together.

`attnlab diff hf:llama examples/llama.py:Llama` says why it is not the one of transformers.
"""

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.group, self.size = heads // kv_heads, width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.size, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.size, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            one(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for one in (self.wq, self.wk, self.wv)
        )
        k, v = (one.repeat_interleave(self.group, 1) for one in (rotate(k), v))
        out = nn.functional.scaled_dot_product_attention(rotate(q), k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).flatten(2))


def rotate(x: Tensor) -> Tensor:
    time, size = x.shape[2:]
    rates = 10_000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(time), rates).to(x)
    one, two = x[..., 0::2], x[..., 1::2]
    turned = one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()
    return torch.stack(turned, -1).flatten(-2)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-6)
        self.attention = Attention(width, heads, kv_heads)
        self.ffn_norm = nn.RMSNorm(width, eps=1e-6)
        self.w1, self.w3 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        y = self.ffn_norm(x)
        return x + self.w2(nn.functional.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    def __init__(self, vocabulary=104, width=32, depth=2, heads=4, kv_heads=2, hidden=48) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))
