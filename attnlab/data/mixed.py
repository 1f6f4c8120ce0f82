"""Mixed: spans, recall and questions side by side, so that facts are stored as they are asked for.

Axes: b rows, t time (the context).
"""

from typing import ClassVar

import numpy as np
from jaxtyping import Int64

from attnlab import counter_rng
from attnlab.config import setting, settings
from attnlab.data import recall
from attnlab.data.batches import IGNORE, Batch, Source, as_batch
from attnlab.data.objectives import REMOVED, Given, Objective, QuestionSource, SpanSource
from attnlab.data.shards import smallest_dtype


@settings
class Mixed(Objective):
    """The model is trained for both at once; there is nothing left to finetune."""

    special: ClassVar[bool] = True
    part: float = setting(0.35, above=0, high=0.5, about=REMOVED)
    recall: float = setting(
        0.15,
        low=0,
        below=1,
        because="it is a part of the documents",
        about="part of the documents that is asked for by its head alone",
    )
    questions: float = setting(
        0.1,
        above=0,
        below=1,
        because="it is a part of the samples",
        about="part of all samples that is a question",
    )

    def _source(self, given: Given) -> Source:
        return MixedSource(given, self)


class MixedSource(Source):
    """An epoch has every document once, and as many questions as belong to them.

    Questions go on from epoch to epoch, so that each comes up before any comes again.
    """

    answers = True

    def __init__(self, given: Given, settings: Mixed) -> None:
        self._settings, self._seed = settings, given.seed
        self._spans = SpanSource(given, settings.part)
        self._recall = _Recall(given)
        self._asked = QuestionSource(given.corpus, given.tokenizer, given.context)
        share = settings.questions
        self._each = max(1, round(self._spans.count * share / (1 - share)))
        self.count = self._spans.count + self._each
        self.tokens = self._spans.tokens + self._asked.tokens * self._each // self._asked.count
        self.validation_count = self._asked.validation_count

    def batch(self, epochs: Int64[np.ndarray, " b"], indices: Int64[np.ndarray, " b"]) -> Batch:
        asked = indices >= self._spans.count
        draws = counter_rng.uniform(self._seed, "recall or span", epochs, indices)
        recalled = ~asked & (draws < self._settings.recall)
        spans = ~asked & ~recalled
        parts = [
            (asked, self._questions(epochs[asked], indices[asked] - self._spans.count)),
            (recalled, self._recall.rows(self._seed, epochs[recalled], indices[recalled])),
            (spans, self._spans.rows(epochs[spans], indices[spans])),
        ]
        tokens = np.empty((len(indices), parts[0][1][0].shape[1]), dtype=np.int64)
        targets = np.empty_like(tokens)
        for where, (inputs, wanted) in parts:
            tokens[where], targets[where] = inputs, wanted
        return as_batch(tokens, targets)

    def _questions(
        self, epochs: Int64[np.ndarray, " b"], places: Int64[np.ndarray, " b"]
    ) -> tuple[Int64[np.ndarray, "b t"], Int64[np.ndarray, "b t"]]:
        rounds, places = np.divmod(epochs * self._each + places, self._asked.count)
        for turn in np.unique(rounds).tolist():
            here = rounds == turn
            order = counter_rng.permutation(self._asked.count, self._seed, "questions", turn)
            places[here] = order[places[here]]
        return self._asked.rows(places)

    def validation_rows(
        self, indices: Int64[np.ndarray, " b"]
    ) -> tuple[Int64[np.ndarray, "b t"], Int64[np.ndarray, "b t"]]:
        return self._asked.validation_rows(indices)


class _Recall:
    """Every document, whole, with its head."""

    def __init__(self, given: Given) -> None:
        corpus, tokenizer = given.corpus, given.tokenizer
        if not corpus.documents:
            raise ValueError(
                f"{corpus.name} is one long text; the mixed objective needs documents with heads, "
                "such as biographies or birthplaces have"
            )
        self._context = given.context
        assert tokenizer.pad is not None and tokenizer.mask is not None  # SpanSource saw to it
        self._pad, self._mask = tokenizer.pad, tokenizer.mask
        texts = [text for text in corpus.pieces("train") if text]
        parts = [tokenizer.encode(text) for text in texts]
        self._lengths = np.array([len(part) for part in parts], dtype=np.int64)
        self._begins = np.cumsum(self._lengths) - self._lengths
        self._flat = np.concatenate(parts).astype(smallest_dtype(tokenizer.size))
        heads = [len(tokenizer.encode(recall.head_of(text))) for text in texts]
        self._heads = np.array(heads, dtype=np.int64)

    def rows(
        self, seed: int, epochs: Int64[np.ndarray, " b"], indices: Int64[np.ndarray, " b"]
    ) -> tuple[Int64[np.ndarray, "b t"], Int64[np.ndarray, "b t"]]:
        rows = recall.recall(
            self._flat,
            self._begins[indices],
            self._lengths[indices],
            self._heads[indices],
            recall.draws_of(seed, epochs, indices),
            context=self._context,
            pad=self._pad,
            mask=self._mask,
        )
        targets = rows[:, 1:]
        return rows[:, :-1], np.where(targets == self._pad, IGNORE, targets)
