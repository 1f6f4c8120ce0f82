"""Token streams: small ones in memory, large ones in files that are mapped and never read whole.

Axes: b rows, t time.

A folder of shards holds `00000.tokens`, `00001.tokens`, … and `index.json`, written last. A shard
is a header of 64 bytes (magic, schema, bytes a token, count, SHA-256 of what follows) and the
tokens, 1, 2 or 4 bytes each. The index has the hashes of the shards and one of itself. Files appear
whole or not at all, and their content depends on the text and the tokenizer alone: two processes
that make the same shards replace them by equal ones. What is damaged is made again.

Cost: opening hashes every byte, about a second a gigabyte; taking rows is O(b * t).
"""

import hashlib
import itertools
import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from attnlab import files, json_files
from attnlab.data.corpora import Corpus
from attnlab.data.tokens import Tokenizer
from attnlab.files import cache_folder

SMALL = 32 * 2**20  # characters; a text below this stays in memory
SHARD = 2**24  # tokens in a shard
SCHEMA = 2
_HEADER = struct.Struct("<8sIIQ32s8x")
_MAGIC = b"attntoks"


class Stream:
    """A sequence of tokens over one or more arrays."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = list(arrays)
        self._ends = np.cumsum([len(array) for array in self._arrays], dtype=np.int64)
        self.count = int(self._ends[-1]) if self._arrays else 0

    def take(self, starts: Int64[np.ndarray, " b"], length: int) -> Int64[np.ndarray, "b {length}"]:
        """`length` tokens from each start, across the borders of arrays."""
        self.refuse_outside(starts, length)
        places = starts[:, None] + np.arange(length)
        if len(self._arrays) == 1:
            return self._arrays[0][places].astype(np.int64)
        found = np.empty(places.shape, dtype=np.int64)
        owners = np.searchsorted(self._ends, places, side="right")
        for owner in np.unique(owners):
            here = owners == owner
            array = self._arrays[owner]
            found[here] = array[places[here] - (self._ends[owner] - len(array))]
        return found

    def refuse_outside(self, starts: Int64[np.ndarray, " b"], length: int) -> None:
        if len(starts) and (starts.min() < 0 or starts.max() + length > self.count):
            raise ValueError(
                f"tokens {starts.min()} to {starts.max() + length} are asked for; "
                f"the stream has {self.count}"
            )


def stream_of(
    corpus: Corpus,
    tokenizer: Tokenizer,
    split: str,
    *,
    note: Callable[[str], None] = lambda line: None,
) -> Stream:
    """The tokens of a split; documents are joined by newlines. `note` hears of files made."""
    if (there := corpus.stream(split, tokenizer)) is not None:
        return there
    pieces = _join_documents(corpus.pieces(split)) if corpus.documents else corpus.pieces(split)
    tokens = (tokenizer.encode(piece) for piece in pieces)
    dtype = smallest_dtype(tokenizer.size)
    if corpus.characters(split) < SMALL:
        return Stream(
            [np.concatenate([np.empty(0, dtype), *(part.astype(dtype) for part in tokens)])]
        )
    words = json.dumps([SCHEMA, corpus.fingerprint, split, tokenizer.to_json()], sort_keys=True)
    folder = Path("shards") / hashlib.sha256(words.encode()).hexdigest()[:32]
    try:
        folder = cache_folder() / folder
        return shards_in(folder, tokens, dtype, note=note)
    except OSError as error:
        raise ValueError(
            f"tokens cannot be kept in {folder}: {error.strerror or error}; "
            "set ATTNLAB_CACHE to a folder with room"
        ) from None


def smallest_dtype(vocabulary: int) -> np.dtype:
    if vocabulary <= 2**8:
        return np.dtype(np.uint8)
    return np.dtype(np.uint16 if vocabulary <= 2**16 else np.uint32)


def shards_in(
    folder: Path,
    tokens: Iterator[np.ndarray],
    dtype: np.dtype,
    *,
    note: Callable[[str], None] = lambda line: None,
) -> Stream:
    """Open the shards of a folder; when one is missing or broken, make them from the tokens."""
    if os.path.lexists(folder / "index.json"):
        try:
            return open_shards(folder)
        except ValueError as error:
            note(f"{error}; tokenizing again")
    else:
        note(f"tokenizing into {folder}")
    files.make_folder(folder)
    make_shards(folder, tokens, dtype)
    return open_shards(folder)


def make_shards(folder: Path, tokens: Iterator[np.ndarray], dtype: np.dtype) -> None:
    rows = []
    for number, block in enumerate(_blocks(tokens, dtype)):
        payload = block.astype(block.dtype.newbyteorder("<")).tobytes()
        digest = hashlib.sha256(payload)
        header = _HEADER.pack(_MAGIC, SCHEMA, dtype.itemsize, len(block), digest.digest())
        name = f"{number:05}.tokens"
        files.write_whole(folder / name, header + payload)
        rows.append({"name": name, "count": len(block), "sha256": digest.hexdigest()})
    index = {"schema": SCHEMA, "bytes": dtype.itemsize, "shards": rows}
    files.write_whole(folder / "index.json", json_files.sealed_json(index))


def open_shards(folder: Path) -> Stream:
    """The stream, every byte of it verified; a ValueError that says what is broken."""
    try:
        index = json_files.read_sealed(folder / "index.json")
    except OSError as error:
        raise ValueError(f"{folder / 'index.json'} cannot be read: {error.strerror}") from None
    rows = index.get("shards")
    if not isinstance(rows, list) or index.get("schema") != SCHEMA:
        raise ValueError(f"{folder / 'index.json'} is not an index of shards of schema {SCHEMA}")
    itemsize = index.get("bytes")
    if itemsize not in (1, 2, 4):
        raise ValueError(
            f"{folder / 'index.json'} has {itemsize!r} bytes a token; 1, 2 or 4 are right"
        )
    names = [f"{number:05}.tokens" for number in range(len(rows))]
    if [row.get("name") if isinstance(row, dict) else None for row in rows] != names:
        raise ValueError(f"{folder / 'index.json'} does not number its shards from 00000.tokens")
    return Stream([_open_array(folder / row["name"], itemsize, row) for row in rows])


def _open_array(path: Path, itemsize: int, row: dict[str, Any]) -> np.ndarray:
    try:
        with files.open_plain(path) as file:
            size, count = os.fstat(file.fileno()).st_size, row.get("count")
            if type(count) is not int or size != _HEADER.size + count * itemsize or count < 1:
                raise ValueError(f"{path} has {size} bytes, which is not what its index says")
            header = file.read(_HEADER.size)
            digest = hashlib.file_digest(file, "sha256").digest()
            if header != _HEADER.pack(_MAGIC, SCHEMA, itemsize, count, digest):
                raise ValueError(f"{path} is damaged: its header or hash does not fit its tokens")
            if row.get("sha256") != digest.hex():
                raise ValueError(f"{path} is not the shard that its index names")
            # the file that was hashed, whatever has its name by now
            return np.memmap(file, f"<u{itemsize}", "r", offset=_HEADER.size, shape=(count,))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _blocks(tokens: Iterator[np.ndarray], dtype: np.dtype) -> Iterator[np.ndarray]:
    """The tokens in blocks of SHARD, the last one shorter."""
    held: list[np.ndarray] = []
    count = 0
    for part in tokens:
        held.append(part.astype(dtype))
        count += len(part)
        if count >= SHARD:
            whole = np.concatenate(held)
            full = count - count % SHARD
            yield from whole[:full].reshape(-1, SHARD)
            held, count = [whole[full:]], count - full
    if count:
        yield np.concatenate(held)


def _join_documents(documents: Iterator[str]) -> Iterator[str]:
    """Documents with newlines between them, many at once: encoding a few letters costs as much."""
    first = True
    while group := list(itertools.islice(documents, 1024)):
        yield ("" if first else "\n") + "\n".join(group)
        first = False
