"""Documents out of the parts of a source, and what is wrong with those that are none.

    text       a file of up to 1 MiB is a document; a larger one is cut after blank lines, and
               where none comes for 1 MiB, after a line; with documents=lines, every line is one
    JSONL      the field of each line
    Parquet    the column of each row; of Arrow files too

Text that is cut keeps its blank lines: all pieces one after the other are the file.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BufferedReader
from typing import Literal

from attnlab import files
from attnlab.data.prepared import columns
from attnlab.data.prepared.sources import File, Part, Span, read_range

Cut = Literal["auto", "lines"]

LONGEST = 2**20  # bytes of a document of text without a blank line, and of a file that is one
ENDLESS = 2**28  # bytes without the end of a line, which no JSONL has
READ = 2**22  # bytes of a stream at once
BLANK = re.compile(rb"\n(?:[ \t\r]*\n)+")

UTF8, EMPTY = "not UTF-8", "empty"
JSON, FIELD, TYPE = "not JSON", "without the field", "with a field that is no text"
MARK, UNKNOWN = "with a mark of the tokenizer", "with unknown characters"
FAULTS = (UTF8, EMPTY, JSON, FIELD, TYPE, MARK, UNKNOWN)


@dataclass(frozen=True)
class Document:
    """Its text, or why it has none."""

    place: str  # the file, and "byte 120" or "row 7" of it
    content: bytes = b""
    fault: str = ""


@dataclass(frozen=True)
class Piece:
    """Of a stream: the bytes of a part that belong together; `place` is where they begin."""

    number: int
    place: int
    content: bytes
    last: bool


def documents_of(part: Part, found: Sequence[File], field: str, cut: Cut) -> Iterator[Document]:
    """Of a part that is not streamed."""
    for span in part.spans:
        file = found[span.file]
        file.refuse_change()
        if file.kind in ("parquet", "arrow"):
            for row, text in columns.rows(file.path, file.kind, field, span.start, span.stop):
                yield _of_text(f"{file.path}, row {row:,}", text)
        else:
            start, stop = (edge(file, place, cut) for place in (span.start, span.stop))
            content = read_range(file, start, max(start, stop))
            yield from split(content, start, file, field, cut)
        file.refuse_change()


def split(content: bytes, place: int, file: File, field: str, cut: Cut) -> Iterator[Document]:
    """The documents in bytes of text or JSONL, which begin at this place of the file."""
    if file.kind == "jsonl":
        for begin, line in _lines(content):
            yield _of_line(f"{file.path}, byte {place + begin:,}", line, field)
        return
    if not file.packed and file.size <= LONGEST and cut == "auto":
        pieces: Iterator[tuple[int, bytes]] = iter([(0, content)])
    else:
        pieces = _lines(content) if cut == "lines" else _paragraphs(content)
    for begin, piece in pieces:
        yield _checked(f"{file.path}, byte {place + begin:,}", piece)


def edge(file: File, place: int, cut: Cut) -> int:
    """Where the first document at or after a place begins."""
    if place <= 0 or place >= file.size:
        return min(max(place, 0), file.size)
    begin, look = place - 1, LONGEST
    while True:
        stop = min(begin + look, file.size)
        found = edge_in(read_range(file, begin, stop), stop == file.size, file.kind, cut)
        if found is not None:
            return begin + found
        look *= 4
        _refuse_endless(file, begin, look)


def edge_in(window: bytes, ended: bool, kind: str, cut: Cut) -> int | None:
    """The same in bytes that begin one before the place; None: more are needed to know.

    `ended`: nothing follows. Text needs LONGEST of them, or the end.
    """
    line = window.find(b"\n") + 1
    if kind == "jsonl" or cut == "lines":
        return line or (len(window) if ended else None)
    window = window[:LONGEST]
    blank = BLANK.search(window)
    if blank:
        return blank.end()
    if ended and len(window) < LONGEST:
        return len(window)
    return line or _next_character(window, 1)


def pieces_of(file: File, size: int, cut: Cut) -> Iterator[Piece]:
    """A compressed file in pieces of about `size` bytes, as they come."""
    held, begin, number, ended = bytearray(), 0, 0, False
    with _opened(file) as opened, closing(_unpacked(opened, file)) as stream:
        while True:
            target = (number + 1) * size
            look, stop = target - 1 + LONGEST, None
            while stop is None:
                while not ended and begin + len(held) < look:
                    more = _read(stream, file)
                    held += more
                    ended = not more
                if ended and begin + len(held) <= target:
                    stop = len(held)
                elif begin >= target:
                    stop = 0
                else:
                    inside = target - 1 - begin
                    found = edge_in(bytes(held[inside:]), ended, file.kind, cut)
                    stop = None if found is None else inside + found
                look += READ
                _refuse_endless(file, begin, look - target)
            last = ended and stop == len(held)
            yield Piece(number, begin, bytes(held[:stop]), last)
            if last:
                return
            del held[:stop]
            begin, number = begin + stop, number + 1


def _refuse_endless(file: File, place: int, looked: int) -> None:
    if looked > ENDLESS:
        raise ValueError(
            f"{file.path} has no end of a line for {ENDLESS >> 20} MiB after byte {place:,}; it is "
            "not JSONL or lines of text"
        )


def _opened(file: File) -> BufferedReader:
    try:
        return files.open_plain(file.path)
    except OSError as error:
        raise ValueError(f"{file.path} cannot be read: {error.strerror or error}") from None


def _unpacked(opened: BufferedReader, file: File) -> columns.Stream:
    return gzip.GzipFile(fileobj=opened) if file.packed == ".gz" else columns.zstd_stream(opened)


def _read(stream: columns.Stream, file: File) -> bytes:
    try:
        return stream.read(READ)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        name = {".gz": "gzip", ".zst": "zstd"}[file.packed]
        raise ValueError(f"{file.path} is no whole {name} file: {error}") from None


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Without their ends; nothing follows the last newline."""
    begin = 0
    while begin < len(content):
        stop = content.find(b"\n", begin)
        stop = len(content) if stop < 0 else stop
        yield begin, content[begin:stop].removesuffix(b"\r")
        begin = stop + 1


def _paragraphs(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Up to and with the blank lines after each, none longer than LONGEST; joined, all of it."""
    begin = 0
    while begin < len(content):
        blank = BLANK.search(content, begin, begin + LONGEST)
        while blank and not content[begin : blank.end()].strip():
            blank = BLANK.search(content, blank.end(), begin + LONGEST)
        if blank:
            stop = blank.end()
        elif len(content) - begin <= LONGEST:
            stop = len(content)
        else:
            line = content.rfind(b"\n", begin, begin + LONGEST) + 1
            stop = line if line > begin else _next_character(content, begin + LONGEST - 3)
        yield begin, content[begin:stop]
        begin = stop


def _next_character(content: bytes, place: int) -> int:
    """The first byte at or after a place that begins a character of UTF-8."""
    for further in range(4):
        if place + further >= len(content) or content[place + further] & 0xC0 != 0x80:
            return min(place + further, len(content))
    return place  # no UTF-8, as will be found


def _checked(place: str, content: bytes) -> Document:
    if not content.strip():
        return Document(place, fault=EMPTY)
    try:
        content.decode()
    except UnicodeDecodeError:
        return Document(place, fault=UTF8)
    return Document(place, content)


def _of_text(place: str, text: object) -> Document:
    if not isinstance(text, str):
        return Document(place, fault=EMPTY if text is None else TYPE)
    try:
        content = text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
        return Document(place, fault=UTF8)
    return Document(place, content) if text.strip() else Document(place, fault=EMPTY)


def _of_line(place: str, line: bytes, field: str) -> Document:
    if not line.strip():
        return Document(place, fault=EMPTY)
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError:
        return Document(place, fault=UTF8)
    except (ValueError, RecursionError):
        return Document(place, fault=JSON)
    if not isinstance(row, dict):
        return Document(place, fault=JSON)
    if field not in row:
        return Document(place, fault=FIELD)
    return _of_text(place, row[field])


def sample_of(
    parts: Sequence[Part],
    found: Sequence[File],
    *,
    size: int,
    field: str,
    cut: Cut,
    keep: Callable[[bytes], bool],
) -> Iterator[str]:
    """About `size` bytes of documents, the first ones of every part; of a stream, its first."""
    weights = [sum(span.stop - span.start for span in part.spans) for part in parts]
    total = max(sum(weights), 1)
    for part, weight in zip(parts, weights, strict=True):
        left = -(-size * weight // total)
        for document in _first_of(part, found, left, field, cut):
            if left <= 0:
                break
            if not document.fault and keep(document.content):
                left -= len(document.content)
                yield document.content.decode()


def _first_of(
    part: Part, found: Sequence[File], size: int, field: str, cut: Cut
) -> Iterator[Document]:
    """Documents of a part from its beginning, without reading all of it where that can be."""
    if not part.streamed:
        for span in part.spans:
            file = found[span.file]
            if file.kind in ("text", "jsonl") and span.stop - span.start > 2 * size + LONGEST:
                span = Span(span.file, span.start, span.start + size + LONGEST)
            yield from documents_of(Part(part.number, (span,)), found, field, cut)
        return
    file = found[part.spans[0].file]
    step = min(max(size, LONGEST), 2**26)
    for piece in pieces_of(file, step, cut):
        yield from split(piece.content, piece.place, file, field, cut)
