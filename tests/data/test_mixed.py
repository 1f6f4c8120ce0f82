"""Mixed: every document once an epoch, questions in their share and none of them twice a round."""

from collections import Counter

import numpy as np
import pytest
import torch

from attnlab.data.batches import IGNORE, batch_of
from attnlab.data.biographies import Biographies
from attnlab.data.corpora import PythonDocs
from attnlab.data.mixed import Mixed
from attnlab.data.objectives import Questions, SpanCorruption
from attnlab.data.tokens import Characters

CORPUS = Biographies(people=40, attributes=1, wordings=2).load()
TOKENS = Characters().train(CORPUS.alphabet(), special=True)


def source(**settings):
    return Mixed(**settings).source(CORPUS, TOKENS, context=64, seed=5)


def texts(batch):
    rows = batch.tokens.tolist()
    return [TOKENS.decode([token for token in row if token != TOKENS.pad]) for row in rows]


def epoch(made, number):
    return made.batch(np.full(made.count, number), np.arange(made.count))


def test_an_epoch_has_each_document_once_and_questions_in_their_share():
    made = source(questions=0.2, recall=0.5)
    assert made.count == 80 + 20 and made.validation_count == 20 and made.answers
    rows = texts(epoch(made, 0))
    assert sum(row.startswith("Where was") for row in rows) == 20
    assert not any(row.startswith("Where was") for row in rows[:80])


def test_all_questions_come_up_before_any_comes_again():
    made = source(questions=0.1)  # 9 of 20 in an epoch
    asked = [row for n in range(20) for row in texts(epoch(made, n))[80:]]
    assert len(asked) == 180
    for first in range(0, 180, 20):
        counts = Counter(asked[first : first + 20])
        assert len(counts) == 20
    assert asked[:20] != asked[20:40]


def test_spans_and_questions_are_those_of_the_single_objectives():
    made = source(recall=0.0, part=0.3)
    given = {"context": 64, "seed": 5}
    spans = SpanCorruption(part=0.3).source(CORPUS, TOKENS, **given)
    asked = Questions().source(CORPUS, TOKENS, **given)
    whole, index = epoch(made, 3), np.arange(80)
    alone = spans.batch(np.full(80, 3), index)
    assert torch.equal(whole.tokens[:80], alone.tokens)
    assert torch.equal(whole.targets[:80], alone.targets)
    pairs = {
        (tuple(x), tuple(y))
        for x, y in zip(*map(np.ndarray.tolist, asked.rows(np.arange(20))), strict=True)
    }
    for x, y in zip(whole.tokens[80:].tolist(), whole.targets[80:].tolist(), strict=True):
        assert (tuple(x), tuple(y)) in pairs
    for ours, theirs in zip(made.validation(7), asked.validation(7), strict=True):
        assert torch.equal(ours.tokens, theirs.tokens) and torch.equal(ours.targets, theirs.targets)


def test_recall_takes_its_part_of_the_documents_and_differs_by_epoch():
    made = source(recall=0.25)
    same = source(recall=0.0)
    different = [
        int((epoch(made, n).tokens[:80] != epoch(same, n).tokens[:80]).any(1).sum())
        for n in range(50)
    ]
    # 4,000 draws of a quarter: five standard errors are 137
    assert abs(sum(different) - 1000) < 137
    assert len(set(different)) > 1


def test_targets_are_the_next_tokens_and_padding_has_none():
    batch = batch_of(source(recall=0.9), seed=1, step=2, size=64)
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        inside = targets != IGNORE
        inside[-1] = False
        places = inside.nonzero().flatten()
        assert torch.equal(tokens[places + 1], targets[places])
        assert (targets[tokens == TOKENS.pad] == IGNORE).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"questions": 0.0}, r"objective\.questions is 0\.0"),
        ({"questions": 1.0}, r"objective\.questions is 1\.0"),
        ({"recall": -0.1}, r"objective\.recall is -0\.1"),
        ({"recall": 1.0}, r"objective\.recall is 1\.0"),
        ({"part": 0.6}, r"objective\.part is 0\.6"),
    ],
)
def test_parts_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Mixed(**settings)


def test_one_long_text_has_no_heads():
    corpus = PythonDocs().load()
    tokenizer = Characters().train(corpus.alphabet(), special=True)
    with pytest.raises(ValueError, match="needs documents with heads"):
        Mixed().source(corpus, tokenizer, context=64, seed=0)
