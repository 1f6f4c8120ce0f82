"""Span corruption: a document loses a span of its text and is asked for it at the end.

Axes: b documents, t time, room the longest text of a document that is used.

    document   cut to a random length, L tokens:   prefix span suffix
    row        prefix MASK suffix MASK span PAD …  context + 1 tokens

The length is drawn evenly from 4 to 7/8 of the context; a shorter document stays whole. The span
has on average `part` of its tokens (a quarter): evenly from 1 to 2 part L - 1, and where 2 part L
is no whole number it is rounded up or down by chance. It stands anywhere with equal chance. All
draws are functions of (seed, epoch, index), so a document is corrupted anew in every epoch and the
same way every time.

Cost: O(b * t), no loop over documents.
"""

import math

import numpy as np
from jaxtyping import Float64, Int64

from attnlab import counter_rng

SHORTEST = 4
QUARTER = 0.25  # the part of a text that is removed on average, unless another is asked for


def room_of(context: int) -> int:
    """How many tokens of a document a row can use."""
    if context < 5:
        raise ValueError(
            f"context is {context}; span corruption uses 7/8 of it and at least {SHORTEST} tokens, "
            "so use 5 or more"
        )
    return context * 7 // 8


def draws_of(
    seed: int, epochs: Int64[np.ndarray, " b"], indices: Int64[np.ndarray, " b"]
) -> Float64[np.ndarray, "b 4"]:
    """For length, rounding, span and place."""
    return counter_rng.uniform(
        seed, "span corruption", epochs[:, None], indices[:, None], np.arange(4)
    )


def corrupt_document(
    document: list[int],
    draws: list[float],
    *,
    context: int,
    pad: int,
    mask: int,
    part: float = QUARTER,
) -> list[int]:
    """The definition, for one document; `corrupt` equals it."""
    length = SHORTEST + int(draws[0] * (room_of(context) - SHORTEST + 1))
    document = document[:length]
    length = len(document)
    most = math.ceil(2 * part * length - draws[1])
    span = 1 + int(draws[2] * max(most - 1, 1))
    start = int(draws[3] * (length - span + 1))
    prefix, removed, suffix = document[:start], document[start:][:span], document[start + span :]
    row = [*prefix, mask, *suffix, mask, *removed]
    return row + [pad] * (context + 1 - len(row))


def corrupt(
    documents: Int64[np.ndarray, "b room"],
    lengths: Int64[np.ndarray, " b"],
    draws: Float64[np.ndarray, "b 4"],
    *,
    context: int,
    pad: int,
    mask: int,
    part: float = QUARTER,
) -> Int64[np.ndarray, "b {context+1}"]:
    """Rows for documents of 1 or more tokens; what stands behind a document's end is not read."""
    room = room_of(context)
    length = SHORTEST + (draws[:, 0] * (room - SHORTEST + 1)).astype(np.int64)
    length = np.minimum(length, lengths)
    most = np.ceil(2 * part * length - draws[:, 1])
    span = 1 + (draws[:, 2] * np.maximum(most - 1, 1)).astype(np.int64)
    start = (draws[:, 3] * (length - span + 1)).astype(np.int64)

    length, span, start = length[:, None], span[:, None], start[:, None]
    second = length - span + 1  # where the second MASK stands
    place = np.arange(context + 1)
    source = np.where(
        place < start,
        place,
        np.where(place < second, place - 1 + span, place - second - 1 + start),
    )
    inside = np.clip(source, 0, documents.shape[1] - 1)  # of marks and padding, not used
    rows = np.take_along_axis(documents, inside, axis=1)
    rows[(place == start) | (place == second)] = mask
    rows[place >= length + 2] = pad
    return rows
