"""Files that are there whole or not at all."""

import errno
import os

import pytest

from attnlab import files


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


def test_json_comes_back_and_keeps_its_order_and_letters(tmp_path):
    value = {"b": [1, 2.5, None, True], "a": "π"}
    path = tmp_path / "a.json"
    path.write_bytes(files.as_json(value))
    assert files.read_json(path) == value and list(files.read_json(path)) == ["b", "a"]
    assert "π" in path.read_text(encoding="utf-8")


def test_json_without_a_meaning_is_not_written():
    with pytest.raises(ValueError, match="JSON"):
        files.as_json({"loss": float("nan")})


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_not_json_is_named_by_its_file(tmp_path, content):
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"wrong\.json is not JSON"):
        files.read_json(path)


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


def test_a_sealed_object_has_one_spelling(tmp_path):
    path = tmp_path / "x.json"
    good = files.sealed_json({"a": [1, "é"], "b": None})
    path.write_bytes(good)
    assert files.read_sealed(path) == {"a": [1, "é"], "b": None}
    for place in range(len(good)):
        broken = bytearray(good)
        broken[place] ^= 1 << place % 8
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"x\.json is"):
            files.read_sealed(path)
    half_a_pair = rb'{"a": "\ud800", "sha256": ""}'
    for other in (b"{}", b"[]", b'{"sha256": 3}', half_a_pair, good + b" "):
        path.write_bytes(other)
        with pytest.raises(ValueError, match="is damaged"):
            files.read_sealed(path)
    path.write_bytes(b'{"a": NaN, "sha256": ""}')
    with pytest.raises(ValueError, match=r"x\.json is not JSON: NaN is no finite number"):
        files.read_sealed(path)
