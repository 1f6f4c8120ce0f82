"""Evaluation: how surprised a model is by a text, and what it answers to questions.

Axes: b batch, t time, v vocabulary.
Cost: one forward pass over the batches; for questions one greedy generation in float64.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from attnlab.data.batches import IGNORE, Batch
from attnlab.data.corpora import Question
from attnlab.data.tokens import Tokenizer
from attnlab.generate import Sampling, evaluating, precise, steps
from attnlab.kernels import hardware
from attnlab.models.model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    loss: float  # mean cross-entropy, in nats
    tokens: int  # targets it is the mean of
    exact: float  # the part of the rows all of whose targets were the likeliest tokens
    sums: Sequence[float] = ()  # of the losses in each row
    counts: Sequence[int] = ()  # targets of each row

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss) if self.loss < 700 else math.inf  # what a float can hold

    @property
    def bits(self) -> float:
        """For each token."""
        return self.loss / math.log(2)


def validation_loss(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device | str | None = None,
    autocast: torch.dtype | None = None,
    tick: Callable[[int], None] | None = None,
) -> Evaluation:
    """The mean over all targets that are not IGNORE; `tick(targets so far)` after each batch.

    Rows that are exact are those that would be written token by token, always the likeliest.
    """
    place = torch.device(device) if device is not None else next(model.parameters()).device
    if autocast is not None:
        hardware.require(autocast, place)
    total, count = torch.zeros((), dtype=torch.float64, device=place), 0
    exact = torch.zeros((), dtype=torch.int64, device=place)
    sums, counts = list[torch.Tensor](), list[int]()
    with evaluating(model), torch.no_grad():
        for batch in batches:
            here = batch.changed(lambda tensor: tensor.to(place))
            tokens, targets = here.tokens, here.targets
            narrow = nullcontext() if autocast is None else torch.autocast(place.type, autocast)
            with narrow:
                logits = model(tokens, **here.options)
            # a mean in half precision would be coarser than the differences it is asked about
            wide = logits if logits.dtype == torch.float64 else logits.float()
            losses = F.cross_entropy(
                wide.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="none"
            )
            total += losses.double().sum()
            sums.append(losses.double().view_as(targets).sum(-1))  # handed over at the end
            scored = (batch.targets != IGNORE).sum(-1).tolist()
            counts += scored
            count += sum(scored)
            likeliest = logits.argmax(-1)
            exact += ((likeliest == targets) | (targets == IGNORE)).all(-1).sum()
            if tick is not None:
                tick(count)
    if count == 0:
        raise ValueError("there are no targets to average over; give a batch with at least one")
    return Evaluation(
        loss=total.item() / count,
        tokens=count,
        exact=exact.item() / len(counts),
        sums=torch.cat(sums).tolist(),
        counts=counts,
    )


@dataclass(frozen=True, kw_only=True)
class Answer:
    question: str
    expected: str | None  # None where nobody knows
    given: str
    confidence: float  # the probability of the whole answer, its closing mask included


def answer_questions(
    model: LanguageModel,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    *,
    batch: int = 64,
    longest: int = 40,
    tick: Callable[[int], None] | None = None,
) -> list[Answer]:
    """The likeliest text, token by token, between "question MASK" and the next MASK.

    Confidence is the plain product of the probabilities of the answer's tokens and the mask that
    closes it; an answer cut off at `longest` tokens has no such mask. The answers do not depend on
    `batch`. `tick(answers so far)` is called after each batch.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}; it counts questions answered at once: use 1 or more")
    mask = tokenizer.mask
    if mask is None:
        raise ValueError("this tokenizer has no mask to ask with; train it with special=True")
    reader, answers = precise(model), list[Answer]()  # one copy for all the batches
    for start in range(0, len(questions), batch):
        part = questions[start : start + batch]
        prompts = [[*tokenizer.encode(one.text).tolist(), mask] for one in part]
        given: list[list[int]] = [[] for _ in part]
        logs = [0.0] * len(part)
        greedy = Sampling(temperature=0)
        taken = steps(reader, prompts, tokens=longest, sampling=greedy, stop=mask)
        with closing(taken):
            for row, token, log in (picked for step in taken for picked in step):
                logs[row] += log
                if token != mask:
                    given[row].append(token)
        for one, ids, log in zip(part, given, logs, strict=True):
            answers.append(
                Answer(
                    question=one.text,
                    expected=one.answer,
                    given=tokenizer.decode(ids),
                    confidence=math.exp(log),
                )
            )
        if tick is not None:
            tick(len(answers))
    return answers


def accuracy(answers: Iterable[Answer]) -> float:
    """The part of the answers that is exactly the expected text, where one is expected."""
    right = [answer.given == answer.expected for answer in answers if answer.expected is not None]
    if not right:
        raise ValueError("no answer has an expected text; accuracy needs at least one")
    return sum(right) / len(right)
