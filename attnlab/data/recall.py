"""Recall: a few words of a document, asked for by its head and hardly anything else.

Axes: b documents, t time.

    document   head … before span after …      "Ada Lovelace. … born in London to …"
    row        head before MASK after MASK span PAD …            context + 1 tokens

Span corruption shows nearly all of a document, so most spans can be told from the words around
them. Here little is left to tell from but the head, whose facts have to be stored under it: that is
how a question will ask for them. At most 1/4 of the context stands before the span, 1/8 after it,
and the span has at most 1/8; all three are drawn evenly, as is the place.

Cost: O(b * t), no loop over documents.
"""

import re

import numpy as np
from jaxtyping import Float64, Int64, Integer

from attnlab import counter_rng

# a full stop ends a head, unless it belongs to an initial: "Douglas P. Fry. …"
_HEAD = re.compile(r"^.*?(?<!\b\w)\.(?=\s)", re.DOTALL)


def head_of(text: str) -> str:
    """What a document begins with, up to its first full stop; nothing if there is none."""
    found = _HEAD.match(text)
    return found.group() if found else ""


def draws_of(
    seed: int, epochs: Int64[np.ndarray, " b"], indices: Int64[np.ndarray, " b"]
) -> Float64[np.ndarray, "b 4"]:
    """For place, span, before and after."""
    return counter_rng.uniform(seed, "recall", epochs[:, None], indices[:, None], np.arange(4))


def recall_document(
    document: list[int], head: int, draws: list[float], *, context: int, pad: int, mask: int
) -> list[int]:
    """The definition, for one document of 1 or more tokens; `recall` equals it."""
    before, after, span, room = _limits(context)
    body = min(head, len(document) - 1)
    start = body + int(draws[0] * (len(document) - body))
    stop = min(start + 1 + int(draws[1] * span), len(document))
    first = max(start - int(draws[2] * (before + 1)), body)
    last = min(stop + int(draws[3] * (after + 1)), len(document))
    shown = document[: min(body, room)]
    row = [*shown, *document[first:start], mask, *document[stop:last], mask, *document[start:stop]]
    return row + [pad] * (context + 1 - len(row))


def recall(
    flat: Integer[np.ndarray, " n"],
    begins: Int64[np.ndarray, " b"],
    lengths: Int64[np.ndarray, " b"],
    heads: Int64[np.ndarray, " b"],
    draws: Float64[np.ndarray, "b 4"],
    *,
    context: int,
    pad: int,
    mask: int,
) -> Int64[np.ndarray, "b {context+1}"]:
    """Rows for documents that lie in `flat` one after the other."""
    before, after, span, room = _limits(context)
    body = np.minimum(heads, lengths - 1)
    start = body + (draws[:, 0] * (lengths - body)).astype(np.int64)
    stop = np.minimum(start + 1 + (draws[:, 1] * span).astype(np.int64), lengths)
    first = np.maximum(start - (draws[:, 2] * (before + 1)).astype(np.int64), body)
    last = np.minimum(stop + (draws[:, 3] * (after + 1)).astype(np.int64), lengths)
    shown = np.minimum(body, room)

    # where each piece ends in the row
    ends = np.cumsum([shown, start - first, np.ones_like(start), last - stop], axis=0)
    head, one, masked, two = (end[:, None] for end in ends)
    place = np.arange(context + 1)
    source = np.select(
        [place < head, place < one, place < two],
        [place, place - head + first[:, None], place - masked + stop[:, None]],
        place - two - 1 + start[:, None],
    )
    inside = np.clip(begins[:, None] + source, 0, len(flat) - 1)  # of marks and padding, not used
    rows = flat[inside].astype(np.int64)
    rows[(place == one) | (place == two)] = mask
    rows[place >= two + 1 + (stop - start)[:, None]] = pad
    return rows


def _limits(context: int) -> tuple[int, int, int, int]:
    """The most tokens before the span, after it, in it, and of the head."""
    before, after, span = context // 4, context // 8, max(context // 8, 1)
    return before, after, span, max(context - 1 - before - after - span, 0)
