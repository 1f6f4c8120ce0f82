"""Head bugs: which head reads which, what scores are divided by, and axes that got mixed up.

Axes: b batch, h query heads, g key/value heads, t time, d head width, c width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs.cases import CAUSAL, Case
from attnlab.audit.bugs.fused import Fused


def _shared(wrong: bool) -> object:
    """Query heads that share a key head stand side by side."""

    def grouped_query_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n_rep = q.size(1) // k.size(1)
        if wrong:
            k, v = k.repeat(1, n_rep, 1, 1), v.repeat(1, n_rep, 1, 1)
        else:
            k, v = k.repeat_interleave(n_rep, dim=1), v.repeat_interleave(n_rep, dim=1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return grouped_query_attention


class HeadLoop(nn.Module):
    """Head by head, as a kernel would; its key head is found by a division."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, wrong: bool) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.divisor = num_kv_heads if wrong else num_heads // num_kv_heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        t = query.shape[2]
        past = torch.ones(t, t, dtype=torch.bool, device=query.device).tril()
        outs = []
        for head in range(self.num_heads):
            shared = head // self.divisor
            s = query[:, head] @ key[:, shared].transpose(1, 2) / math.sqrt(self.head_dim)
            outs.append(s.where(past, -torch.inf).softmax(-1) @ value[:, shared])
        return torch.stack(outs, dim=1)


class GroupedModule(nn.Module):
    """Grouped keys inside a module, seen from outside only through its projections."""

    def __init__(self, dim: int, n_heads: int, n_kv_heads: int, wrong: bool) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.wrong = wrong

    def _spread(self, y: Tensor) -> Tensor:
        b, g, t, d = y.shape
        copies = self.n_heads // g
        if self.wrong:
            return y[:, None].expand(b, copies, g, t, d).reshape(b, -1, t, d)
        return y[:, :, None].expand(b, g, copies, t, d).reshape(b, -1, t, d)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        y = F.scaled_dot_product_attention(q, self._spread(k), self._spread(v), is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


def _scaled(wrong: bool) -> object:
    def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        _, h, t, d = q.shape
        width = h * d
        att = torch.einsum("bhid, bhjd -> bhij", q, k) / (width if wrong else d) ** 0.5
        att = att + torch.full((t, t), -math.inf, dtype=q.dtype).triu(1)
        return torch.einsum("bhij, bhjd -> bhid", att.softmax(-1), v)

    return causal_attention


class WidthScaled(nn.Module):
    """The same inside a module, where the number at hand is the model's width."""

    def __init__(self, dim: int, heads: int, wrong: bool) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim if wrong else dim // heads) ** -0.5
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.to_q(x), k, v)
        )
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        future = torch.ones_like(dots[0, 0], dtype=torch.bool).triu(1)
        attn = dots.masked_fill(future, -torch.finfo(dots.dtype).max).softmax(dim=-1)
        return self.to_out(torch.matmul(attn, v).transpose(1, 2).flatten(2))


class FlatHeads(nn.Module):
    """[b, t, c] is cut into heads by a view that takes time for heads."""

    def __init__(self, n_embd: int, n_head: int, wrong: bool) -> None:
        super().__init__()
        self.n_head = n_head
        self.key, self.query = nn.Linear(n_embd, n_embd), nn.Linear(n_embd, n_embd)
        self.value, self.proj = nn.Linear(n_embd, n_embd), nn.Linear(n_embd, n_embd)
        self.wrong = wrong

    def _cut(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        if self.wrong:
            return x.view(b, self.n_head, t, c // self.n_head)
        return x.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self._cut(self.query(x)), self._cut(self.key(x)), self._cut(self.value(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.reshape(b, t, c) if self.wrong else y.transpose(1, 2).reshape(b, t, c)
        return self.proj(y)


class UnmergedHeads(nn.Module):
    """Cut correctly, put together without moving the heads back behind time."""

    def __init__(self, embed_dim: int, num_heads: int, wrong: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, embed_dim * 3)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        qkv = self.qkv(x).reshape(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        if not self.wrong:
            out = out.transpose(1, 2)
        return out.reshape(b, t, c)


class ColumnSoftmax(nn.Module):
    """Weights sum to 1 over the queries of a key instead of over the keys of a query."""

    def __init__(self, d_model: int, n_heads: int, wrong: bool) -> None:
        super().__init__()
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        self.w_q, self.w_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.w_v, self.w_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.axis = -2 if wrong else -1

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (
            w(x).view(b, t, self.n_heads, self.d_k).transpose(1, 2)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        mask = torch.tril(torch.ones(t, t, device=x.device))
        scores = scores.masked_fill(mask == 0, float("-inf"))
        context = torch.matmul(torch.softmax(scores, dim=self.axis), v)
        return self.w_o(context.transpose(1, 2).contiguous().view(b, t, -1))


class AlwaysDropping(nn.Module):
    """The function does not know of evaluation; it drops what it is told to."""

    def __init__(self, dim: int, heads: int, dropout: float, wrong: bool) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training or self.wrong else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return y.transpose(1, 2).flatten(2)


class ChunkedQueries(Fused):
    """Queries three at a time; the scale is that of a head, in chunks too."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        width, places = x.shape[-1] if self.wrong else q.shape[-1], torch.arange(x.shape[1])
        chunks = []
        for some, at in zip(q.split(3, dim=2), places.split(3), strict=True):
            scores = some @ k.mT * width**-0.5
            scores = scores.masked_fill(places > at[:, None], float("-inf"))
            chunks.append(scores.softmax(-1) @ v)
        return self.outer(torch.cat(chunks, 2).transpose(1, 2).flatten(2))


class TopKeys(Fused):
    """Attends to the keys of the highest scores; a bug rounds their weights."""

    keys = 4

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
        best = scores.topk(min(self.keys, x.shape[1]), dim=-1).indices
        chosen = torch.full_like(scores, -math.inf).scatter(-1, best, scores.gather(-1, best))
        weights = chosen.softmax(-1)
        if self.wrong:
            weights = weights.to(torch.bfloat16).to(v.dtype)
        return self.outer((weights @ v).transpose(1, 2).flatten(2))


CASES = (
    Case(
        name="scale-in-chunks",
        bug="scores of chunks of queries are divided by the root of the model's width",
        make=lambda wrong: ChunkedQueries(32, 4, wrong),
        reasons=("scale",),
        declared=CAUSAL,
        options={"width": 32},
    ),
    Case(
        name="half-weights-of-top-keys",
        bug="of the keys with the highest scores the weights are rounded to bfloat16",
        make=lambda wrong: TopKeys(32, 4, wrong),
        reasons=("precision",),
        declared={**CAUSAL, "heads": 4},
    ),
    Case(
        name="tiled",
        bug="key/value heads tiled instead of repeated side by side",
        make=_shared,
        reasons=("heads",),
        declared={**CAUSAL, "heads": 4, "kv_heads": 2},
        options={"kv_heads": 2},
    ),
    Case(
        name="tiled-module",
        bug="key/value heads tiled, inside a module",
        make=lambda wrong: GroupedModule(48, 6, 2, wrong),
        reasons=("heads",),
        declared={**CAUSAL, "heads": 6, "kv_heads": 2},
        options={"dim": 48},
    ),
    Case(
        name="divided-by-kv",
        bug="key head is head // n_kv instead of head // (n / n_kv)",
        make=lambda wrong: HeadLoop(6, 3, 8, wrong),
        reasons=("heads",),
        declared={**CAUSAL, "heads": 6, "kv_heads": 3},
    ),
    Case(
        name="scale-by-width",
        bug="scores divided by the root of the model's width",
        make=_scaled,
        reasons=("scale",),
        declared={**CAUSAL, "heads": 4},
    ),
    Case(
        name="scale-by-width-module",
        bug="scores divided by the root of the model's width, inside a module",
        make=lambda wrong: WidthScaled(48, 3, wrong),
        reasons=("scale",),
        declared={**CAUSAL, "heads": 3},
        options={"dim": 48},
    ),
    Case(
        name="view-without-transpose",
        bug="heads cut out of time",
        make=lambda wrong: FlatHeads(32, 4, wrong),
        reasons=("heads", "causality"),
        declared={**CAUSAL, "heads": 4},
    ),
    Case(
        name="merge-without-transpose",
        bug="heads merged without moving them behind time",
        make=lambda wrong: UnmergedHeads(32, 4, wrong),
        reasons=("heads", "causality"),
        declared={**CAUSAL, "heads": 4},
    ),
    Case(
        name="softmax-over-queries",
        bug="softmax over the wrong axis",
        make=lambda wrong: ColumnSoftmax(32, 4, wrong),
        reasons=("weights", "causality"),
        declared={**CAUSAL, "heads": 4},
    ),
    Case(
        name="dropout-in-evaluation",
        bug="dropout active in evaluation",
        make=lambda wrong: AlwaysDropping(32, 4, 0.1, wrong),
        reasons=("evaluation",),
        declared={**CAUSAL, "heads": 4},
    ),
)
