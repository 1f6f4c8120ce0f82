"""Columns of text in Parquet and Arrow files, and zstd streams, by `pyarrow` (extra: data).

Imported where it is used. Rows of Parquet are read by row groups, record batches of Arrow from a
map of the file; of both only the column that is asked for.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, runtime_checkable

from attnlab import files
from attnlab.extras import missing

ROWS = 1024  # read at once


@runtime_checkable
class Stream(Protocol):
    """What is in a packed file."""

    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


def ranges(
    path: Path, kind: Literal["parquet", "arrow"], field: str, size: int
) -> list[tuple[int, int, int]]:
    """Rows of Parquet, batches of Arrow: start, stop and bytes of ranges of about `size` bytes."""
    if kind == "arrow":
        return _batches(path, field, size)
    with _parquet(path, field) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        weight = sum(
            one.total_uncompressed_size
            for group in groups
            for one in (group.column(place) for place in range(group.num_columns))
            if one.path_in_schema == field
        )
        rows = file.metadata.num_rows
        pieces = max(1, -(-weight // size))
        edges = [rows * piece // pieces for piece in range(pieces + 1)]
        return [
            (start, stop, weight // pieces)
            for start, stop in itertools.pairwise(edges)
            if stop > start
        ]


def rows(
    path: Path, kind: Literal["parquet", "arrow"], field: str, start: int, stop: int
) -> Iterator[tuple[int, str | None]]:
    """Number and text of each row of a range; None where there is none."""
    if kind == "arrow":
        yield from _rows_of_batches(path, field, start, stop)
        return
    with _parquet(path, field) as file:
        wanted, before = list[int](), list[int]()
        place = 0
        for number in range(file.num_row_groups):
            count = file.metadata.row_group(number).num_rows
            if place < stop and place + count > start:
                wanted.append(number)
                before.append(place)
            place += count
        row = before[0] if before else 0
        with _reading(path):
            for batch in file.iter_batches(ROWS, row_groups=wanted, columns=[field]):
                first, last = max(start - row, 0), min(stop - row, len(batch))
                if first < last:
                    texts = batch.column(0).slice(first, last - first).to_pylist()
                    yield from zip(range(row + first, row + last), texts, strict=True)
                row += len(batch)
                if row >= stop:
                    return


def zstd_stream(file: BufferedReader) -> Stream:
    """A file of zstd as a stream of what is in it."""
    arrow = _library("zstd")
    return arrow.CompressedInputStream(arrow.PythonFile(file, mode="r"), "zstd")


@contextmanager
def _parquet(path: Path, field: str) -> Iterator[Any]:
    arrow = _library("Parquet")
    import pyarrow.parquet as parquet

    with files.open_plain(path) as opened:
        with _reading(path):
            file = parquet.ParquetFile(arrow.PythonFile(opened, mode="r"))
        _refuse_other_field(path, file.schema_arrow, field)
        yield file


def _open_arrow(path: Path, field: str) -> Any:
    """The batches of a file that `datasets` has saved, a stream, or of one with an index."""
    arrow = _library("Arrow")
    files.open_plain(path).close()  # refuses links and what is no plain file
    with _reading(path):
        mapped = arrow.memory_map(str(path))
        try:
            reader = arrow.ipc.open_stream(mapped)
        except arrow.ArrowInvalid:
            inside = arrow.ipc.open_file(arrow.memory_map(str(path)))
            reader = arrow.RecordBatchReader.from_batches(
                inside.schema, (inside.get_batch(n) for n in range(inside.num_record_batches))
            )
    _refuse_other_field(path, reader.schema, field)
    return reader


def _read_batches(path: Path, field: str) -> Iterator[Any]:
    reader = _open_arrow(path, field)
    with _reading(path):
        for batch in reader:
            yield batch.column(reader.schema.get_field_index(field))


def _batches(path: Path, field: str, size: int) -> list[tuple[int, int, int]]:
    found, start, weight, number = list[tuple[int, int, int]](), 0, 0, 0
    for column in _read_batches(path, field):
        if weight and weight + column.nbytes > size:
            found.append((start, number, weight))
            start, weight = number, 0
        weight += column.nbytes
        number += 1
    if number > start:
        found.append((start, number, weight))
    return found


def _rows_of_batches(
    path: Path, field: str, start: int, stop: int
) -> Iterator[tuple[int, str | None]]:
    row = 0
    for number, column in enumerate(_read_batches(path, field)):
        if number >= stop:
            return
        if number >= start:
            for first in range(0, len(column), ROWS):
                with _reading(path):
                    texts = column.slice(first, ROWS).to_pylist()
                yield from zip(range(row + first, row + first + len(texts)), texts, strict=True)
        row += len(column)


def _refuse_other_field(path: Path, schema: Any, field: str) -> None:
    arrow = _library("Arrow")
    if field not in schema.names:
        there = ", ".join(schema.names[:8]) or "none"
        raise ValueError(f"{path} has no column {field}; it has {there}: say field=NAME")
    kind = schema.field(field).type
    if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
        texts = [one.name for one in schema if arrow.types.is_string(one.type)]
        advice = f"; columns of text: {', '.join(texts)}" if texts else ""
        raise ValueError(f"{path}: the column {field} is {kind}, not text{advice}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Around what pyarrow reads: a file that is damaged is one line that names it."""
    arrow = _library("Arrow")
    try:
        yield
    # the last is Python's own, of a text whose length is below zero
    except (arrow.ArrowException, OSError, ValueError, SystemError) as error:
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} cannot be read: {said}") from None


def _library(what: str) -> ModuleType:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise ValueError(missing("pyarrow", what)) from None
    return pyarrow
