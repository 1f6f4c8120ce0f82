"""Files that are there whole or not at all."""

import errno
import fcntl
import os

import pytest

from attnlab import files, json_files


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.json"
    for content in (b"one", b"another"):
        files.write_whole(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_error_while_writing_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch, step):
    path = tmp_path / "a.json"
    files.write_whole(path, b"old")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (type(path), "replace")), full)
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    """Else a crash of the machine could leave an empty file under the right name."""
    seen = []
    fsync, replace = os.fsync, type(tmp_path).replace
    monkeypatch.setattr(os, "fsync", lambda handle: (seen.append("sync"), fsync(handle)))
    monkeypatch.setattr(
        type(tmp_path), "replace", lambda *paths: (seen.append("name"), replace(*paths))
    )
    files.write_whole(tmp_path / "a", b"x")
    assert seen == ["sync", "name", "sync"]


@pytest.mark.parametrize("known", [True, False], ids=["on this file system", "not on this one"])
def test_where_there_is_a_stronger_call_than_fsync_it_is_used(tmp_path, monkeypatch, known):
    """As on macOS, where fsync leaves the bytes in the cache of the drive."""
    seen, fsync = [], os.fsync

    def full(handle, call):
        seen.append(call)
        if not known:
            raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda handle: (seen.append("fsync"), fsync(handle)))
    files.write_whole(tmp_path / "a", b"x")
    assert seen == ([51, 51] if known else [51, "fsync"] * 2)


def test_a_hash_is_that_of_the_bytes(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert files.sha256(path) == known


def test_the_cache_folder_is_private_or_refused(tmp_path, monkeypatch):
    """Compiled code is loaded from there: nobody else may write it."""
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path))
    folder = files.cache_folder()
    assert folder == tmp_path / "attnlab" and folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o720)
    with pytest.raises(PermissionError, match="can be written by others"):
        files.cache_folder()


def test_the_cache_folder_follows_the_desktop_where_nothing_else_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNLAB_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.cache_folder() == tmp_path / "attnlab"


WRITERS = {
    "append": lambda path: files.append(path, b"more"),
    "open_log": lambda path: files.open_log(path).close(),
    "open_lock": lambda path: files.open_lock(path).close(),
    "write_new": lambda path: files.write_new(path, b"more"),
    "read": files.read,
    "make_folder": files.make_folder,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing"])
def test_a_link_is_not_followed_and_its_target_not_touched(tmp_path, name, there):
    target, link = tmp_path / "target", tmp_path / "link"
    if there:
        target.write_bytes(b"precious")
    link.symlink_to(target)
    with pytest.raises(OSError) as caught:
        WRITERS[name](link)
    assert name == "write_new" or "is a link" in str(caught.value)
    assert target.exists() == there and (not there or target.read_bytes() == b"precious")


def test_a_file_that_replaces_a_link_leaves_its_target(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"precious")
    link.symlink_to(target)
    (tmp_path / f".link.{os.getpid()}.tmp").symlink_to(target)
    files.write_whole(link, b"new")
    assert target.read_bytes() == b"precious" and link.read_bytes() == b"new"
    assert not link.is_symlink()


def test_removing_a_folder_that_is_a_link_removes_the_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    (target / "inside").mkdir(parents=True)
    link.symlink_to(target)
    files.remove_folder(link)
    assert (target / "inside").is_dir() and not link.is_symlink()


def test_a_fifo_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="no plain file"):
        files.read(tmp_path / "fifo")


def test_a_lock_and_a_log_keep_what_is_there(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"there")
    files.open_lock(path).close()
    files.append(path, b" and more")
    assert path.read_bytes() == b"there and more"


def test_a_full_disk_is_named_with_path_and_bytes(tmp_path):
    error = files.failed_write(tmp_path / "a", 1234, OSError(errno.ENOSPC, "No space left"))
    assert f"{tmp_path / 'a'} could not be written (1,234 bytes): No space left" in str(error)


@pytest.mark.parametrize("name", ["write_whole", "write_new", "write_named", "append"])
def test_whatever_cannot_be_written_is_named_with_path_and_bytes(tmp_path, full_disk, name):
    with pytest.raises(OSError, match=r"log could not be written \(4,001 bytes\): ") as caught:
        getattr(files, name)(tmp_path / "log", b"x" * 4001)
    assert str(tmp_path / "log") in str(caught.value) and caught.value.errno == errno.EFBIG


def test_nothing_is_appended_to_a_hard_link(tmp_path):
    victim, log = tmp_path / "victim", tmp_path / "log"
    victim.write_text("mine\n")
    log.hardlink_to(victim)
    with pytest.raises(OSError, match="log is a hard link to another file; replace it by a copy"):
        files.append(log, b"theirs\n")
    with pytest.raises(OSError, match="is a hard link"):
        files.open_log(log)
    assert victim.read_text() == "mine\n"


@pytest.mark.parametrize(
    "read", [files.read, json_files.read_json, json_files.read_sealed, files.read_named]
)
def test_a_file_that_claims_terabytes_is_refused_before_it_is_read(tmp_path, read):
    """Sparse: it takes no room on the disk, and would take all the memory."""
    path = tmp_path / "x.json"
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(OSError, match=r"bytes, and at most|more than 64 MiB") as caught:
        read(path)
    assert caught.value.errno == errno.EFBIG
    os.truncate(path, 0)
    assert files.read(path, 0) == b""
    path.write_bytes(b"abc")
    assert files.read(path, 3) == b"abc"
    with pytest.raises(OSError, match=r"x\.json has 3 bytes, and at most 2"):
        files.read(path, 2)


def test_what_can_be_no_name_is_no_file(tmp_path):
    (tmp_path / "a").touch()
    assert files.is_file(tmp_path / "a")
    for name in ("b", "x" * 300, "a\0b", ""):
        assert not files.is_file(tmp_path / name)
