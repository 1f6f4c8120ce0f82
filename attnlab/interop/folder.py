"""A folder as `transformers` saves models: its config, its tensors by name, its tokenizer.

Nothing in it is executed: JSON and safetensors are read, and no pickle and no Python file is. What
is missing, cut off or of another kind is refused in one line that names the file.

Cost: a tensor is read when it is asked for and copied once, so a model takes the memory of its
weights and that of one tensor.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from attnlab import files, json_files
from attnlab.finite import is_finite

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
LARGEST_JSON = 64 << 20  # a tokenizer with 260,000 tokens has 33 MB


class FolderError(ValueError):
    """A folder that cannot be read: which file, and what is wrong with it."""


def is_one(path: Path) -> bool:
    """Whether a path is such a folder: its config names a type of model, and it is no run."""
    if not (path / CONFIG).is_file() or (path / "checkpoints").is_dir():
        return False
    try:
        return "model_type" in read_object(path / CONFIG)
    except FolderError:
        return False


def read_object(path: Path) -> dict[str, Any]:
    try:
        content = files.read_named(path, LARGEST_JSON)
    except FileNotFoundError:
        raise FolderError(
            f"{path} is missing; a folder that save_pretrained has written has one"
        ) from None
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        plain = json_files.parse_json(content, path)
    except ValueError as error:
        raise FolderError(str(error)) from None
    if not isinstance(plain, dict):
        raise FolderError(f"{path} is no JSON object; is it cut off?")
    return plain


@dataclass(frozen=True)
class Found:
    """Where a tensor is, and what its header says."""

    path: Path
    shape: tuple[int, ...]
    dtype: str  # as safetensors calls it: F32, BF16


class Tensors(Mapping[str, Found]):
    """The tensors of a folder by their names; a number is read when `read` asks for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, Found] = {}
        for path in _shards(folder):
            for name, found in _header(path).items():
                if name in self._found:
                    raise FolderError(f"{path} has {name}, and so has {self._found[name].path}")
                self._found[name] = found
        if not self._found:
            raise FolderError(f"{folder} has no tensors")

    def __getitem__(self, name: str) -> Found:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def copy(self, name: str) -> Tensor:
        """A copy: what is mapped would change with the file, and end the process if it is cut."""
        path = self._found[name].path
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name).clone()
        except (safetensors.SafetensorError, OSError) as error:
            raise FolderError(f"{path}: {name} cannot be read: {error}") from None
        return tensor

    def read(self, name: str) -> Tensor:
        """A weight: floats, all of them finite."""
        tensor, path = self.copy(name), self._found[name].path
        if not tensor.is_floating_point() or tensor.itemsize == 1:
            raise FolderError(
                f"{path}: {name} has dtype {str(tensor.dtype).removeprefix('torch.')}; weights are "
                "floats of 2 bytes or more: quantized models are not read"
            )
        if not is_finite(tensor):
            raise FolderError(f"{path}: {name} holds NaN or Inf")
        return tensor

    def total(self) -> int:
        """Bytes on the disk."""
        return sum(path.stat().st_size for path in {one.path for one in self._found.values()})


def _shards(folder: Path) -> list[Path]:
    """A file of tensors stands for itself."""
    if folder.suffix == ".safetensors" and folder.is_file():
        return [folder]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]  # whatever an index beside it says, as transformers has it
    if (folder / INDEX).is_file():
        where = read_object(folder / INDEX).get("weight_map")
        if not isinstance(where, dict) or not where:
            raise FolderError(f"{folder / INDEX} has no weight_map; save the model again")
        names = sorted({str(name) for name in where.values()})
        for name in names:
            if Path(name).name != name:
                raise FolderError(f"{folder / INDEX} names {name!r}, which is no file beside it")
        return [folder / name for name in names]
    pickled = sorted(path.name for kind in PICKLES for path in folder.glob(kind))
    if pickled:
        raise FolderError(
            f"{folder} has its weights as a pickle ({pickled[0]}), which could run code; load it "
            "where you trust it and save it with save_pretrained(..., safe_serialization=True)"
        )
    raise FolderError(f"{folder / WEIGHTS} is missing")


def _header(path: Path) -> dict[str, Found]:
    if not path.is_file():
        raise FolderError(f"{path} is missing; the index names it")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: Found(path, tuple(one.get_shape()), one.get_dtype())
                for name, one in slices.items()
            }
    except (safetensors.SafetensorError, OSError) as error:
        raise FolderError(f"{path} is no safetensors file, or cut off: {error}") from None


def sha256(path: Path) -> str:
    """Of a file that a person has named, which may be a link, as in a cache of downloads."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """A folder to fill, made beside its place and renamed when it is whole; or nothing is left."""
    refuse_taken(place)
    _remove_leftovers(place)
    temporary = place.absolute().with_name(f".{place.name}.{os.getpid()}.tmp")
    files.remove_folder(temporary)
    held = None
    try:
        files.make_folder(temporary)
        held = files.hold_folder(temporary)
        yield temporary
        files.sync_folder(temporary)
        if place.exists():
            place.rmdir()  # empty, as was seen
        temporary.rename(place)
    except BaseException:
        files.remove_folder(temporary)
        raise
    finally:
        if held is not None:
            os.close(held)


def _remove_leftovers(place: Path) -> None:
    """Of processes that were killed; one that is at work holds its folder."""
    known = re.compile(rf"\.{re.escape(place.name)}\.\d+\.tmp")
    beside = place.absolute().parent
    for path in beside.iterdir() if beside.is_dir() else ():
        if not known.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        held = files.hold_folder(path)
        if held is not None:
            files.remove_folder(path)
            os.close(held)


def refuse_taken(place: Path) -> None:
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ValueError(f"{place} is there already; name a folder that is not")


def dtype_of(tensors: Iterable[Tensor]) -> torch.dtype:
    """The one dtype of all; the widest if there are several."""
    kinds = {tensor.dtype for tensor in tensors}
    return max(kinds, key=lambda kind: (kind.itemsize, str(kind)))
