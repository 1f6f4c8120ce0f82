"""Files that are there whole or not at all, and a private folder for what can be made again."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one step; it survives a crash of the machine once this returns."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder (new files, renames) survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_json(value: Any) -> bytes:
    """JSON for people: indented, keys in the order given, a newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """What a JSON file holds; a ValueError that names the file when it holds something else."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:  # also a number of more digits than Python will read
        raise ValueError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not JSON of ours: it is nested too deeply") from None


def cache_folder() -> Path:
    """A private folder for what can always be made again."""
    root = os.environ.get("ATTNLAB_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(root).expanduser() / "attnlab"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise PermissionError(
            f"{folder} can be written by others, and compiled code is kept there; "
            "chmod go-w it, or set ATTNLAB_CACHE to a folder of your own"
        )
    return folder
