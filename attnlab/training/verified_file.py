"""A file that is read in ranges: every block of it is checked against its hash before use.

The hash of a whole file would have to be computed before any byte of it may be used. A process that
needs a hundredth of a checkpoint reads that hundredth, and the blocks around it.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnlab import files
from attnlab.training.tensor_file import TensorFile

BLOCK = 1 << 24  # bytes


class BrokenCheckpoint(ValueError):
    """A checkpoint that must not be used: what is wrong with it, in one line."""


class Described:
    """The bytes of a tensor file as they are written, and then their number and hashes."""

    def __init__(self, content: TensorFile) -> None:
        self._content = content
        self._hashes: list[str] = []

    def __len__(self) -> int:
        return len(self._content)

    def __iter__(self) -> Iterator[memoryview]:
        self._hashes = []
        block, left = hashlib.sha256(), BLOCK
        for piece in self._content:
            yield piece
            while len(piece) >= left:
                block.update(piece[:left])
                self._hashes.append(block.hexdigest())
                piece, block, left = piece[left:], hashlib.sha256(), BLOCK
            block.update(piece)
            left -= len(piece)
        if left < BLOCK:
            self._hashes.append(block.hexdigest())

    def entry(self) -> dict[str, Any]:
        """For the manifest, once all has been written."""
        return {"bytes": len(self), "blocks": self._hashes}


class VerifiedFile:
    """A file as a manifest describes it, by blocks or by one hash. Open it with `with`.

    Of a file with one hash, opening reads all of it: then its blocks have hashes too.
    """

    def __init__(self, path: Path, entry: Any) -> None:
        self.path = path
        described = entry if isinstance(entry, Mapping) else {}
        size, hashes = described.get("bytes"), described.get("blocks")
        self._whole = described.get("sha256")
        counted = isinstance(hashes, list) and type(size) is int and len(hashes) == _blocks(size)
        if type(size) is not int or size < 0 or not (counted or self._whole):
            raise BrokenCheckpoint(f"the manifest does not describe {path}")
        self.size: int = size
        self._hashes: list[Any] = hashes if isinstance(hashes, list) else []
        self._number, self._block = -1, memoryview(b"")

    def __enter__(self) -> "VerifiedFile":
        try:
            if not self.path.is_file():  # opening a FIFO would wait for ever
                raise BrokenCheckpoint(f"{self.path} is missing; the checkpoint is not whole")
            self._file = files.open_plain(self.path)
        except OSError as error:
            raise self._unreadable(error) from None
        found = self._file.seek(0, 2)
        if found != self.size:
            self._file.close()
            raise BrokenCheckpoint(f"{self.path} has {found:,} bytes; the manifest says otherwise")
        if self._whole is not None:
            self._read_all()
        return self

    def _read_all(self) -> None:
        every, self._hashes = hashlib.sha256(), []
        self._file.seek(0)
        while block := self._file.read(BLOCK):
            every.update(block)
            self._hashes.append(hashlib.sha256(block).hexdigest())
        if every.hexdigest() != self._whole or len(self._hashes) != _blocks(self.size):
            self._file.close()
            raise self._damaged()

    def __exit__(self, *_: object) -> None:
        self._block = memoryview(b"")
        self._file.close()

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes from start to stop, at most a block at a time; BrokenCheckpoint if damaged."""
        if stop > self.size:
            raise BrokenCheckpoint(f"{self.path} ends before its tensors do")
        while start < stop:
            number, within = divmod(start, BLOCK)
            piece = self._read(number)[within : within + stop - start]
            yield piece
            start += len(piece)

    def read(self, start: int, stop: int) -> bytes:
        return b"".join(self.pieces(start, stop))

    def _read(self, number: int) -> memoryview:
        """A block; the last one read is kept, since small tensors share theirs."""
        if number != self._number:
            try:
                self._file.seek(number * BLOCK)
                block = self._file.read(BLOCK)
            except OSError as error:
                raise self._unreadable(error) from None
            if hashlib.sha256(block).hexdigest() != self._hashes[number]:
                raise self._damaged()
            self._number, self._block = number, memoryview(block)
        return self._block

    def _damaged(self) -> BrokenCheckpoint:
        return BrokenCheckpoint(f"{self.path} is damaged: its hash does not match")

    def _unreadable(self, error: OSError) -> BrokenCheckpoint:
        said = error.strerror or str(error)
        there = said if str(self.path) in said else f"{self.path} cannot be read: {said}"
        return BrokenCheckpoint(there)


def _blocks(size: int) -> int:
    return -(-size // BLOCK)
