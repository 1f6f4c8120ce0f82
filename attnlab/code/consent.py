"""Which code may be run: what a person has named on this machine.

A run folder may come from a stranger, and its settings name code: a file beside it, or any function
of any package, with arguments. So code runs only after a person has named it, by its path and its
name, on the command line: `model.attention=mine.py:Mine`. That is remembered in a private folder
with the fingerprint of the code, so that `generate`, `evaluate` and the page need not ask again.
Code that has changed is new code.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

from attnlab import files, json_files
from attnlab.code.fingerprint import Code, read

FOLDER = "code"  # in the cache folder
_allowed: set[str] = set()  # in this process


def allow(code: str) -> None:
    """Let `file.py:Name` or `package.module:Name` be run by this process, as it is now."""
    _allowed.add(_key(code, read(code)))


def remember(code: str) -> None:
    """Let it be run by later processes too."""
    found = read(code)
    record = {"code": code, "folder": str(Path.cwd()), "fingerprint": found.fingerprint}
    folder = files.cache_folder() / FOLDER
    files.make_folder(folder)
    files.write_whole(folder / f"{_key(code, found)}.json", json_files.as_json(record))


def is_allowed(code: str, found: Code | None = None) -> bool:
    key = _key(code, found or read(code))
    if key in _allowed:
        return True
    with suppress(OSError):
        return (files.cache_folder() / FOLDER / f"{key}.json").is_file()
    return False


def refuse_unnamed(code: str, found: Code) -> None:
    """A ValueError for code that nobody has named on this machine, as it was found."""
    if not is_allowed(code, found):
        raise ValueError(
            f"{code} as it is now was never named on this machine, so it may be a stranger's code "
            f"and is not run; read it, and if you want it to be run: attnlab trust {code}"
        )


def _key(code: str, found: Code) -> str:
    """Of a place and what is there; a copy elsewhere may have other files beside it."""
    path, _, name = code.rpartition(":")
    place = next(map(str, found.files), f"module {path}")
    return hashlib.sha256(f"{place}\0{name}\0{found.fingerprint}".encode()).hexdigest()
