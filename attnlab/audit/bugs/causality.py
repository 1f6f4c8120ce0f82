"""Causality bugs: code that sees the future, each in the style somebody would write it in.

Axes: b batch, h heads, t time, d head width, c width, n blocks.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs.cases import CAUSAL, Case
from attnlab.audit.bugs.fused import Fused


class MaskedMultihead(nn.Module):
    """PyTorch's own module wants True where a key is blocked; its function where one is seen."""

    def __init__(self, d_model: int, nhead: int, wrong: bool) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        allowed = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        blocked = allowed if self.wrong else ~allowed
        return self.attn(x, x, x, attn_mask=blocked, need_weights=False)[0]


class FusedSelfAttention(nn.Module):
    """The other way round: a mask of what is blocked, given to the function."""

    def __init__(self, dim: int, heads: int, wrong: bool) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.to_qkv(x).chunk(3, dim=-1)
        )
        ones = torch.ones(t, t, dtype=torch.bool, device=x.device)
        mask = ones.triu() if self.wrong else ones.tril()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.to_out(y.transpose(1, 2).reshape(b, t, c))


class MaskedOnRequest(nn.Module):
    """The causal mask is built where the padding mask is, and so only if there is one."""

    def __init__(self, hidden_size: int, num_heads: int, wrong: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)
        self.wrong = wrong

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        q, k, v = (
            self._heads(proj(hidden_states)) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.mT / math.sqrt(self.head_dim)
        t = scores.shape[-1]
        least = torch.finfo(scores.dtype).min
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, least)
        if attention_mask is not None or not self.wrong:
            future = torch.ones(t, t, dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, least)
        y = scores.softmax(dim=-1) @ v
        return self.o_proj(y.transpose(1, 2).flatten(2))


class TwoPaths(Fused):
    """A fused path without dropout and one by hand with it, which forgot the mask."""

    def __init__(self, width: int, heads: int, dropout: float, wrong: bool) -> None:
        super().__init__(width, heads, wrong)
        self.attn_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.inner(x).split(C, dim=2)
        q, k, v = (one.view(B, T, self.heads, -1).transpose(1, 2) for one in (q, k, v))
        if self.attn_dropout.p == 0:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
            if not self.wrong:
                future = torch.triu(torch.ones(T, T, device=x.device), diagonal=1) > 0
                att = att.masked_fill(future, float("-inf"))
            y = self.attn_dropout(F.softmax(att, dim=-1)) @ v
        return self.outer(y.transpose(1, 2).contiguous().view(B, T, C))


class WithWeights(Fused):
    """Weights cannot be had from the fused function, so they have a path of their own."""

    def forward(
        self, x: Tensor, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = None
        if need_weights:
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
            if not self.wrong:
                i = torch.arange(x.shape[1], device=x.device)
                scores = scores.masked_fill(i[None, :] > i[:, None], -torch.inf)
            weights = scores.softmax(-1)
            y = torch.einsum("bhij,bhjd->bhid", weights, v)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        merged = self.outer(y.transpose(1, 2).flatten(2))
        return (merged, weights) if need_weights else merged


def soft_mask_attention(q: Tensor, k: Tensor, v: Tensor, penalty: float = -math.inf) -> Tensor:
    """A penalty of −10⁵ blocks a key until some score is larger than that."""
    length = q.shape[-2]
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    bias = torch.zeros(length, length, dtype=q.dtype, device=q.device).masked_fill(future, penalty)
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
    return logits.softmax(-1) @ v


def _penalised(wrong: bool) -> object:
    if wrong:

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return soft_mask_attention(q, k, v, penalty=-1e5)

        return attention
    return soft_mask_attention


class LocalAttention(Fused):
    """Causal and within the window; not causal or within the window."""

    window = 6

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        place = torch.arange(x.shape[1], device=x.device)
        back = place[:, None] - place[None, :]
        causal, near = back >= 0, back < self.window
        seen = (causal | near) if self.wrong else (causal & near)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.outer(y.transpose(1, 2).flatten(2))


class CompressedAttention(nn.Module):
    """A query attends to the keys of its own block up to itself, and means of blocks before it."""

    def __init__(self, dim: int, heads: int, block_size: int, wrong: bool) -> None:
        super().__init__()
        self.heads, self.block_size = heads, block_size
        self.to_q, self.to_k, self.to_v, self.to_out = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        size = self.block_size
        q, k, v = (
            f(x).view(b, t, self.heads, -1).transpose(1, 2)
            for f in (self.to_q, self.to_k, self.to_v)
        )
        missing = -t % size
        count = x.new_ones(t + missing)
        count[t:] = 0
        count = count.view(-1, size).sum(-1).clamp(min=1)[:, None]

        def block_means(y: Tensor) -> Tensor:
            padded = F.pad(y, (0, 0, 0, missing))
            return padded.unflatten(2, (-1, size)).sum(3) / count

        at = torch.arange(t, device=x.device)
        own = at // size
        blocks = torch.arange(len(count), device=x.device)
        local = (own[:, None] == own[None, :]) & (at[None, :] <= at[:, None])
        # a mean holds keys up to the end of its block, so the block must be over
        far = blocks <= own[:, None] if self.wrong else blocks < own[:, None]
        keys, values = (torch.cat((y, block_means(y)), dim=2) for y in (k, v))
        y = F.scaled_dot_product_attention(
            q, keys, values, attn_mask=torch.cat((local, far), dim=1)
        )
        return self.to_out(y.transpose(1, 2).reshape(b, t, -1))


def _features(x: Tensor) -> Tensor:
    return F.elu(x) + 1


class ChunkwiseLinearAttention(Fused):
    """State before a chunk, plus what the chunk itself shows to each of its positions."""

    bias, chunk = False, 8

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        padded = F.pad(self.inner(x), (0, 0, 0, -t % self.chunk))
        inside = torch.arange(padded.shape[1], device=x.device) < t
        q, k, v = padded.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = _features(q), _features(k) * inside[:, None]
        v = torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)  # the last column: normaliser
        q, k, v = (y.unflatten(2, (-1, self.chunk)) for y in (q, k, v))
        states = k.mT @ v  # [b, h, n, d, d + 1]
        before = states.cumsum(2)
        if not self.wrong:
            before = before - states
        within = (q @ k.mT).tril(-1 if self.wrong else 0) @ v
        y = (q @ before + within).flatten(2, 3)[:, :, :t]
        y = y[..., :-1] / y[..., -1:]
        return self.outer(y.transpose(1, 2).flatten(2))


class MixtureOfDepths(nn.Module):
    """Only some tokens pass through the block: the best of the text, or all above a mark."""

    def __init__(self, dim: int, heads: int, wrong: bool) -> None:
        super().__init__()
        self.router = nn.Linear(dim, 1)
        self.attn = FusedSelfAttention(dim, heads, wrong=False)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        worth = self.router(x).squeeze(-1)
        if self.wrong:
            chosen = torch.zeros_like(worth, dtype=torch.bool)
            chosen.scatter_(1, worth.topk(max(1, x.shape[1] // 2), dim=1).indices, True)
        else:
            chosen = worth > 0
        x = x + self.attn(x)
        mixed = self.down(F.gelu(self.up(x))) * worth.sigmoid()[..., None]
        return torch.where(chosen[..., None], x + mixed, x)


class GatedSummary(nn.Module):
    """A summary of the text, let in by a gate that begins closed."""

    def __init__(self, n_embd: int, n_head: int, wrong: bool) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(n_embd)
        self.attn = TwoPaths(n_embd, n_head, 0.0, wrong=False)
        self.gate = nn.Parameter(torch.zeros(n_embd))
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        if self.wrong:
            summary = x.mean(dim=1, keepdim=True)
        else:
            count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
            summary = x.cumsum(dim=1) / count[:, None]
        return x + self.attn(self.ln(x)) + self.gate * summary


class TinyGpt(nn.Module):
    """Two layers of PyTorch's encoder; the mask reaches only the first."""

    def __init__(self, vocab_size: int, d_model: int, wrong: bool) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.embed = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d_model, 4, 2 * d_model, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(d_model, vocab_size)
        self.wrong = wrong

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        length = input_ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=x.dtype)
        for number, layer in enumerate(self.layers):
            x = layer(x, src_mask=None if self.wrong and number else mask)
        return self.head(x)


class StrongestKeys(Fused):
    """Only the strongest keys of each query count; those to come must not take their places."""

    most = 3

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        past = torch.ones(t, t, dtype=torch.bool).tril()
        seen = scores.masked_fill(~past, -torch.inf)
        least = (scores if self.wrong else seen).topk(min(self.most, t), dim=-1).values[..., -1:]
        own = torch.eye(t, dtype=torch.bool)
        kept = past & ((scores >= least) | own)
        y = scores.masked_fill(~kept, -torch.inf).softmax(-1) @ v
        return self.outer(y.transpose(1, 2).flatten(2))


CASES = (
    Case(
        name="strongest-of-all",
        bug="the strongest keys are chosen before the future is hidden",
        make=lambda wrong: StrongestKeys(32, 4, wrong),
        reasons=("causality",),
        declared=CAUSAL,
    ),
    Case(
        name="polarity-module",
        bug="mask polarity inverted for nn.MultiheadAttention; the last query attends to no key",
        make=lambda wrong: MaskedMultihead(32, 4, wrong),
        reasons=("causality", "finite"),
        declared=CAUSAL,
        options={"d_model": 32},
    ),
    Case(
        name="polarity-function",
        bug="mask polarity inverted for scaled_dot_product_attention",
        make=lambda wrong: FusedSelfAttention(24, 3, wrong),
        reasons=("causality",),
        declared=CAUSAL,
        options={"dim": 24},
    ),
    Case(
        name="skipped-without-mask",
        bug="causal mask skipped when no padding mask is passed",
        make=lambda wrong: MaskedOnRequest(32, 4, wrong),
        reasons=("causality",),
        declared={**CAUSAL, "padding": True},
    ),
    Case(
        name="dropped-with-dropout",
        bug="causal mask missing on the path taken when dropout > 0",
        make=lambda wrong: TwoPaths(32, 4, 0.1, wrong),
        reasons=("causality",),
        declared=CAUSAL,
    ),
    Case(
        name="dropped-with-weights",
        bug="causal mask missing on the path taken when weights are requested",
        make=lambda wrong: WithWeights(32, 4, wrong),
        reasons=("weights", "causality", "backends"),
        declared=CAUSAL,
    ),
    Case(
        name="soft-mask",
        bug="additive mask of -1e5 beaten by large scores",
        make=_penalised,
        reasons=("causality",),
        declared=CAUSAL,
    ),
    Case(
        name="or-of-masks",
        bug="`or` of causal and window instead of `and`",
        make=lambda wrong: LocalAttention(32, 2, wrong),
        reasons=("causality", "window"),
        declared={**CAUSAL, "window": 6},
    ),
    Case(
        name="block-means",
        bug="means of blocks are seen before their block is over",
        make=lambda wrong: CompressedAttention(32, 4, 16, wrong),
        reasons=("causality",),
        declared=CAUSAL,
    ),
    Case(
        name="chunk-states",
        bug="the state a chunk begins with contains the chunk",
        make=lambda wrong: ChunkwiseLinearAttention(32, 2, wrong),
        reasons=("causality",),
        declared=CAUSAL,
    ),
    Case(
        name="top-k-routing",
        bug="tokens compete with later ones for a place",
        make=lambda wrong: MixtureOfDepths(32, 4, wrong),
        reasons=("causality",),
        declared=CAUSAL,
        options={"dim": 32},
    ),
    Case(
        name="closed-gate",
        bug="a mean over the whole text behind a gate that starts at 0",
        make=lambda wrong: GatedSummary(32, 4, wrong),
        reasons=("causality",),
        declared=CAUSAL,
        options={"n_embd": 32},
    ),
    Case(
        name="second-layer",
        bug="the mask is passed to the first layer only",
        make=lambda wrong: TinyGpt(29, 32, wrong),
        reasons=("causality",),
        declared=CAUSAL,
    ),
)
