"""Text of any size to measure with: invented words, as often as those of a language are.

A pure function of its size and seed. Words are made of syllables; the n-th most frequent one comes
with probability 1 / (n + 3), so that short frequent words and many rare ones are there. Documents
are lines of JSONL, or paragraphs.

Cost: about 40 ns a byte.
"""

import itertools
from collections.abc import Iterator
from typing import Literal

import numpy as np

from attnlab import counter_rng

WORDS = 60_000
BLOCK = 4096  # documents made at once, of 60 words on average
_ONSETS = ["", "b", "br", "c", "ch", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "st"]
_ONSETS += ["t", "th", "tr", "v", "w"]
_VOWELS = ["a", "e", "i", "o", "u", "ea", "ou", "é"]
_CODAS = ["", "", "n", "r", "s", "t", "nd", "ng", "l", "ck"]


def words(seed: int) -> list[str]:
    """The most frequent first, and shortest."""
    syllables = ["".join(parts) for parts in itertools.product(_ONSETS, _VOWELS, _CODAS)]
    draws = counter_rng.uniform(seed, "syllables", np.arange(WORDS)[:, None], np.arange(4))
    chosen = (draws * len(syllables)).astype(np.int64).tolist()
    return [
        "".join(syllables[one] for one in row[: 1 + (rank > 200) + (rank > 4000) + (rank > 30_000)])
        for rank, row in enumerate(chosen)
    ]


def made_text(
    size: int, seed: int = 0, kind: Literal["jsonl", "text"] = "jsonl"
) -> Iterator[bytes]:
    """About `size` bytes, in blocks."""
    known = np.array(words(seed), dtype=object)
    weights = 1 / (np.arange(WORDS) + 3)
    edges = np.cumsum(weights / weights.sum())[:-1]
    written = block = 0
    while written < size:
        lengths = 1 + (119 * counter_rng.uniform(seed, "lengths", block, np.arange(BLOCK))).astype(
            int
        )
        draws = counter_rng.uniform(seed, "words", block, np.arange(int(lengths.sum())))
        drawn = known[np.searchsorted(edges, draws, side="right")].tolist()
        ends = np.cumsum(lengths).tolist()
        lines = [" ".join(drawn[start:stop]) for start, stop in zip([0, *ends], ends, strict=False)]
        if kind == "jsonl":
            content = "".join(f'{{"text": "{line}."}}\n' for line in lines).encode()
        else:
            content = "".join(f"{line}.\n\n" for line in lines).encode()
        content = content if written + len(content) <= size else _cut(content, size - written)
        yield content
        written, block = written + max(len(content), 1), block + 1


def _cut(content: bytes, size: int) -> bytes:
    """Whole lines of about that many bytes, one at least."""
    return content[: content.find(b"\n", size) + 1] or content
