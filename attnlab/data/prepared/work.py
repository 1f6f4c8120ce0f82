"""What a worker does: documents of a part to tokens, written as shards. Imports no torch.

Cost: of BPE about a quarter of a microsecond a byte, measured in docs/data.md; the part and its
tokens in memory.
"""

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from attnlab.data.prepared import documents, folder
from attnlab.data.prepared.documents import Document, Piece
from attnlab.data.prepared.folder import Record
from attnlab.data.prepared.preparation import Preparation
from attnlab.data.prepared.sources import File, Part
from attnlab.data.tokens import MASK, PAD, Tokenizer

GROUP = 2**20  # bytes of documents that are encoded at once


@dataclass(frozen=True)
class Job:
    """What all parts have in common; goes to every worker once."""

    place: Path  # the folder
    settings: Preparation
    files: tuple[File, ...]
    plan: str
    size: int  # of a part


@dataclass(frozen=True)
class Done:
    record: Record
    seconds: float  # of a processor
    pid: int
    peak: int  # bytes that this process has had in memory at most


_job: Job | None = None
_tokenizer: Tokenizer | None = None


def begin(job: Job, ears: Connection | None = None) -> None:
    """Of a worker: it ends with whoever started it, whatever ended that."""
    global _job, _tokenizer
    _job, _tokenizer = job, None
    if ears is not None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for every core
        threading.Thread(target=_end_with, args=[ears], daemon=True).start()


def begin_once(job: Job) -> None:
    """Of a worker that is told with each call; the tokenizer stays while the job is the same."""
    if _job != job:
        begin(job)


def _end_with(ears: Connection) -> None:
    ears.poll(None)
    os._exit(1)


def encode(part: Part, piece: Piece | None) -> Done:
    """Tokens of a part, or of a piece of a stream, into the folder."""
    global _tokenizer
    before = time.process_time()
    assert _job is not None
    if _tokenizer is None:
        _tokenizer = folder.read_tokenizer(_job.place)
    key = folder.key_of(part.number, 0 if piece is None else piece.number)
    found = _Found(_job, _tokenizer)
    for document in _documents(_job, part, piece):
        found.add(document)
    record = folder.write_part(
        _job.place,
        key,
        found.finished(),
        last=piece is None or piece.last,
        bytes=found.bytes,
        faults=found.faults,
        plan=_job.plan,
    )
    return Done(record, time.process_time() - before, os.getpid(), peak_bytes())


def alphabet(part: Part, piece: Piece | None) -> str:
    """The characters of a part."""
    assert _job is not None
    seen: set[str] = set()
    for document in _documents(_job, part, piece):
        seen.update(document.content.decode())
    return "".join(sorted(seen))


def _documents(job: Job, part: Part, piece: Piece | None) -> Iterator[Document]:
    field, cut = job.settings.field, job.settings.documents
    if piece is None:
        return documents.documents_of(part, job.files, field, cut)
    file = job.files[part.spans[0].file]
    return documents.split(piece.content, piece.place, file, field, cut)


class _Found:
    """The tokens of a part so far, by split; encoded in groups."""

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self._settings, self._tokenizer = job.settings, tokenizer
        self._dtype = np.dtype(f"u{folder.width_of(tokenizer)}")
        self._waiting: list[tuple[str, str, Document]] = []
        self._size = 0
        self._tokens = {split: list[np.ndarray]() for split in folder.SPLITS}
        self._lengths = {split: list[int]() for split in folder.SPLITS}
        self.faults: dict[str, int] = {}
        self.bytes = 0

    def add(self, document: Document) -> None:
        content, settings = document.content, self._settings
        if document.fault:
            self._leave_out(document.place, document.fault)
            return
        text = content.decode()
        if self._tokenizer.special and (PAD in text or MASK in text):
            self._leave_out(document.place, documents.MARK)
            return
        split = "validation" if settings.kept_apart(content) else "train"
        if not text.endswith(settings.separator):
            text += settings.separator
        self._waiting.append((split, text, document))
        self._size += len(content)
        if self._size >= GROUP:
            self._encode()

    def finished(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Tokens and ends of documents of each split."""
        self._encode()
        found = {}
        for split in folder.SPLITS:
            tokens = np.concatenate([np.empty(0, self._dtype), *self._tokens.pop(split)])
            ends = np.cumsum(np.array(self._lengths[split], dtype=np.int64))
            assert len(tokens) < 2**32, "a part is smaller"
            found[split] = tokens, ends.astype(np.uint32)
        return found

    def _leave_out(self, place: str, fault: str) -> None:
        if self._settings.bad == "refuse":
            raise ValueError(
                f"{place}: a document {fault}; mend it, or leave out such documents and count "
                "them: bad=skip"
            )
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def _encode(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        for (split, _, document), ids in zip(waiting, self._each(waiting), strict=True):
            if ids is None:
                self._leave_out(document.place, documents.UNKNOWN)
                continue
            self.bytes += len(document.content)
            self._tokens[split].append(ids.astype(self._dtype))
            self._lengths[split].append(len(ids))

    def _each(self, waiting: Sequence[tuple[str, str, Document]]) -> list[np.ndarray | None]:
        """Tokens of each text; None of one that a tokenizer from elsewhere does not know."""
        try:
            return list(self._tokenizer.encode_each([text for _, text, _ in waiting]))
        except ValueError:
            if len(waiting) == 1:
                return [None]
            return [one for text in waiting for one in self._each([text])]


def peak_bytes() -> int:
    """Of this process, at most, so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
