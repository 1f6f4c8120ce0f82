"""Forging files of ours: what an attacker writes who knows every format and every hash."""

import hashlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnlab import json_files
from attnlab.checks.hostile.trial import Place, Plant


def path_in(place: Place, name: str) -> str:
    """`checkpoint/state.json` is that of the newest checkpoint."""
    first, slash, rest = name.partition("/")
    if not slash or first != "checkpoint":
        return name
    return str(place.checkpoint.relative_to(place.run) / rest)


def seal(folder: Path) -> None:
    """A manifest that fits whatever is in a checkpoint, unless that has been forged itself."""
    manifest = folder / "manifest.json"
    try:
        body = json.loads(manifest.read_bytes())["body"]
        for name, known in body["files"].items():
            content = (folder / name).read_bytes()
            known |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        return
    write_manifest(folder, body)


def write_manifest(folder: Path, body: Any) -> None:
    digest = hashlib.sha256(json_files.as_json(body)).hexdigest()
    (folder / "manifest.json").write_bytes(json_files.as_json({"body": body, "sha256": digest}))


def content_of(name: str, content: bytes) -> Plant:
    """A file of a run holds something else, and its hash is right."""

    def plant(place: Place) -> None:
        (place.run / path_in(place, name)).write_bytes(content)
        seal(place.checkpoint)

    return plant


def edited(name: str, edit: Callable[[Any], Any]) -> Plant:
    """A JSON file of a run is changed, and its hash is right."""

    def plant(place: Place) -> None:
        path = place.run / path_in(place, name)
        value = json.loads(path.read_bytes())
        path.write_text(json.dumps(edit(value)))
        seal(place.checkpoint)

    return plant


def tensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file: the length of the header, the header, the data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    return size.to_bytes(8, "little") + text + data


def replace(path: Path, kind: str, target: Path) -> None:
    """Something else under the name of a file or folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}-moved"))
    else:
        path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(target)
    elif kind == "hard link":
        path.hardlink_to(target)
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        before = Path.cwd()
        os.chdir(path.parent)  # the path of a socket may not be long
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
        os.chdir(before)
    else:
        raise ValueError(f"unknown kind {kind!r}")
