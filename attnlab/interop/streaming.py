"""Tensors written one at a time, in any order, to files whose size and headers are known before.

The layout within a file is that of the library: wide dtypes first, then by name, so that every
tensor begins where its dtype may.

Cost: the memory of one tensor.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from attnlab import files, json_files
from attnlab.interop.folder import INDEX, WEIGHTS, FolderError
from attnlab.training.tensor_file import ALIGNED, NAMES

SHARD = 5_000_000_000  # bytes of a file of weights, as in save_pretrained
FLOAT8 = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
DTYPES = {getattr(torch, name): word for name, word in {**NAMES, **FLOAT8}.items()}
BY_WORD = {word: dtype for dtype, word in DTYPES.items()}


def empty(name: str, shape: Sequence[int], dtype: str) -> Tensor:
    """A tensor of no memory, of a dtype as safetensors calls it."""
    if dtype not in BY_WORD:
        raise FolderError(f"{name} has dtype {dtype}, which is not read; {', '.join(BY_WORD)} are")
    return torch.empty(tuple(shape), dtype=BY_WORD[dtype], device="meta")


def write_tensors(folder: Path, tensors: Iterable[tuple[str, Tensor]], most: int = SHARD) -> None:
    """Tensors that are in memory: one file, or several of at most so many bytes and an index."""
    every = [(name, tensor.detach()) for name, tensor in tensors]
    expected = [(name, torch.empty_like(tensor, device="meta")) for name, tensor in every]
    write(folder, expected, every, most)


@dataclass
class Shard:
    """One file: where in it each of its tensors begins."""

    tensors: dict[str, Tensor] = field(default_factory=dict)  # without memory
    size: int = 0

    def header(self) -> tuple[bytes, dict[str, int]]:
        names = sorted(self.tensors, key=lambda name: (-self.tensors[name].itemsize, name))
        plain: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at, starts = 0, {}
        for name in names:
            one = self.tensors[name]
            end = at + one.numel() * one.itemsize
            plain[name] = {
                "dtype": DTYPES[one.dtype],
                "shape": list(one.shape),
                "data_offsets": [at, end],
            }
            starts[name], at = at, end
        text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % ALIGNED)
        head = len(text).to_bytes(8, "little") + text
        return head, {name: len(head) + start for name, start in starts.items()}


def write(
    folder: Path,
    expected: Iterable[tuple[str, Tensor]],
    tensors: Iterable[tuple[str, Tensor]],
    most: int,
) -> None:
    """`expected` are the same names with tensors of no memory; a file has at most so many bytes."""
    shards = _into_shards(expected, most)
    names = [WEIGHTS]
    if len(shards) > 1:
        names = [f"model-{n + 1:05d}-of-{len(shards):05d}.safetensors" for n in range(len(shards))]
    where = {one: n for n, shard in enumerate(shards) for one in shard.tensors}
    paths = [folder / name for name in names]
    starts: list[dict[str, int]] = []
    for path, shard in zip(paths, shards, strict=True):
        head, begins = shard.header()
        starts.append(begins)
        files.write_new(path, head)
    for name, tensor in tensors:
        number = where.pop(name)
        wanted = shards[number].tensors[name]
        assert (tensor.shape, tensor.dtype) == (wanted.shape, wanted.dtype), name
        _put(paths[number], starts[number][name], tensor)
    assert not where, f"{next(iter(where))} was not written"
    for path in paths:
        files.sync(path)
    if len(shards) > 1:
        total = sum(one.size for one in shards)
        every = {one: names[n] for n, shard in enumerate(shards) for one in shard.tensors}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(every.items()))}
        files.write_new(folder / INDEX, json_files.as_json(index))


def _into_shards(expected: Iterable[tuple[str, Tensor]], most: int) -> list[Shard]:
    shards = [Shard()]
    for name, one in expected:
        count = one.numel() * one.itemsize
        if shards[-1].tensors and shards[-1].size + count > most:
            shards.append(Shard())
        shards[-1].tensors[name] = one
        shards[-1].size += count
    return shards


def _put(path: Path, start: int, tensor: Tensor) -> None:
    if tensor.numel() == 0:
        return
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    try:
        with path.open("r+b") as file:
            os.lseek(file.fileno(), start, os.SEEK_SET)
            while content:
                content = content[os.write(file.fileno(), content) :]
    except OSError as error:
        raise files.failed_write(path, tensor.nbytes, error) from None
