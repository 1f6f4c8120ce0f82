"""Recall: the fast form equals the definition, and little but the head is left to tell from."""

import numpy as np
import pytest

from attnlab.data.recall import draws_of, head_of, recall, recall_document

PAD, MASK = 0, 1


def some(count, seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 200, count)
    lengths[:4] = [1, 2, 3, 199]
    heads = generator.integers(0, 40, count)
    heads[:6] = [0, 5, 3, 39, 0, 1]
    return generator.integers(2, 60, lengths.sum()), lengths, heads


def rows_of(context, count=500):
    flat, lengths, heads = some(count)
    draws = draws_of(3, np.zeros(count, dtype=np.int64), np.arange(count))
    begins = np.cumsum(lengths) - lengths
    rows = recall(flat, begins, lengths, heads, draws, context=context, pad=PAD, mask=MASK)
    documents = [flat[b : b + n].tolist() for b, n in zip(begins, lengths, strict=True)]
    return rows, documents, heads, draws


@pytest.mark.parametrize("context", [5, 8, 17, 64, 128])
def test_the_fast_form_equals_the_definition(context):
    rows, documents, heads, draws = rows_of(context)
    assert rows.shape == (500, context + 1) and rows.dtype == np.int64
    for row, document, head, draw in zip(rows, documents, heads, draws, strict=True):
        want = recall_document(
            document, int(head), draw.tolist(), context=context, pad=PAD, mask=MASK
        )
        assert row.tolist() == want


@pytest.mark.parametrize("context", [5, 16, 128])
def test_a_row_is_the_head_a_few_words_and_the_span(context):
    rows, documents, heads, _ = rows_of(context)
    for row, document, head in zip(rows, documents, heads, strict=True):
        text = row[row != PAD]
        first, second = np.flatnonzero(text == MASK)
        before, after, span = text[:first], text[first + 1 : second], text[second + 1 :]
        body = min(head, len(document) - 1)
        most = max(context - 1 - context // 4 - context // 8 - max(context // 8, 1), 0)
        assert 1 <= len(span) <= max(context // 8, 1) and len(after) <= context // 8
        shown = before[: min(body, most)]
        assert shown.tolist() == document[: len(shown)]
        assert len(before) - len(shown) <= context // 4
        rest, tail = [*before[len(shown) :], *span, *after], document[body:]
        assert any(tail[n : n + len(rest)] == rest for n in range(len(tail)))


def test_every_place_of_a_document_is_asked_for():
    flat, count = np.arange(2, 62), 4000
    draws = draws_of(0, np.arange(count), np.zeros(count, dtype=np.int64))
    same = np.zeros(count, dtype=np.int64)
    rows = recall(flat, same, same + 60, same + 10, draws, context=128, pad=PAD, mask=MASK)
    starts = {int(row[np.flatnonzero(row == MASK)[1] + 1]) - 2 for row in rows}
    assert starts == set(range(10, 60))


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("Ann Oak. Ann was born.", "Ann Oak."),
        ("Douglas P. Fry. Douglas P Fry (born …", "Douglas P. Fry."),
        ("J. R. Elm. He", "J. R. Elm."),
        ("no stop here", ""),
        ("ends with it.", ""),
        ("", ""),
    ],
)
def test_a_head_ends_at_the_first_full_stop_that_is_no_initial(text, head):
    assert head_of(text) == head
