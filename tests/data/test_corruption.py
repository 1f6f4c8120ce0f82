"""Span corruption: the fast form equals the definition, and the lengths are as promised."""

import numpy as np
import pytest

from attnlab.data.corruption import corrupt, corrupt_document, draws_of, room_of

PAD, MASK = 0, 1


def some_documents(count, context, seed=0):
    """Documents of 1 token and more, some longer than can be used; behind each end stands junk."""
    room = room_of(context)
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, room + 1, count)
    lengths[:10] = [1, 2, 3, 4, 5, room, room, room, 2, 1]
    return generator.integers(2, 60, (count, room)), np.minimum(lengths, room)


def parts_of(row):
    """prefix, suffix, span of one row."""
    row = row[row != PAD]
    first, second = np.flatnonzero(row == MASK)
    return row[:first], row[first + 1 : second], row[second + 1 :]


def corrupt_all(documents, lengths, context, seed=3, epoch=0):
    indices = np.arange(len(lengths))
    draws = draws_of(seed, np.full_like(indices, epoch), indices)
    return corrupt(documents, lengths, draws, context=context, pad=PAD, mask=MASK), draws


@pytest.mark.parametrize("context", [5, 7, 16, 33, 128])
def test_the_fast_form_equals_the_definition(context):
    documents, lengths = some_documents(700, context)
    rows, draws = corrupt_all(documents, lengths, context)
    assert rows.shape == (700, context + 1) and rows.dtype == np.int64
    for document, length, draw, row in zip(documents, lengths, draws, rows, strict=True):
        plain = document[:length].tolist()
        wanted = corrupt_document(plain, draw.tolist(), context=context, pad=PAD, mask=MASK)
        assert row.tolist() == wanted


@pytest.mark.parametrize("part", [0.05, 0.35, 0.5])
def test_another_part_may_be_removed(part):
    """The fast form equals the definition, and long documents lose the part asked for."""
    context, count = 128, 4000
    documents, lengths = np.full((count, 112), 7), np.full(count, 112)
    indices = np.arange(count)
    draws = draws_of(3, indices, indices)
    rows = corrupt(documents, lengths, draws, context=context, pad=PAD, mask=MASK, part=part)
    removed = []
    for draw, row in zip(draws[:300], rows, strict=False):
        plain = [7] * 112
        wanted = corrupt_document(
            plain, draw.tolist(), context=context, pad=PAD, mask=MASK, part=part
        )
        assert row.tolist() == wanted
    for row in rows:
        prefix, suffix, span = parts_of(row)
        whole = len(prefix) + len(span) + len(suffix)
        if whole > 80:
            removed.append(len(span) / whole)
    # the spread of an even draw from 0 to 2 part is part / √3; five standard errors
    assert abs(np.mean(removed) - part) < 5 * part / np.sqrt(3 * len(removed)) + 0.5 / 80


@pytest.mark.parametrize("context", [5, 9, 128])
def test_prefix_span_and_suffix_are_the_beginning_of_the_document(context):
    documents, lengths = some_documents(700, context, seed=1)
    rows, _ = corrupt_all(documents, lengths, context)
    for document, length, row in zip(documents, lengths, rows, strict=True):
        prefix, suffix, span = parts_of(row)
        whole = np.concatenate([prefix, span, suffix])
        assert len(whole) <= length and len(span) >= 1
        assert len(whole) >= min(4, length)
        assert (whole == document[: len(whole)]).all()
        assert (row[len(whole) + 2 :] == PAD).all()


def test_lengths_and_spans_are_distributed_as_promised():
    """Of 20,000 long documents; five standard errors of each mean are allowed."""
    count, context = 20_000, 128
    documents = np.full((count, 112), 7)
    rows, _ = corrupt_all(documents, np.full(count, 112), context)
    length = (rows != PAD).sum(1) - 2
    second = context - np.argmax(rows[:, ::-1] == MASK, axis=1)
    first = np.argmax(rows == MASK, axis=1)
    span = length + 2 - second - 1
    assert (length.min(), length.max()) == (4, 112) and len(np.unique(length)) == 109
    assert abs(length.mean() - 58) < 5 * 31.5 / count**0.5
    ratio = span / length
    assert abs(ratio.mean() - 0.25) < 5 * ratio.std() / count**0.5
    for parity in (0, 1):  # the mean is exact for odd lengths too
        ours = ratio[length % 2 == parity]
        assert abs(ours.mean() - 0.25) < 5 * ours.std() / len(ours) ** 0.5
    place = first[length - span > 40] / (length - span)[length - span > 40]
    assert abs(place.mean() - 0.5) < 0.01 and place.min() == 0 and place.max() == 1


def test_every_epoch_corrupts_anew_and_the_same_way_each_time():
    documents, lengths = some_documents(200, 32)
    one, two, again = (corrupt_all(documents, lengths, 32, epoch=e)[0] for e in (0, 1, 0))
    assert (one == again).all() and (one != two).any(1).mean() > 0.8
    other, _ = corrupt_all(documents, lengths, 32, seed=4)
    assert (one != other).any(1).mean() > 0.8


def test_a_row_does_not_depend_on_its_neighbours():
    documents, lengths = some_documents(50, 32)
    rows, draws = corrupt_all(documents, lengths, 32)
    for row in (0, 17, 49):
        alone = slice(row, row + 1)
        got = corrupt(
            documents[alone], lengths[alone], draws[alone], context=32, pad=PAD, mask=MASK
        )
        assert (got[0] == rows[row]).all()


def test_a_context_without_room_is_refused():
    assert room_of(128) == 112 and room_of(5) == 4
    with pytest.raises(ValueError, match=r"context is 4; .* use 5 or more"):
        room_of(4)
