"""The same language model by other hands: fused projections, PyTorch's attention, complex numbers.

Axes: b batch, t time, h query heads, g key/value heads, d head width, c width, n pairs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.doctor.pairs.style import Style

ACTIVATIONS = {
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "gelu-tanh": nn.GELU(approximate="tanh"),
}


def turns(style: Style, length: int, shift: int) -> Tensor:
    """e^(i·angle) by position and pair, [t, n]"""
    n = style.rotated // 2
    rates = torch.tensor([style.base ** (-i / n) / style.factor for i in range(n)])
    angles = (torch.arange(length)[:, None] + shift) * rates.double()
    return torch.exp(1j * (-angles if style.backward else angles))


def rotated(x: Tensor, by: Tensor, style: Style) -> Tensor:
    head, rest = x[..., : style.rotated], x[..., style.rotated :]
    if style.layout == "interleaved":
        z = torch.view_as_complex(head.double().unflatten(-1, (-1, 2)).contiguous()) * by
        head = torch.view_as_real(z).flatten(-2)
    else:
        z = torch.complex(*head.double().chunk(2, -1)) * by
        head = torch.cat([z.real, z.imag], -1)
    return torch.cat([head.to(x.dtype), rest], -1)


class Layer(nn.Module):
    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = style
        total = (style.heads + 2 * style.kv_heads) * style.head_width
        inner = 2 * style.hidden if style.gated else style.hidden
        norm = nn.LayerNorm if style.norm == "layer" else nn.RMSNorm
        self.ln_1 = norm(style.width, eps=style.epsilon)
        self.fused, self.out = ("attn", "proj") if style.lit else ("c_attn", "c_proj")
        self.attn = nn.ModuleDict(
            {
                self.fused: nn.Linear(style.width, total, bias=style.bias),
                self.out: nn.Linear(style.width, style.width, bias=style.bias),
            }
        )
        self.ln_2 = norm(style.width, eps=style.epsilon)
        wide = {"fc_1": style.hidden, "fc_2": style.hidden} if style.lit else {"c_fc": inner}
        self.mlp = nn.ModuleDict(
            {name: nn.Linear(style.width, size, bias=style.bias) for name, size in wide.items()}
        )
        self.mlp[self.out] = nn.Linear(style.hidden, style.width, bias=style.bias)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        style = self.style
        h, g, d, group = (
            style.heads,
            style.kv_heads,
            style.head_width,
            style.heads // style.kv_heads,
        )
        fused = self.attn[self.fused](self.ln_1(x))
        if style.fused == "kind":
            q, k, v = fused.split([h * d, g * d, g * d], -1)
            q, k, v = (one.unflatten(-1, (-1, d)).transpose(1, 2) for one in (q, k, v))
        else:
            by_group = fused.unflatten(-1, (g, group + 2, d)).permute(0, 2, 3, 1, 4)
            q = by_group[:, :, :group].flatten(1, 2)
            k, v = by_group[:, :, group], by_group[:, :, group + 1]
        if style.positions == "rotary":
            q = rotated(q, turns(style, x.shape[1], style.shift + style.query_shift), style)
            k = rotated(k, turns(style, x.shape[1], style.shift), style)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=style.scale, enable_gqa=True
        )
        x = x + self.attn[self.out](y.transpose(1, 2).flatten(2))
        given = self.ln_2(x)
        inner = torch.cat([one(given) for name, one in self.mlp.items() if name != self.out], -1)
        act = ACTIVATIONS[style.activation]
        if style.gated:
            gate, up = inner.chunk(2, -1)
            gate, up = (up, gate) if style.gate_last else (gate, up)
            inner = act(gate) * up
        else:
            inner = act(inner)
        return x + self.mlp[self.out](inner)


class Compact(nn.Module):
    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style, self.block_size = style, style.context
        self.wte = nn.Embedding(style.vocabulary, style.width)
        if style.positions == "learned":
            self.wpe = nn.Embedding(style.context + style.first_row, style.width)
        self.h = nn.ModuleList(Layer(style) for _ in range(style.depth))
        norm = nn.LayerNorm if style.norm == "layer" else nn.RMSNorm
        self.ln_f = norm(style.width, eps=style.epsilon)
        self.lm_head = nn.Linear(style.width, style.vocabulary, bias=False)
        if style.tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        length = idx.shape[1]
        x = self.wte(idx)
        if self.style.positions == "learned":
            x = x + self.wpe(torch.arange(length) + self.style.first_row)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        if self.style.window is not None:
            mask = mask.triu(1 - self.style.window)
        mask = mask.expand(len(idx), 1, -1, -1)
        if attention_mask is not None:
            mask = mask & (attention_mask == 1)[:, None, None]
        for layer in self.h:
            x = layer(x, mask)
        return self.lm_head(self.ln_f(x))
