"""A prepared text in training: its tokens are read where they lie, and never held in memory.

Axes: b rows, t time.

A row is read at its place by one call of the system, so no memory is mapped, and what has been read
does not count as memory of the process. Which files are open is bounded.

Cost: about 5 microseconds a row besides reading it, and 4 bytes a document of the files in use.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from attnlab import files, registry
from attnlab.config import setting, settings
from attnlab.data.corpora import Corpus, check_exists, check_split
from attnlab.data.prepared.folder import Opened, open_folder, read_index
from attnlab.data.shards import Stream
from attnlab.data.tokens import Tokenizer

OPEN = 64  # files of a split that are open at once


@settings
class Prepared:
    """What `attnlab prepare SOURCE FOLDER` has made: tokens, and the tokenizer they are of."""

    path: str = setting("", about="the folder; data=FOLDER sets it too")
    verify: bool = setting(False, about="hash every file of it at the start, not only new ones")

    def load(self) -> "PreparedCorpus":
        if not self.path:
            raise ValueError("no folder is named; write data=PATH with a prepared folder")
        return PreparedCorpus(open_folder(check_exists(self.path), whole=self.verify))


class PreparedCorpus(Corpus):
    documents = True

    def __init__(self, opened: Opened) -> None:
        self.name, self.fingerprint = str(opened.folder), opened.fingerprint
        self.tokenizer: Tokenizer = opened.tokenizer
        self._opened = opened
        self.questions = {"train": [], "dev": [], "test": []}

    def pieces(self, split: str) -> Iterator[str]:
        """The documents, as their tokens say."""
        check_split(split)
        stream = PreparedStream(self._opened, split)
        for first, last in stream.spans():
            ids = stream.take(np.array([first]), last - first)[0]
            yield self.tokenizer.decode(ids)

    def alphabet(self) -> Iterator[str]:
        for split in ("train", "validation"):
            yield from self.pieces(split)

    def stream(self, split: str, tokenizer: Tokenizer) -> "PreparedStream":
        check_split(split)
        if not _are_same(tokenizer, self.tokenizer):
            raise ValueError(
                f"{self.name} was prepared with another tokenizer than the model has; prepare its "
                "source with that one: tokenizer_from=RUN"
            )
        return PreparedStream(self._opened, split)


def settings_of(folder: Path) -> list[str]:
    """The words that make a recipe train on a prepared text: its corpus, and its tokenizer."""
    tokenizer = read_index(folder).tokenizer
    name = tokenizer.to_json()["name"]
    words = ["corpus=prepared", f"tokenizer={name}"]
    if any(one.name == "vocabulary" for one in fields(registry.load("tokenizer", name))):
        words.append(f"tokenizer.vocabulary={tokenizer.size}")
    return words


def _are_same(one: Tokenizer, other: Tokenizer) -> bool:
    """The same ids for the same text; a model may have more rows than its tokenizer tokens."""
    plain = [
        {key: v for key, v in each.to_json().items() if key != "size"} for each in (one, other)
    ]
    return plain[0] == plain[1]


class PreparedStream(Stream):
    """The tokens of a split, in the order of its parts."""

    def __init__(self, opened: Opened, split: str) -> None:
        records = [record for record in opened.records if record[split]["tokens"]]
        self._stems = [opened.folder / f"{split}-{record['part']}" for record in records]
        self._tokens = [record[split]["tokens"] for record in records]
        self._documents = [record[split]["documents"] for record in records]
        self._ends = np.cumsum([0, *self._tokens], dtype=np.int64)[1:]
        self._before = np.cumsum([0, *self._documents], dtype=np.int64)  # documents, by part
        self.count = sum(self._tokens)
        self._type = np.dtype(f"<u{opened.width}")
        self._file = lru_cache(OPEN)(self._open_tokens)
        self._borders = lru_cache(OPEN)(self._read_ends)

    def take(self, starts: Int64[np.ndarray, " b"], length: int) -> Int64[np.ndarray, "b {length}"]:
        self.refuse_outside(starts, length)
        found = np.empty((len(starts), length), dtype=np.int64)
        for row, part, inside, count, place in self._runs(starts, length):
            size = self._type.itemsize
            content = self._file(part).read(count * size, inside * size)
            found[row, place : place + count] = np.frombuffer(content, self._type)
        return found

    def numbers(
        self, starts: Int64[np.ndarray, " b"], length: int
    ) -> Int64[np.ndarray, "b {length}"]:
        """The number of the document of each of these tokens."""
        found = np.empty((len(starts), length), dtype=np.int64)
        for row, part, inside, count, place in self._runs(starts, length):
            tokens = np.arange(inside, inside + count)
            number = np.searchsorted(self._borders(part), tokens, side="right")
            found[row, place : place + count] = number + self._before[part]
        return found

    def spans(self) -> Iterator[tuple[int, int]]:
        """First and last token of each document."""
        for part in range(len(self._stems)):
            begin = int(self._ends[part]) - self._tokens[part]
            ends = [0, *self._borders(part).tolist()]
            yield from ((begin + a, begin + b) for a, b in itertools.pairwise(ends))

    def _runs(
        self, starts: Int64[np.ndarray, " b"], length: int
    ) -> Iterator[tuple[int, int, int, int, int]]:
        """Each run of tokens of a row within a part: row, part, place in it, count, column."""
        owners = np.searchsorted(self._ends, starts, side="right").tolist()
        for row, (start, part) in enumerate(zip(starts.tolist(), owners, strict=True)):
            column = 0
            while column < length:
                end = int(self._ends[part])
                inside = start + column - (end - self._tokens[part])
                count = min(length - column, end - start - column)
                yield row, part, inside, count, column
                column += count
                part += 1

    def _open_tokens(self, part: int) -> "_Numbers":
        return _Numbers(self._stems[part].with_name(f"{self._stems[part].name}.tokens"))

    def _read_ends(self, part: int) -> np.ndarray:
        path = self._stems[part].with_name(f"{self._stems[part].name}.ends")
        count = self._documents[part]
        return np.frombuffer(_Numbers(path).read(4 * count, 0), "<u4").astype(np.int64)


class _Numbers:
    """A file of numbers, open until nobody has it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._opened = files.open_plain(path)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None

    def read(self, count: int, place: int) -> bytes:
        content = os.pread(self._opened.fileno(), count, place)
        if len(content) != count:
            raise ValueError(f"{self._path} has become shorter while it was read; prepare it again")
        return content

    def __del__(self) -> None:
        if opened := getattr(self, "_opened", None):
            opened.close()
