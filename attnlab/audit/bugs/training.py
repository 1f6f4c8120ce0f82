"""Training bugs: the model is right, and is taught something else than its task.

Axes: b batch, t time, c width, v vocabulary.
"""

import random

import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.bugs.cases import CAUSAL, Case

IGNORE = -100


class SmallModel(nn.Module):
    """One layer, for training code to train."""

    def __init__(self, wrong: bool | str | None = None, vocab_size: int = 41) -> None:
        super().__init__()
        d_model = 24
        self.vocab_size, self.wrong = vocab_size, wrong
        self.embed = nn.Embedding(vocab_size, d_model)
        self.mix = nn.Linear(d_model, 3 * d_model)
        self.head = nn.Linear(d_model, vocab_size)

    def logits(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = self.mix(x)[:, None].chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + y[:, 0])


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Labels are the text itself; the shift is made here."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class LabelledModel(SmallModel):
    """A model that shifts, and calls a loss that shifts."""

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        logits = self.logits(input_ids)
        if labels is None:
            return logits
        if self.wrong:
            return next_token_loss(logits[:, :-1], labels[:, 1:]), logits
        return next_token_loss(logits, labels), logits


class CopyTrainer(SmallModel):
    """Its batches hold the text twice; somebody was to shift one of the two."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        logits = self.logits(idx)
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.view(-1, self.vocab_size), targets.reshape(-1))

    def loss(self, text: Tensor) -> Tensor:
        x, y = (text, text.clone()) if self.wrong else (text[:, :-1], text[:, 1:])
        return self(x, y)[1]


class Accumulating(SmallModel):
    """Works through a batch in parts; `wrong` says what is forgotten."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(tokens)

    def accumulate(self, tokens: Tensor, parts: int, padding: Tensor | None = None) -> None:
        labels = tokens if padding is None else tokens.masked_fill(padding, IGNORE)
        count = (labels[:, 1:] != IGNORE).sum()
        for some, wanted in zip(tokens.chunk(parts), labels.chunk(parts), strict=True):
            predicted, targets = self(some)[:, :-1].flatten(0, 1), wanted[:, 1:].flatten()
            if self.wrong == "undivided":
                loss = F.cross_entropy(predicted, targets)
            elif self.wrong == "mean of means":
                loss = F.cross_entropy(predicted, targets) / parts
            else:
                loss = F.cross_entropy(predicted, targets, reduction="sum") / count
            loss.backward()


def pieces(total: int, count: int, dice: random.Random) -> list[int]:
    """`count` numbers of 1 or more that add up to the total."""
    cuts = sorted(dice.sample(range(1, total), count - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


class SpanCorrupting(SmallModel):
    """Spans to keep and to take out by turns: beginning with one, it ends with the other."""

    def __init__(self, wrong: bool) -> None:
        super().__init__(wrong, vocab_size=120)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(tokens)

    def corrupt(self, tokens: list[int], seed: int) -> tuple[list[int], list[int]]:
        dice = random.Random(seed)
        noise, spans = max(2, len(tokens) // 6), 2
        kept = pieces(len(tokens) - noise, spans, dice)
        taken = pieces(noise, spans, dice)
        # turned round by some way, the text may begin and end with either kind
        turn = 0 if self.wrong else dice.randrange(len(tokens))
        noisy = [
            flag for a, b in zip(kept, taken, strict=True) for flag in [False] * a + [True] * b
        ]
        noisy = noisy[turn:] + noisy[:turn]
        inputs: list[int] = []
        targets: list[int] = []
        mark = self.vocab_size
        before = False
        for token, out in zip(tokens, noisy, strict=True):
            if out and not before:
                mark -= 1
                inputs.append(mark)
                targets.append(mark)
            (targets if out else inputs).append(token)
            before = out
        return inputs, targets


CASES = (
    Case(
        name="shifted-twice",
        bug="the model shifts the labels, and its loss shifts them again",
        make=LabelledModel,
        reasons=("training",),
        declared=CAUSAL,
    ),
    Case(
        name="not-shifted",
        bug="the loss asks for the token that was given",
        make=CopyTrainer,
        reasons=("training",),
        declared=CAUSAL,
    ),
    Case(
        name="parts-not-divided",
        bug="accumulation adds up means: the loss grows with the number of parts",
        make=lambda wrong: Accumulating("undivided" if wrong else None),
        reasons=("training",),
        declared=CAUSAL,
    ),
    Case(
        name="mean-of-means",
        bug="accumulation weighs parts alike whatever number of tokens they hold",
        make=lambda wrong: Accumulating("mean of means" if wrong else None),
        reasons=("training",),
        declared=CAUSAL,
    ),
    Case(
        name="noise-at-the-end",
        bug="in span corruption the last tokens are always noise",
        make=SpanCorrupting,
        reasons=("training",),
        declared=CAUSAL,
    ),
)
