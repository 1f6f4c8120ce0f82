"""The lock of a run folder: held by the one process that writes there, and proof of where it is.

A person may move or remove the folder of a training that is at work. A file that is open stays with
its folder, so the lock tells: its last name is gone, or it has another path by now.
"""

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import IO, Any

PATIENCE = 5  # times; whoever only looks has the lock for a moment


class FolderGone(OSError):
    """The folder of a training was moved or removed; what was saved, and where."""

    def __init__(self, said: str) -> None:
        super().__init__(errno.ENOENT, said)

    def __str__(self) -> str:
        return str(self.strerror)


class Lock:
    """A lock that this process holds, or tries to."""

    def __init__(self, folder: Path, file: IO[bytes]) -> None:
        self.folder, self._file = folder, file

    def taken(self) -> bool:
        """Whether this process has it now."""
        for _ in range(PATIENCE):
            if _try(self._file, fcntl.LOCK_EX):
                return True
            time.sleep(0.02)
        return False

    def in_place(self) -> bool:
        """Whether the folder is still the one that was locked."""
        try:
            there = (self.folder / "lock").lstat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._file.fileno()))

    def moved_to(self) -> Path | None:
        """Where the folder is now; None if it was removed, or this system does not say."""
        status = os.fstat(self._file.fileno())
        try:
            path = Path(f"/proc/self/fd/{self._file.fileno()}").readlink()
            same = status.st_nlink > 0 and os.path.samestat(path.lstat(), status)
        except OSError:
            return None
        return path.parent if same else None


def held_by_another(file: IO[Any]) -> bool:
    """Of a file that was opened to look; looking keeps nobody out."""
    return not _try(file, fcntl.LOCK_SH)


def _try(file: IO[Any], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
