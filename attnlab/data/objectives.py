"""What a model is trained for: the next token, a lost span, the answer to a question.

Axes: b rows, t time (the context).

`special` says whether the tokenizer needs PAD and MASK. Every objective makes a source of batches
from a corpus and its tokenizer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int64

from attnlab import counter_rng
from attnlab.config import setting, settings
from attnlab.data import corruption
from attnlab.data.batches import IGNORE, Batch, Source, as_batch
from attnlab.data.corpora import Corpus, Question
from attnlab.data.prepared.corpus import PreparedStream
from attnlab.data.shards import Stream, smallest_dtype, stream_of
from attnlab.data.tokens import Tokenizer

REMOVED = "part of a text that is removed, on average"


def _silent(line: str) -> None:
    pass


@dataclass(frozen=True)
class Given:
    """What a source is made of."""

    corpus: Corpus
    tokenizer: Tokenizer
    context: int
    seed: int
    note: Callable[[str], None]  # hears when tokenizing takes a while


@settings
class Objective:
    special: ClassVar[bool]  # whether the tokenizer needs PAD and MASK

    def source(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        *,
        context: int,
        seed: int,
        note: Callable[[str], None] = _silent,
    ) -> Source:
        return self._source(Given(corpus, tokenizer, context, seed, note))

    def _source(self, given: Given) -> Source:
        raise NotImplementedError


@settings
class Causal(Objective):
    """Every token is predicted from those before it; the text is one stream cut into windows."""

    special: ClassVar[bool] = False
    apart: bool = setting(
        False, about="no attention, and no loss, from one document of a prepared text to another"
    )

    def _source(self, given: Given) -> Source:
        return CausalSource(given, self.apart)


class CausalSource(Source):
    """Windows that do not overlap, cut at another place in every epoch.

    Those of a prepared text are in an order that is computed place by place; `apart` numbers the
    documents in them.
    """

    def __init__(self, given: Given, apart: bool = False) -> None:
        corpus, tokenizer, context = given.corpus, given.tokenizer, given.context
        _check_context(context)
        self._context, self._seed = context, given.seed
        self._train = stream_of(corpus, tokenizer, "train", note=given.note)
        self._held = stream_of(corpus, tokenizer, "validation", note=given.note)
        if self._train.count < context + 1:
            raise ValueError(
                f"context is {context}, but the text to train on has {self._train.count} tokens; "
                f"use {max(1, self._train.count - 1)} or less, or a longer text"
            )
        if self._held.count == 1:
            raise ValueError(
                f"the validation text of {corpus.name} has 1 token; it needs 2 or more, "
                "so keep a larger part for validation, or none"
            )
        self.count = max(1, self._train.count // context - 1)
        self.tokens = self.count * context
        self.validation_count = -(-max(0, self._held.count - 1) // context)
        # with the last of these offsets the last window still ends inside the text
        self._offsets = min(context, self._train.count - self.tokens)
        self._apart, self._large = apart, corpus.tokenizer is not None
        if apart and not isinstance(self._train, PreparedStream):
            raise ValueError(
                f"objective.apart: {corpus.name} keeps no borders of documents; attnlab prepare "
                "makes a folder that does"
            )

    def batch(self, epochs: Int64[np.ndarray, " b"], indices: Int64[np.ndarray, " b"]) -> Batch:
        draws = counter_rng.uniform(self._seed, "window offset", epochs)
        starts = (draws * self._offsets).astype(np.int64) + indices * self._context
        rows = self._train.take(starts, self._context + 1)
        if not self._apart:
            return as_batch(rows[:, :-1], rows[:, 1:])
        return _apart(
            rows[:, :-1], rows[:, 1:], self._numbers(self._train, starts, self._context + 1)
        )

    def arrange(
        self, places: Int64[np.ndarray, " b"], seed: int, epoch: int
    ) -> Int64[np.ndarray, " b"]:
        if not self._large:
            return super().arrange(places, seed, epoch)
        return counter_rng.shuffled(places, self.count, seed, "order", epoch)

    def _numbers(
        self, stream: Stream, starts: Int64[np.ndarray, " b"], length: int
    ) -> Int64[np.ndarray, "b {length}"]:
        """Of the document of each of these tokens."""
        assert isinstance(stream, PreparedStream)
        return stream.numbers(starts, length)

    def validation_batch(self, indices: Int64[np.ndarray, " b"]) -> Batch:
        tokens, targets = self.validation_rows(indices)
        if not self._apart:
            return as_batch(tokens, targets)
        numbers = np.empty((len(indices), self._context + 1), dtype=np.int64)
        for row, index in enumerate(indices.tolist()):
            start = index * self._context
            length = min(self._context + 1, self._held.count - start)
            numbers[row, :length] = self._numbers(self._held, np.array([start]), length)[0]
            numbers[row, length:] = numbers[row, length - 1]  # padding, without a target
        return _apart(tokens, targets, numbers)

    def validation_rows(
        self, indices: Int64[np.ndarray, " b"]
    ) -> tuple[Int64[np.ndarray, "b t"], Int64[np.ndarray, "b t"]]:
        tokens = np.zeros((len(indices), self._context), dtype=np.int64)
        targets = np.full_like(tokens, IGNORE)
        for row, index in enumerate(indices.tolist()):
            start = index * self._context
            length = min(self._context, self._held.count - 1 - start)
            window = self._held.take(np.array([start]), length + 1)[0]
            tokens[row, :length], targets[row, :length] = window[:-1], window[1:]
        return tokens, targets


def _apart(
    tokens: Int64[np.ndarray, "b t"],
    targets: Int64[np.ndarray, "b t"],
    numbers: Int64[np.ndarray, "b t+1"],
) -> Batch:
    """The first token of a document is no target of the one before it."""
    within = numbers[:, 1:] == numbers[:, :-1]
    return as_batch(tokens, np.where(within, targets, IGNORE), numbers[:, :-1] - numbers[:, :1])


@settings
class SpanCorruption(Objective):
    """A document loses a span and is asked for it; see corruption.py."""

    special: ClassVar[bool] = True
    part: float = setting(corruption.QUARTER, above=0, high=0.5, about=REMOVED)

    def _source(self, given: Given) -> Source:
        return SpanSource(given, self.part)


class SpanSource(Source):
    """One sample for each document; one long text is cut into documents as long as can be used."""

    def __init__(self, given: Given, part: float) -> None:
        corpus, tokenizer, context = given.corpus, given.tokenizer, given.context
        self._context, self._seed, self._part = context, given.seed, part
        self._room = corruption.room_of(context)
        self._pad, self._mask = _marks(tokenizer)
        self._train = self._documents(given, "train")
        self._held = self._documents(given, "validation")
        self.count, self.validation_count = len(self._train[1]), len(self._held[1])
        self.tokens = int(self._train[2].sum())
        if self.count == 0:
            raise ValueError(f"{corpus.name} has no text to train on; span corruption needs some")

    def _documents(
        self, given: Given, split: str
    ) -> tuple[Stream, Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """A stream, and where in it each document starts and how long it is."""
        corpus, tokenizer = given.corpus, given.tokenizer
        if not corpus.documents:
            stream = stream_of(corpus, tokenizer, split, note=given.note)
            starts = np.arange(0, stream.count, self._room)
            return stream, starts, np.minimum(self._room, stream.count - starts)
        parts = [tokenizer.encode(piece)[: self._room] for piece in corpus.pieces(split) if piece]
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        dtype = smallest_dtype(tokenizer.size)
        flat = np.concatenate([np.empty(0, dtype), *(part.astype(dtype) for part in parts)])
        return Stream([flat]), np.cumsum(lengths) - lengths, lengths

    def rows(
        self, epochs: Int64[np.ndarray, " b"], indices: Int64[np.ndarray, " b"]
    ) -> tuple[Int64[np.ndarray, "b t"], Int64[np.ndarray, "b t"]]:
        return self._rows(self._train, self._seed, epochs, indices)

    def _rows(
        self,
        documents: tuple[Stream, Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]],
        seed: int,
        epochs: Int64[np.ndarray, " b"],
        indices: Int64[np.ndarray, " b"],
    ) -> tuple[Int64[np.ndarray, "b t"], Int64[np.ndarray, "b t"]]:
        stream, starts, lengths = documents
        # what follows a document is read along but not used; at the end of all nothing follows
        width = min(self._room, stream.count)
        first = np.minimum(starts[indices], stream.count - width)
        block = stream.take(first, width)
        shift = (starts[indices] - first)[:, None] + np.arange(width)
        block = np.take_along_axis(block, np.minimum(shift, width - 1), axis=1)
        rows = corruption.corrupt(
            block,
            lengths[indices],
            corruption.draws_of(seed, epochs, indices),
            context=self._context,
            pad=self._pad,
            mask=self._mask,
            part=self._part,
        )
        targets = rows[:, 1:]
        return rows[:, :-1], np.where(targets == self._pad, IGNORE, targets)

    def batch(self, epochs: Int64[np.ndarray, " b"], indices: Int64[np.ndarray, " b"]) -> Batch:
        return as_batch(*self.rows(epochs, indices))

    def validation_rows(
        self, indices: Int64[np.ndarray, " b"]
    ) -> tuple[Int64[np.ndarray, "b t"], Int64[np.ndarray, "b t"]]:
        seed = counter_rng.number(self._seed, "validation")
        return self._rows(self._held, seed, np.zeros_like(indices), indices)


@settings
class Questions(Objective):
    """`question MASK answer MASK`, padded; a loss on `answer MASK` only."""

    special: ClassVar[bool] = True

    def _source(self, given: Given) -> Source:
        return QuestionSource(given.corpus, given.tokenizer, given.context)


class QuestionSource(Source):
    answers = True

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, context: int) -> None:
        _check_context(context)
        self._train = _encode_questions(corpus.questions["train"], tokenizer, context)
        self._dev = _encode_questions(corpus.questions["dev"], tokenizer, context)
        self.count, self.validation_count = len(self._train[0]), len(self._dev[0])
        self.tokens = int((self._train[0] != tokenizer.pad).sum())
        if self.count == 0:
            raise ValueError(f"{corpus.name} has no questions to train on; choose another corpus")

    def batch(self, epochs: Int64[np.ndarray, " b"], indices: Int64[np.ndarray, " b"]) -> Batch:
        return as_batch(*self.rows(indices))

    def rows(
        self, indices: Int64[np.ndarray, " b"]
    ) -> tuple[Int64[np.ndarray, "b t"], Int64[np.ndarray, "b t"]]:
        tokens, targets = self._train
        return tokens[indices], targets[indices]

    def validation_rows(
        self, indices: Int64[np.ndarray, " b"]
    ) -> tuple[Int64[np.ndarray, "b t"], Int64[np.ndarray, "b t"]]:
        tokens, targets = self._dev
        return tokens[indices], targets[indices]


def _encode_questions(
    questions: list[Question], tokenizer: Tokenizer, context: int
) -> tuple[Int64[np.ndarray, "n t"], Int64[np.ndarray, "n t"]]:
    pad, mask = _marks(tokenizer)
    rows = np.full((len(questions), context + 1), pad, dtype=np.int64)
    targets = np.full((len(questions), context), IGNORE, dtype=np.int64)
    for row, question in enumerate(questions):
        if question.answer is None:
            raise ValueError(f"{question.text!r} has no answer; train on questions that have one")
        asked, answer = tokenizer.encode(question.text), tokenizer.encode(question.answer)
        if np.isin([pad, mask], [*asked, *answer]).any():
            raise ValueError(f"{question.text!r} or its answer holds a mark of the tokenizer")
        whole = np.array([*asked, mask, *answer, mask])
        if len(whole) > context + 1:
            raise ValueError(
                f"{question.text!r} and its answer need a context of {len(whole) - 1}; "
                f"context is {context}"
            )
        rows[row, : len(whole)] = whole
        targets[row, len(asked) : len(whole) - 1] = whole[len(asked) + 1 :]
    return rows[:, :-1], targets


def _marks(tokenizer: Tokenizer) -> tuple[int, int]:
    if tokenizer.pad is None or tokenizer.mask is None:
        raise ValueError("this objective needs PAD and MASK; train the tokenizer with special=True")
    return tokenizer.pad, tokenizer.mask


def _check_context(context: int) -> None:
    if context < 1:
        raise ValueError(f"context is {context}; use 1 or more")
