"""Checkpoints: a folder that is there whole or not at all, and whose every bit is checked.

    step_000100/
      model.safetensors  optimiser.safetensors    tensors
      config.json  tokenizer.json  state.json     everything else
      manifest.json                               sizes and hashes of the others; written last

Of several processes with shards of the weights each writes its own (shard_files.py).

It is written under another name, forced to the disk, and renamed. Without a valid manifest there is
no checkpoint. Nothing here reads a pickle. Torch is imported with the first tensor: who only looks
at what is there, as `attnlab runs`, need not wait for it.
"""

import ctypes
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab import files, json_files
from attnlab.finite import is_finite
from attnlab.memory import machine_memory
from attnlab.training import shard_files
from attnlab.training.shard_files import ShardFiles
from attnlab.training.tensor_file import TensorFile
from attnlab.training.verified_file import BrokenCheckpoint as BrokenCheckpoint

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA, SHARDED = 1, 2  # the schema of a checkpoint, and of one in shards
_NAME = re.compile(r"step_(\d{6,12})")
_TENSORS = ("model.safetensors", "optimiser.safetensors")
PLAIN = ("config.json", "tokenizer.json", "state.json")


@dataclass(frozen=True)
class Checkpoint:
    """What is in a checkpoint, as read: tensors on the CPU, the rest as plain JSON values."""

    model: dict[str, "Tensor"]
    optimiser: dict[str, "Tensor"]
    config: dict[str, Any]
    tokenizer: dict[str, Any]
    state: dict[str, Any]


class NotFinite(RuntimeError):
    """A NaN or Inf where training cannot go on with one; what is on the disk has none."""


def name_of(step: int) -> str:
    return f"step_{step:06d}"


def step_of(folder: Path) -> int:
    found = _NAME.fullmatch(folder.name)
    if not found:
        raise BrokenCheckpoint(f"{folder} is not named as a checkpoint, such as step_000100")
    return int(found.group(1))


def save(
    parent: Path, step: int, checkpoint: Checkpoint, heed: Callable[[], None] = lambda: None
) -> Path:
    """Write checkpoints/step_…; afterwards it is there whole, or nothing has changed.

    One that is there already with the same tensors and state is left: going on from it leads to the
    same run.
    `heed` is called now and then, and may raise an OSError to end it.
    """
    folder = parent / name_of(step)
    for kind, tensors in (("weights", checkpoint.model), ("optimiser", checkpoint.optimiser)):
        refuse_not_finite(step, kind, tensors)
    contents: dict[str, bytes | TensorFile] = {
        "model.safetensors": TensorFile(checkpoint.model, heed),
        "optimiser.safetensors": TensorFile(checkpoint.optimiser, heed),
        **plain_files(checkpoint),
    }
    if folder.exists() and _is_same(folder, contents):
        return folder
    contents["manifest.json"] = _manifest(step, contents)
    try:
        temporary = begin(folder)
        for name, content in contents.items():  # the manifest is the last of them
            files.write_new(temporary / name, content)
        put_in_place(temporary, folder)
    except OSError as error:
        size = sum(map(len, contents.values()))
        raise not_written(folder, error, f" ({size:,} bytes)") from None
    return folder


def refuse_not_finite(step: int, kind: str, tensors: dict[str, "Tensor"]) -> None:
    name = _not_finite(tensors)
    if name:
        raise NotFinite(
            f"step {step}: {name} of the {kind} holds NaN or Inf; not saved, earlier "
            "checkpoints are as they were. --resume goes on from the newest of them"
        )


def plain_files(checkpoint: Checkpoint) -> dict[str, bytes]:
    """What is no tensor."""
    return {
        "config.json": json_files.as_json(checkpoint.config),
        "tokenizer.json": json_files.as_json(checkpoint.tokenizer),
        "state.json": json_files.as_json(checkpoint.state),
    }


def begin(folder: Path) -> Path:
    """A new empty folder, to be filled and put in the place of a checkpoint."""
    temporary = _temporary(folder)
    files.make_folder(folder.parent)
    files.remove_folder(temporary)
    temporary.mkdir()
    return temporary


def put_in_place(temporary: Path, folder: Path) -> None:
    """A folder whose files are all on the disk, the manifest last, becomes the checkpoint."""
    files.sync_folder(temporary)
    if folder.exists():
        _exchange(temporary, folder)
    else:
        temporary.rename(folder)
    files.sync_folder(folder.parent)


def remove_unfinished(folder: Path) -> None:
    files.remove_folder(_temporary(folder))


def _temporary(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.{os.getpid()}.tmp"


def not_written(folder: Path, error: OSError, size: str = "") -> OSError:
    """The error to raise, once what was written of it is removed again."""
    remove_unfinished(folder)
    return OSError(
        error.errno,
        f"no checkpoint could be written to {folder}{size}: "
        f"{error.strerror or error}; earlier ones are as they were" + _advice(error),
    )


def _exchange(new: Path, folder: Path) -> None:
    """Put a new checkpoint in the place of another; a kill at any moment leaves one of them."""
    if _swap(new, folder):
        files.remove_folder(new)  # which is the old one by now
        return
    old = _aside(folder)
    files.make_folder(old.parent)
    folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    files.remove_folder(old)
    with suppress(OSError):  # others are in it
        old.parent.rmdir()


def _swap(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the system or the disk cannot."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    if swap is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(swap(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def load(folder: Path, slot: str | None = None) -> Checkpoint:
    """Read a checkpoint after checking all of it; BrokenCheckpoint says what is wrong.

    Of the optimiser's tensors only those of one slot are wanted, or all. What is in shards is
    joined.
    """
    contents = read_verified(folder)
    plain = {}
    for name in PLAIN:
        plain[name] = _object(contents[name], folder / name)
    if shard_files.INDEX in contents:
        shards = open_tensors(folder)
        kept = shards.index["optimiser"]
        wanted = {
            name: (0, spec.rows)
            for name, spec in kept.items()
            if slot is None or name.endswith(f"/{slot}")
        }
        return Checkpoint(
            shards.read("model"),
            shards.read("optimiser", wanted),
            plain["config.json"],
            plain["tokenizer.json"],
            plain["state.json"],
        )
    tensors = {name: _tensors(contents.get(name, b""), folder / name) for name in _TENSORS}
    return Checkpoint(
        tensors["model.safetensors"],
        tensors["optimiser.safetensors"],
        plain["config.json"],
        plain["tokenizer.json"],
        plain["state.json"],
    )


def read_plain(folder: Path, name: str) -> dict[str, Any]:
    """One of its small files, held against the manifest; nothing is said of the other files."""
    path = folder / name
    return _object(_read_listed(path, _listed(folder)[name]), path)


def open_tensors(folder: Path) -> ShardFiles:
    """The tensors of a checkpoint, to be read in parts, each checked first."""
    listed = _listed(folder)
    path = folder / shard_files.INDEX
    entry = listed.get(path.name)
    index = None if entry is None else _object(_read_listed(path, entry), path)
    return ShardFiles(folder, listed, index)


def verify(folder: Path, reader: int = 0, readers: int = 1) -> None:
    """BrokenCheckpoint unless every bit is right; several readers share the shards out.

    What is not in shards the first of them reads.
    """
    if reader == 0 or shard_files.names(_listed(folder)):
        _verified(folder, reader, readers)


def read_verified(folder: Path) -> dict[str, bytes]:
    """The bytes of every file, read once and held against the manifest; tensors are finite.

    Shards are checked a block at a time, and not kept.
    """
    return _verified(folder)


def _verified(folder: Path, reader: int = 0, readers: int = 1) -> dict[str, bytes]:
    listed = _listed(folder)
    shards = shard_files.names(listed)
    contents = {}
    for name, expected in listed.items():
        if name not in shards:
            contents[name] = _read_listed(folder / name, expected)
    if shards:
        index = _object(contents[shard_files.INDEX], folder / shard_files.INDEX)
        ShardFiles(folder, listed, index).verify(reader, readers)
        return contents
    for name in _TENSORS:
        wrong = _not_finite(_tensors(contents[name], folder / name))
        if wrong:
            raise BrokenCheckpoint(f"{folder / name} holds NaN or Inf in {wrong}")
    return contents


def _listed(folder: Path) -> dict[str, Any]:
    """The files of a checkpoint, as its manifest describes them."""
    if not folder.is_dir():
        raise BrokenCheckpoint(
            f"{folder} is not a folder; a checkpoint is one, such as step_000100"
        )
    otherwise = "it was not finished, or is no checkpoint of ours"
    manifest = _read(folder / "manifest.json", otherwise, files.NAMED)
    described = _object(manifest, folder / "manifest.json")
    body = described.get("body")
    if not isinstance(body, dict) or not _is_spelling(manifest, body):
        raise BrokenCheckpoint(f"{folder / 'manifest.json'} is damaged: its hash does not match")
    if body.get("schema") not in (SCHEMA, SHARDED):
        raise BrokenCheckpoint(
            f"{folder} has schema {body.get('schema')}; this attnlab reads {SCHEMA} and {SHARDED}"
        )
    if body.get("step") != step_of(folder):
        raise BrokenCheckpoint(f"{folder} holds step {body.get('step')}, not the one in its name")
    listed = body.get("files")
    sharded = body["schema"] == SHARDED
    shards = shard_files.names(listed) if sharded and isinstance(listed, dict) else []
    tensors = [*shards, shard_files.INDEX] if sharded else _TENSORS
    if not isinstance(listed, dict) or set(listed) != {*tensors, *PLAIN}:
        raise BrokenCheckpoint(
            f"{folder / 'manifest.json'} does not list the files of a checkpoint"
        )
    return listed


def _read_listed(path: Path, expected: Any) -> bytes:
    wanted = expected.get("bytes") if isinstance(expected, dict) else None
    most = wanted if type(wanted) is int else 0
    if most > files.NAMED and (path.name not in _TENSORS or most > machine_memory()):
        raise BrokenCheckpoint(f"{path} has {most:,} bytes, which is more than can be read here")
    content = _read(path, "the checkpoint is not whole", most)
    if len(content) != wanted:
        raise BrokenCheckpoint(f"{path} has {len(content):,} bytes; the manifest says otherwise")
    if hashlib.sha256(content).hexdigest() != expected.get("sha256"):
        raise BrokenCheckpoint(f"{path} is damaged: its hash does not match")
    return content


def all_in(parent: Path) -> list[Path]:
    """Checkpoint folders, newest first, whether good or not."""
    if not parent.is_dir():
        return []
    found = [path for path in parent.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=step_of, reverse=True)


def is_good(folder: Path) -> bool:
    try:
        read_verified(folder)
    except BrokenCheckpoint:
        return False
    return True


def _is_same(folder: Path, contents: dict[str, bytes | TensorFile]) -> bool:
    """But for how long it took. The state names the best step, which another evaluation changes."""
    try:
        there = read_verified(folder)
    except BrokenCheckpoint:
        return False
    state = contents["state.json"]
    assert isinstance(state, bytes)
    return _untimed(there["state.json"]) == _untimed(state) and all(
        name in there and _sha256(there[name]) == _sha256(contents[name]) for name in _TENSORS
    )


def _untimed(state: bytes) -> dict[str, Any]:
    kept = json.loads(state)
    return {name: kept[name] for name in kept if name not in ("seconds", "step_seconds")}


def newest_good(
    parent: Path, verify: Callable[[Path], object] = read_verified
) -> tuple[Path | None, list[str]]:
    """The newest valid checkpoint, and what is wrong with those after it."""
    broken = []
    for folder in all_in(parent):
        try:
            verify(folder)
        except BrokenCheckpoint as error:
            broken.append(str(error))
        else:
            return folder, broken
    return None, broken


def outdated(parent: Path, keep: int, protected: set[int]) -> list[Path]:
    """All but the newest `keep` and the protected steps."""
    return [folder for folder in all_in(parent)[keep:] if step_of(folder) not in protected]


def retain(parent: Path, keep: int, protected: set[int]) -> None:
    """Delete outdated checkpoints.

    Only what is older than one that has been read back from the disk and found good.
    """
    old = outdated(parent, keep, protected)
    last_good = newest_good(parent)[0] if old else None
    for folder in old:
        if last_good is not None and step_of(folder) < step_of(last_good):
            discard(folder)


def discard(folder: Path) -> None:
    """Take a checkpoint away in one step, then delete what is left of it."""
    doomed = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    files.remove_folder(doomed)
    with suppress(FileNotFoundError):  # a person was faster
        folder.rename(doomed)
    files.remove_folder(doomed)


def set_aside(parent: Path, step: int) -> list[Path]:
    """Good checkpoints after a step that is gone on from: else the next resume would take them.

    They are kept, beside the others.
    """
    later = [folder for folder in all_in(parent) if step_of(folder) > step and is_good(folder)]
    moved = []
    for folder in later:
        place = _aside(folder)
        files.make_folder(place.parent)
        folder.rename(place)
        moved.append(place)
    return moved


def _aside(folder: Path) -> Path:
    """A free place for a checkpoint that is not to be resumed from."""
    places = (folder.parent / f"aside-{n}" / folder.name for n in itertools.count(1))
    return next(place for place in places if not place.exists())


def sweep(parent: Path) -> None:
    """Remove what killed processes left half written or half deleted."""
    if parent.is_dir():
        for path in parent.iterdir():
            if path.name.startswith(".step_") and path.suffix in (".tmp", ".old"):
                files.remove_folder(path)


def _tensors(content: bytes, path: Path) -> dict[str, "Tensor"]:
    import safetensors.torch

    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise BrokenCheckpoint(f"{path} is not safetensors: {error}") from None


def _not_finite(tensors: dict[str, "Tensor"]) -> str:
    """The name of a tensor that holds a NaN or Inf; empty if none does."""
    return next((name for name, one in tensors.items() if not is_finite(one)), "")


def _manifest(step: int, contents: dict[str, bytes | TensorFile]) -> bytes:
    described = {name: entry_of(content) for name, content in contents.items()}
    return manifest(SCHEMA, step, described)


def entry_of(content: bytes | TensorFile) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": _sha256(content)}


def manifest(schema: int, step: int, described: dict[str, Any]) -> bytes:
    """What lists the files of a checkpoint."""
    return _serialize({"schema": schema, "step": step, "files": described})


def _sha256(content: bytes | TensorFile) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else content.sha256()


def _serialize(body: dict[str, Any]) -> bytes:
    """A manifest's only spelling: any other byte in it is damage."""
    seal = hashlib.sha256(json_files.as_json(body)).hexdigest()
    return json_files.as_json({"body": body, "sha256": seal})


def _is_spelling(manifest: bytes, body: dict[str, Any]) -> bool:
    try:
        return manifest == _serialize(body)
    except UnicodeEncodeError:  # half of a surrogate pair, which no manifest of ours holds
        return False


def _object(content: bytes, path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json_files.in_shape(json_files.parse_json(content, path), {}, path)
    except ValueError as error:
        raise BrokenCheckpoint(f"{path} is damaged: it is not a JSON object") from error
    return found


def _read(path: Path, otherwise: str, most: int) -> bytes:
    """A file of at most so many bytes; its size is asked for before it is read."""
    try:
        if not path.is_file():  # opening a FIFO would wait for ever
            raise BrokenCheckpoint(f"{path} is missing; {otherwise}")
        return files.read(path, most)
    except OSError as error:
        said = error.strerror or str(error)
        there = said if str(path) in said else f"{path} cannot be read: {said}"
        raise BrokenCheckpoint(there) from None


def _advice(error: OSError) -> str:
    return "; free some space and resume with --resume" if error.errno in files.FULL else ""
