"""Files that are there whole or not at all, and a private folder for what can be made again.

Whatever attnlab reads or writes in a folder of runs goes through this module. A folder may come
from a stranger, so no link in it is followed, nothing is truncated, and nothing that is no plain
file is opened: a FIFO would wait for ever. Errors name the path and, when writing, the bytes.
"""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

from attnlab import WINDOWS

try:
    import fcntl
except ImportError:  # the first thing of ours that Windows does not have
    raise ImportError(WINDOWS) from None

NAMED = 64 * 2**20  # bytes; what people write by hand is smaller
LOG = 2**30  # bytes; the log of ten million steps is smaller
ODD = "it is damaged, or not written by attnlab; remove it or restore it"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def is_file(path: Path) -> bool:
    """Whether it is there; what is too long for a name, or can be none, is not."""
    with suppress(OSError, ValueError):
        return path.is_file()
    return False


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one step; it survives a crash of the machine once this returns."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a killed process, or a link that waits for us
        _write(temporary, content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise failed_write(path, len(content), error) from None
    sync_folder(path.parent)


@runtime_checkable
class Pieces(Protocol):
    """The bytes of a file that is never whole in memory."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[memoryview]: ...


def write_new(path: Path, content: bytes | Pieces) -> None:
    """A file that is not there yet, forced to the disk."""
    try:
        _write(path, content)
    except OSError as error:
        raise failed_write(path, len(content), error) from None


def _write(path: Path, content: bytes | Pieces) -> None:
    with os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        for piece in [content] if isinstance(content, bytes) else content:
            file.write(piece)
        file.flush()
        _fsync(file.fileno())


def write_named(path: Path, content: bytes) -> None:
    """To a file that a person has named: a link, /dev/stdout and a FIFO are what they want."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise failed_write(path, len(content), error) from None


def read_named(path: Path, most: int = NAMED) -> bytes:
    """Of a file that a person has named: a link is followed, what may never end is refused."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a FIFO would wait
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        size = os.fstat(handle).st_size  # asked for first: it may have holes, or be of /proc
        if size > most:
            raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(size)
    finally:
        os.close(handle)


def append(path: Path, content: bytes) -> None:
    try:
        with os.fdopen(_open_to_append(path), "ab") as file:
            file.write(content)
    except OSError as error:
        raise failed_write(path, len(content), error) from None


def open_log(path: Path) -> IO[str]:
    """To append text to, by this process or one that it starts."""
    return os.fdopen(_open_to_append(path), "a")


def _open_to_append(path: Path) -> int:
    """What has a second name elsewhere (a hard link) would be changed there as well."""
    handle = _open(path, APPENDING)
    if os.fstat(handle).st_nlink > 1:
        os.close(handle)
        raise OSError(errno.EMLINK, f"{path} is a hard link to another file; replace it by a copy")
    return handle


def open_lock(path: Path) -> IO[bytes]:
    """A file for `flock`, made if it is not there; what is in it stays."""
    return os.fdopen(_open(path, os.O_RDWR | os.O_CREAT), "r+b")


def read(path: Path, most: int = LOG) -> bytes:
    """What a plain file holds; an OSError for anything else, a link or a larger file among it.

    The size is asked for before anything is read: a file with holes may claim to have terabytes.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            said = f"{path} has {size:,} bytes, and at most {most:,} are expected; {ODD}"
            raise OSError(errno.EFBIG, said)
        return file.read(size)


def open_plain(path: Path) -> BufferedReader:
    return os.fdopen(_open(path, os.O_RDONLY), "rb")


def make_folder(path: Path) -> None:
    """A folder, with those above it; a link in its place is refused."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, f"{path} is a link, and links are not followed; remove it")
    path.mkdir(parents=True, exist_ok=True)


def remove_folder(path: Path) -> None:
    """A folder and all in it, or the link in its place; what cannot be removed stays."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def hold_folder(path: Path) -> int | None:
    """A lock on a folder, to be closed, that ends with this process; None: another has it.

    None too where a file system has no locks.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def failed_write(path: Path, size: int, error: OSError) -> OSError:
    """The same error with the path and the bytes that could not be written."""
    reason = error.strerror or str(error)
    if str(path) in reason:
        return error
    return OSError(error.errno, f"{path} could not be written ({size:,} bytes): {reason}")


def _open(path: Path, flags: int) -> int:
    """A plain file, not by way of a link; the descriptor is not left to child processes."""
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a FIFO would wait
    try:
        handle = os.open(path, flags | safe, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(
                errno.ELOOP, f"{path} is a link, and links are not followed; remove it"
            ) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, f"{path} is no plain file; remove it")
    return handle


def sync(path: Path) -> None:
    """Make what was appended survive a crash of the machine; a file need not be there."""
    with suppress(FileNotFoundError):
        handle = _open(path, os.O_RDONLY)
        try:
            _fsync(handle)
        finally:
            os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make names in a folder (new files, renames) survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        _fsync(handle)
    finally:
        os.close(handle)


def _fsync(handle: int) -> None:
    """On macOS fsync ends at the cache of the drive; another call goes on to the disk."""
    whole = getattr(fcntl, "F_FULLFSYNC", None)
    if whole is not None:
        with suppress(OSError):  # not every file system has it
            fcntl.fcntl(handle, whole)
            return
    os.fsync(handle)


def sha256(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class CacheWarning(UserWarning):
    """Something in the cache is damaged, and made again."""


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
