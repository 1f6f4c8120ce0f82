"""A checkpoint in shards: two files of tensors for each shard, and an index that joins them.

    model-00001-of-00004.safetensors  optimiser-00001-of-00004.safetensors   the first of four
    shards.json    of each tensor its dtype, its shape, and the rows that each shard has of it

A tensor of the index is joined from the shards' ranges of rows. What is not cut is in the first
shard. Any range of rows can be read by itself, so any number of processes reads what any other
number has written.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.finite import is_finite
from attnlab.memory import machine_memory
from attnlab.training.shards import bounds
from attnlab.training.tensor_file import NAMES
from attnlab.training.verified_file import BrokenCheckpoint, VerifiedFile

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("model", "optimiser")
INDEX = "shards.json"
MOST = 100_000  # shards of a checkpoint
HEADER = 100 << 20  # bytes; the library refuses a longer one
PIECE = 1 << 24  # bytes that are looked at for NaN at a time
COUNTED = (1 << 63) - 1  # numbers; PyTorch counts no further, though a tensor be empty
_NAME = re.compile(r"(model|optimiser)-(\d{5})-of-(\d{5})\.safetensors")
_DTYPES = {letters: name for name, letters in NAMES.items()}


def name_of(kind: str, shard: int, shards: int) -> str:
    return f"{kind}-{shard + 1:05}-of-{shards:05}.safetensors"


def names(listed: Iterable[str]) -> list[str]:
    """The files of tensors among those of a checkpoint in shards; none: it is not in shards."""
    found = sorted(name for name in listed if _NAME.fullmatch(name))
    if not found:
        return []
    shards = int(_NAME.fullmatch(found[0])[3])  # type: ignore[index]
    every = [name_of(kind, shard, shards) for kind in KINDS for shard in range(shards)]
    return every if shards <= MOST and sorted(every) == found else []


@dataclass(frozen=True)
class Spec:
    """A tensor of the index."""

    dtype: str
    shape: tuple[int, ...]
    bounds: list[int]  # where each shard's rows begin, and where the last one's end

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @staticmethod
    def of(tensor: "Tensor", shards: int, *, cut: bool) -> "Spec":
        rows = tensor.shape[0] if tensor.ndim else 1
        edges = bounds(rows, shards) if cut else [0, *[rows] * shards]
        return Spec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), edges)

    def plain(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": list(self.shape), "rows": self.bounds}

    @staticmethod
    def from_plain(plain: Any, shards: int) -> "Spec":
        """A KeyError, TypeError or ValueError for what is no description of a tensor."""
        dtype, shape, edges = plain["dtype"], plain["shape"], plain["rows"]
        counts = [*shape, *edges]
        if dtype not in NAMES or any(type(one) is not int or one < 0 for one in counts):
            raise ValueError
        _refuse_uncountable(shape)
        rows = shape[0] if shape else 1
        if len(edges) != shards + 1 or edges != sorted(edges) or (edges[0], edges[-1]) != (0, rows):
            raise ValueError
        return Spec(dtype, tuple(shape), edges)


Index = dict[str, dict[str, Spec]]  # by kind and name


def as_plain(index: Index) -> dict[str, Any]:
    return {kind: {name: one.plain() for name, one in index[kind].items()} for kind in KINDS}


def read_index(plain: Mapping[str, Any], path: Path, shards: int) -> Index:
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        if set(plain) == set(KINDS):
            return {
                kind: {name: Spec.from_plain(one, shards) for name, one in plain[kind].items()}
                for kind in KINDS
            }
    raise BrokenCheckpoint(f"{path} is damaged: it does not say how tensors are cut")


class ShardFiles:
    """The tensors of a checkpoint, to be read in ranges of rows; none of them has been read yet.

    One that is not in shards (`index` is None) is a single shard; what it has its files say.
    """

    def __init__(
        self, folder: Path, listed: Mapping[str, Any], index: Mapping[str, Any] | None
    ) -> None:
        self.folder, self._listed = folder, listed
        self._plain = index is None
        self.shards = 1 if index is None else len(names(listed)) // len(KINDS)
        self.index: Index = {}
        if index is not None:
            self.index = read_index(index, folder / INDEX, self.shards)
        else:
            self.index = {kind: self._specs(kind) for kind in KINDS}

    def _specs(self, kind: str) -> dict[str, Spec]:
        with self._open(kind, 0) as file:
            return {
                name: Spec(dtype, shape, [0, shape[0] if shape else 1])
                for name, (_, _, dtype, shape) in self._entries(file)[1].items()
            }

    def verify(self, reader: int = 0, readers: int = 1) -> None:
        """Read every byte and hold it against its hash; tensors are finite, and as the index says.

        Several readers share the files out.
        """
        every = [(kind, shard) for kind in KINDS for shard in range(self.shards)]
        for kind, shard in every[reader::readers]:
            with self._open(kind, shard) as file:
                begin, header = self._header(file, kind, shard)  # and from there all is tensors
                for name, (start, stop, dtype) in sorted(header.items(), key=lambda one: one[1]):
                    self._verify_tensor(file, name, begin + start, begin + stop, dtype)

    def read(
        self, kind: str, wanted: Mapping[str, tuple[int, int]] | None = None
    ) -> dict[str, "Tensor"]:
        """Ranges of rows by name, each byte checked first; None: all tensors whole."""
        import torch

        specs = self.index[kind]
        if wanted is None:
            wanted = {name: (0, spec.rows) for name, spec in specs.items()}
        self._refuse_large(kind, wanted)
        found: dict[str, Tensor] = {}
        for name, (start, stop) in wanted.items():
            spec = specs[name]
            shape = (stop - start, *spec.row_shape) if spec.shape else ()
            found[name] = torch.empty(shape, dtype=getattr(torch, spec.dtype))
        for shard in range(self.shards):
            if any(_overlap(specs[name], shard, *rows) for name, rows in wanted.items()):
                with self._open(kind, shard) as file:
                    self._read_shard(file, kind, shard, wanted, found)
        for name, tensor in found.items():
            if not is_finite(tensor):
                raise BrokenCheckpoint(f"{self.folder}: {name} of the {kind} holds NaN or Inf")
        return found

    def _read_shard(
        self,
        file: VerifiedFile,
        kind: str,
        shard: int,
        wanted: Mapping[str, tuple[int, int]],
        found: Mapping[str, "Tensor"],
    ) -> None:
        begin, header = self._header(file, kind, shard)
        for name in sorted(wanted.keys() & header.keys(), key=lambda name: header[name]):
            spec, (start, stop) = self.index[kind][name], wanted[name]
            overlap = _overlap(spec, shard, start, stop)
            if overlap is None:
                continue
            out = _bytes_of(found[name])
            row = len(out) // max(stop - start, 1)
            first, last = overlap
            source = begin + header[name][0] + (first - spec.bounds[shard]) * row
            at = (first - start) * row
            for piece in file.pieces(source, source + (last - first) * row):
                out[at : at + len(piece)] = piece
                at += len(piece)

    def _open(self, kind: str, shard: int) -> VerifiedFile:
        name = f"{kind}.safetensors" if self._plain else name_of(kind, shard, self.shards)
        return VerifiedFile(self.folder / name, self._listed[name])

    def _header(
        self, file: VerifiedFile, kind: str, shard: int
    ) -> tuple[int, dict[str, tuple[int, int, str]]]:
        """Where the tensors begin in a file; of each, its bytes from there and its dtype."""
        begin, entries = self._entries(file)
        specs = self.index[kind]
        fits = entries.keys() == {name for name, spec in specs.items() if _size(spec, shard)}
        for name, (start, stop, dtype, _) in entries.items():
            fits = fits and dtype == specs[name].dtype
            fits = fits and stop - start == _size(specs[name], shard)
        if not fits:
            raise BrokenCheckpoint(f"{file.path} does not have the tensors of {INDEX}")
        return begin, {name: entry[:3] for name, entry in entries.items()}

    def _entries(
        self, file: VerifiedFile
    ) -> tuple[int, dict[str, tuple[int, int, str, tuple[int, ...]]]]:
        length = int.from_bytes(file.read(0, min(8, file.size)), "little")
        if length > min(HEADER, file.size):
            raise BrokenCheckpoint(f"{file.path} is not safetensors: its header has no end")
        begin = 8 + length
        try:
            plain = json.loads(file.read(8, begin))
            entries = {name: _entry(one) for name, one in plain.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, BrokenCheckpoint):
                raise
            raise BrokenCheckpoint(f"{file.path} is not safetensors: no header") from None
        end = begin
        for start, stop, *_ in sorted(entries.values()):
            if begin + start != end:
                raise BrokenCheckpoint(
                    f"{file.path} is not safetensors: its tensors do not lie one after another"
                )
            end = begin + stop
        if end != file.size:
            raise BrokenCheckpoint(f"{file.path} is not safetensors: its tensors do not fill it")
        return begin, entries

    def _verify_tensor(
        self, file: VerifiedFile, name: str, start: int, stop: int, dtype: str
    ) -> None:
        import torch

        kind = getattr(torch, dtype)
        if not kind.is_floating_point:
            return _read_through(file, start, stop)
        while start < stop:
            piece = bytearray(file.read(start, min(start + PIECE, stop)))
            if not is_finite(torch.frombuffer(piece, dtype=kind)):
                raise BrokenCheckpoint(f"{file.path} holds NaN or Inf in {name}")
            start += len(piece)
        return None

    def _refuse_large(self, kind: str, wanted: Mapping[str, tuple[int, int]]) -> None:
        specs, there = self.index[kind], machine_memory()
        size = sum(
            (stop - start) * math.prod(specs[name].row_shape) * _width(specs[name].dtype)
            for name, (start, stop) in wanted.items()
        )
        if size > there:
            raise BrokenCheckpoint(
                f"{self.folder} has {size:,} bytes, which is more than can be read here"
            )


def _entry(plain: Any) -> tuple[int, int, str, tuple[int, ...]]:
    (start, stop), shape = plain["data_offsets"], plain["shape"]
    if any(type(one) is not int or one < 0 for one in (start, stop, *shape)) or start > stop:
        raise ValueError
    _refuse_uncountable(shape)
    return start, stop, _DTYPES[plain["dtype"]], tuple(shape)


def _refuse_uncountable(shape: list[int]) -> None:
    """It ends as soon as it knows: the product of very many sizes would take minutes."""
    numbers = 1
    for one in shape:
        numbers *= max(one, 1)
        if numbers > COUNTED:
            raise ValueError


def _read_through(file: VerifiedFile, start: int, stop: int) -> None:
    """For its hash alone: bytes in which no tensor of floats lies."""
    for _ in file.pieces(start, stop):
        pass


def _overlap(spec: Spec, shard: int, start: int, stop: int) -> tuple[int, int] | None:
    first, last = max(start, spec.bounds[shard]), min(stop, spec.bounds[shard + 1])
    return (first, last) if first < last and 0 not in spec.row_shape else None


def _size(spec: Spec, shard: int) -> int:
    """Bytes of a tensor in a shard."""
    rows: int = spec.bounds[shard + 1] - spec.bounds[shard]
    numbers = math.prod(spec.row_shape)
    return rows * numbers * _width(spec.dtype)


def _width(dtype: str) -> int:
    import torch

    size: int = getattr(torch, dtype).itemsize
    return size


def _bytes_of(tensor: "Tensor") -> memoryview:
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().data


def held_by(
    tensors: Mapping[str, "Tensor"], specs: Mapping[str, Spec], shard: int
) -> dict[str, "Tensor"]:
    """Of a shard's own rows, those that its file has: what is empty is left out."""
    return {name: one for name, one in tensors.items() if _size(specs[name], shard)}
