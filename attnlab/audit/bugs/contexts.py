"""Bugs of cross-attention: in what is attended to besides the text itself.

Axes: b batch, h heads, t time, s positions of the context, d head width, c width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs.cases import Case


class Cross(nn.Module):
    """Queries of x, keys and values of a context; `wrong` turns the bug on."""

    def __init__(self, width: int, heads: int, wrong: bool) -> None:
        super().__init__()
        self.heads, self.wrong = heads, wrong
        self.query, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)

    def split(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[b, h, t, d], and twice [b, h, s, d]."""
        every = self.query(x), self.key(context), self.value(context)
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in every)
        return q, k, v

    def join(self, y: Tensor) -> Tensor:
        return self.outer(y.transpose(1, 2).flatten(2))


class DeafToItsMask(Cross):
    """The mask over the context must reach the scores, also where there is no other mask."""

    def forward(self, x: Tensor, context: Tensor, context_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.split(x, context)
        seen = None
        if context_mask is not None and not self.wrong:
            seen = context_mask[:, None, None]
        return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))


class MaskedWeights(Cross):
    """What is hidden after the softmax is missing from the sum."""

    def forward(
        self, x: Tensor, memory: Tensor, memory_key_padding_mask: Tensor | None = None
    ) -> Tensor:
        q, k, v = self.split(x, memory)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        hidden = memory_key_padding_mask
        if hidden is not None and not self.wrong:
            scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        weights = scores.softmax(-1)
        if hidden is not None and self.wrong:
            weights = weights.masked_fill(hidden[:, None, None], 0.0)
        return self.join(weights @ v)


class HeadsBesideRows(Cross):
    """Heads go into the batch; queries and keys must go in the same order."""

    def forward(self, x: Tensor, encoder_states: Tensor) -> Tensor:
        b, (q, k, v) = len(x), self.split(x, encoder_states)
        if self.wrong:
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        k, v = k.reshape(-1, *k.shape[2:]), v.reshape(-1, *v.shape[2:])
        y = F.scaled_dot_product_attention(q.flatten(0, 1), k, v)
        return self.join(y.unflatten(0, (b, self.heads)))


class OneContext(Cross):
    """Each row has a context of its own; keys made once are those of the first."""

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        q, k, v = self.split(x, cond)
        if self.wrong:
            k, v = k[:1].expand_as(k), v[:1].expand_as(v)
        return self.join(F.scaled_dot_product_attention(q, k, v))


class TwoDecoderLayers(nn.Module):
    """The caller's mask must reach every layer."""

    def __init__(self, width: int, heads: int, wrong: bool) -> None:
        super().__init__()
        self.width, self.wrong = width, wrong
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(width, heads, 2 * width, batch_first=True) for _ in range(2)
        )

    def forward(self, x: Tensor, memory: Tensor, tgt_mask: Tensor | None = None) -> Tensor:
        for number, layer in enumerate(self.layers):
            lost = self.wrong and number > 0
            x = layer(x, memory, tgt_mask=None if lost else tgt_mask)
        return x


class SeenMask(Cross):
    """The caller's mask says who is seen, [1, t, t]; a second one hides some of the context."""

    def forward(
        self, x: Tensor, memory: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None
    ) -> Tensor:
        y = self._attend(x, x, tgt_mask)
        return x + y + self._attend(x + y, memory, src_mask)

    def _attend(self, x: Tensor, other: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.split(x, other)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, -1e5 if self.wrong else float("-inf"))
        return self.join(scores.softmax(-1) @ v)


class Translator(nn.Module):
    """Padding of what is read must be hidden twice: from the encoder, and from what reads it."""

    def __init__(self, vocab_size: int, d_model: int, wrong: bool) -> None:
        super().__init__()
        self.vocab_size, self.wrong = vocab_size, wrong
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.inner = nn.Transformer(d_model, 4, 1, 1, 2 * d_model, batch_first=True)
        self.outer = nn.Linear(d_model, vocab_size)

    def forward(self, src: Tensor, tgt: Tensor, src_padding_mask: Tensor | None = None) -> Tensor:
        ahead = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        y = self.inner(
            self.tokens(src),
            self.tokens(tgt),
            tgt_mask=ahead,
            src_key_padding_mask=src_padding_mask,
            memory_key_padding_mask=None if self.wrong else src_padding_mask,
        )
        return self.outer(y)


CASES: tuple[Case, ...] = (
    Case(
        name="context-mask-dropped",
        bug="the mask over the context is taken and not used",
        make=lambda wrong: DeafToItsMask(32, 4, wrong),
        reasons=("context",),
    ),
    Case(
        name="context-masked-after-softmax",
        bug="padding of the context is taken out of the weights, not of the scores",
        make=lambda wrong: MaskedWeights(32, 4, wrong),
        reasons=("context",),
    ),
    Case(
        name="contexts-in-another-order",
        bug="queries are laid out (b, h), keys of the context (h, b)",
        make=lambda wrong: HeadsBesideRows(32, 4, wrong),
        reasons=("context",),
    ),
    Case(
        name="one-context-for-all",
        bug="every row attends to the context of the first",
        make=lambda wrong: OneContext(32, 4, wrong),
        reasons=("context",),
    ),
    Case(
        name="tgt-mask-in-one-layer",
        bug="the caller's causal mask reaches the first layer only",
        make=lambda wrong: TwoDecoderLayers(32, 4, wrong),
        reasons=("causality",),
        declared={"causal": True},
    ),
    Case(
        name="weak-tgt-mask",
        bug="a mask of −10⁵ is beaten by large scores",
        make=lambda wrong: SeenMask(32, 4, wrong),
        reasons=("causality", "context", "weights"),
        declared={"causal": True},
    ),
    Case(
        name="source-padding-hidden-once",
        bug="padding of the source is hidden from the encoder, and read by the decoder",
        make=lambda wrong: Translator(37, 32, wrong),
        reasons=("context",),
        declared={"causal": True},
    ),
)
