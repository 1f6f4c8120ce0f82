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

TRIES = 5  # whoever only looks has the lock for a moment
PAUSE = 0.02  # seconds between two of them
LONGEST_PATH = 1024  # bytes, on macOS
# what flock says where the file system has no locks, as some network drives have none
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


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
        try:
            for _ in range(TRIES):
                if _try(self._file, fcntl.LOCK_EX):
                    return True
                time.sleep(PAUSE)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise OSError(
                error.errno,
                f"{self.folder} cannot be locked ({error.strerror}): its file system has no locks, "
                "so two trainings could write there at once; use a folder on a local disk",
            ) from None
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
            path = _path_of(self._file.fileno())
            same = status.st_nlink > 0 and os.path.samestat(path.lstat(), status)
        except OSError:
            return None
        return path.parent if same else None

    def what_is_gone(self) -> str:
        """Of a folder that is neither in its place nor was moved: what has happened to it."""
        if os.path.lexists(self.folder / "lock"):
            return f"{self.folder} or its lock was replaced by another"
        if (self.folder / "checkpoints").is_dir():  # another process could begin to write there
            return f"the lock of {self.folder} was removed"
        return f"{self.folder} was removed"


def held_by_another(file: IO[Any]) -> bool:
    """Of a file that was opened to look; looking keeps nobody out."""
    try:
        return not _try(file, fcntl.LOCK_SH)
    except OSError as error:
        if error.errno in NO_LOCKS:  # nobody can hold one there
            return False
        raise


def _path_of(handle: int) -> Path:
    """The name that an open file has now; macOS has a call for it, Linux a folder."""
    ask = getattr(fcntl, "F_GETPATH", None)
    if ask is None:
        return Path(f"/proc/self/fd/{handle}").readlink()
    return Path(os.fsdecode(fcntl.fcntl(handle, ask, bytes(LONGEST_PATH)).partition(b"\0")[0]))


def _try(file: IO[Any], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
