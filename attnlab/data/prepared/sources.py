"""What can be prepared: files of text, JSONL and Parquet, and folders that `datasets` has saved.

A source is worked in parts: fixed ranges of its files, in an order that depends on their names and
sizes alone, so that a part can be worked again by anybody at any time, to the same tokens. A part
is a range of bytes of text and JSONL, of rows of Parquet, of record batches of Arrow. Small files
share a part; a compressed file has no places to begin at: it is a stream that is cut on the way.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnlab import files, json_files
from attnlab.data.corpora import SUFFIXES
from attnlab.data.prepared import columns
from attnlab.printable import printable

Kind = Literal["text", "jsonl", "parquet", "arrow"]
KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
PACKED = (".gz", ".zst")
NAMED = 3  # files that a message names


@dataclass(frozen=True)
class File:
    path: Path
    name: str  # below the source, with slashes
    kind: Kind
    packed: str  # ".gz", ".zst" or ""
    size: int
    changed: int  # nanoseconds

    def refuse_change(self) -> None:
        if state_of(self.path) != (self.size, self.changed):
            raise ValueError(
                f"{self.path} has changed since the preparation began; restore it, or prepare "
                "it as it is now into a new folder"
            )


@dataclass(frozen=True)
class Span:
    """A range of one file; of text and JSONL, where it begins and ends is near these bytes."""

    file: int
    start: int
    stop: int


@dataclass(frozen=True)
class Part:
    number: int
    spans: tuple[Span, ...]
    streamed: bool = False  # a compressed file: all of it, in as many pieces as it takes


@dataclass(frozen=True)
class Source:
    path: Path
    files: tuple[File, ...]
    left_out: tuple[str, ...] = ()  # names of files of no kind that is known

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def find(source: str, kind: Kind | None = None) -> Source:
    """The files of a source in the order of their names; `kind` says what all of them are."""
    if not source:
        raise ValueError("no source is named; give a file or a folder")
    path = Path(source).expanduser()
    try:
        path = path.resolve(strict=True)  # who names a link means what it leads to
        folder = path.is_dir()
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{source} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not folder:
        return Source(path, (_file(path, path.name, kind),))
    if (path / "dataset_dict.json").exists():
        splits = sorted(one.name for one in path.iterdir() if (one / "state.json").exists())
        raise ValueError(
            f"{path} holds the splits {', '.join(splits)}; name one of them: {path / splits[0]}"
            if splits
            else f"{path} has a dataset_dict.json and no split; it is not what datasets has saved"
        )
    if (path / "state.json").exists() and (path / "dataset_info.json").exists():
        return Source(path, tuple(_saved_by_datasets(path)))
    return _of_folder(path, kind)


def _of_folder(folder: Path, kind: Kind | None) -> Source:
    def refuse(error: OSError) -> None:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None

    found, left_out = list[File](), list[str]()
    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = sorted(name for name in names if not name.startswith("."))
        for path in (Path(where) / name for name in [*folders, *names]):
            if path.is_symlink():
                raise ValueError(
                    f"{path} is a link, and links within a folder are not followed; put what it "
                    "leads to in its place, or name the file itself"
                )
        for path in (Path(where) / name for name in names):
            below = path.relative_to(folder).as_posix()
            if kind is None and kind_of(path) is None:
                left_out.append(below)
            else:
                found.append(_file(path, below, kind))
    kinds = {file.kind: file.name for file in reversed(found)}
    if len(kinds) > 1:
        there = ", ".join(f"{kind} ({name})" for kind, name in sorted(kinds.items()))
        raise ValueError(
            f"{folder} holds files of several kinds: {there}; a source has one: move the others, "
            "or name the file or folder that is meant"
        )
    if not found:
        raise ValueError(
            f"{folder} holds no text, JSONL or Parquet; files of text end in .txt, .md or alike"
        )
    found.sort(key=lambda file: file.name)
    return Source(folder, tuple(found), tuple(sorted(left_out)))


def kind_of(path: Path) -> Kind | None:
    """By the end of the name; None for none that is known."""
    plain = path.with_suffix("") if path.suffix.lower() in PACKED else path
    suffix = plain.suffix.lower()
    return KINDS.get(suffix) or ("text" if suffix in SUFFIXES else None)


def _file(path: Path, name: str, kind: Kind | None) -> File:
    packed = path.suffix.lower() if path.suffix.lower() in PACKED else ""
    kind = kind or kind_of(path) or "text"  # a file that is named is text unless it says otherwise
    if packed and kind in ("parquet", "arrow"):
        raise ValueError(f"{path} is compressed as a whole; {kind} is read where it stands: unpack")
    return File(path, name, kind, packed, *state_of(path))


def _saved_by_datasets(folder: Path) -> Iterator[File]:
    """The files that its state.json names, which must lie beside it."""
    state = folder / "state.json"
    try:
        shape = {"_data_files": [{"filename": str}]}
        rows = json_files.read_json(state, shape)["_data_files"]
    except OSError as error:
        raise ValueError(f"{state} cannot be read: {error.strerror}") from None
    for row in rows:
        name = row["filename"]
        if Path(name).name != name or (folder / name).is_symlink():
            raise ValueError(f"{state} names {printable(name)}, which is no file of its folder")
        yield File(folder / name, name, "arrow", "", *state_of(folder / name))


def state_of(path: Path) -> tuple[int, int]:
    """What changes when a file does. Opening a FIFO would wait for ever, so it is asked first."""
    try:
        state = path.stat(follow_symlinks=False)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(state.st_mode):
        raise ValueError(f"{path} is no plain file; text comes from a file or a folder")
    return state.st_size, state.st_mtime_ns


def parts_of(found: Sequence[File], size: int, field: str) -> list[Part]:
    """The parts of a source, each of about `size` bytes."""
    spans: list[tuple[Span, int, bool]] = []
    for number, file in enumerate(found):
        if file.packed:
            spans.append((Span(number, 0, file.size), size, True))
        elif file.kind in ("parquet", "arrow"):
            for start, stop, weight in columns.ranges(file.path, file.kind, field, size):
                spans.append((Span(number, start, stop), weight, False))
        else:
            for start in range(0, file.size, size):
                stop = min(start + size, file.size)
                spans.append((Span(number, start, stop), stop - start, False))
            if not file.size:  # an empty document, to be counted
                spans.append((Span(number, 0, 0), 0, False))
    parts, held, weight = list[Part](), list[Span](), 0
    for span, more, streamed in spans:
        if held and (streamed or weight + more > size):
            parts.append(Part(len(parts), tuple(held)))
            held, weight = [], 0
        if streamed:
            parts.append(Part(len(parts), (span,), streamed=True))
        else:
            held.append(span)
            weight += more
    if held:
        parts.append(Part(len(parts), tuple(held)))
    return parts


def read_range(file: File, start: int, stop: int) -> bytes:
    try:
        with files.open_plain(file.path) as opened:
            opened.seek(start)
            content = opened.read(stop - start)
    except OSError as error:
        raise ValueError(f"{file.path} cannot be read: {error.strerror or error}") from None
    if len(content) != stop - start:
        file.refuse_change()
        raise ValueError(f"{file.path} ends at {start + len(content):,}, before its {stop:,} bytes")
    return content
