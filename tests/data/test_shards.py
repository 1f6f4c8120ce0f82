"""Token streams: the same tokens from memory and from files, and damage is found."""

import hashlib
import json
import multiprocessing
import os
import sys

import numpy as np
import pytest

from attnlab import json_files
from attnlab.data import shards
from attnlab.data.corpora import TextFiles
from attnlab.data.shards import Stream, open_shards, shards_in, smallest_dtype, stream_of
from attnlab.data.tokens import Bytes, Characters

TEXT = "".join(chr(97 + i * i % 26) for i in range(1000))


@pytest.fixture
def small_shards(monkeypatch, tmp_path):
    monkeypatch.setattr(shards, "SHARD", 64)
    monkeypatch.setattr(shards, "SMALL", 0)
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    return TextFiles(path=str(tmp_path / "a.txt")).load()


def some_tokens(count=1000, parts=7, dtype=np.int64):
    return iter(np.array_split(np.arange(count, dtype=dtype) % 251, parts))


def all_of(stream):
    return stream.take(np.array([0]), stream.count)[0]


@pytest.mark.parametrize("cuts", [[], [1], [5, 6, 7], [0, 3, 3, 50]])
@pytest.mark.parametrize("length", [1, 2, 13])
def test_rows_cross_the_borders_of_arrays(cuts, length):
    tokens = np.arange(61, dtype=np.uint8)
    stream = Stream(np.split(tokens, cuts))
    starts = np.array([48, 0, 5, 4, 61 - length, 0])
    got = stream.take(starts, length)
    assert stream.count == 61 and got.dtype == np.int64
    assert (got == starts[:, None] + np.arange(length)).all()


@pytest.mark.parametrize("start", [-1, 59])
def test_rows_outside_the_stream_are_refused(start):
    with pytest.raises(ValueError, match="the stream has 61"):
        Stream([np.arange(61)]).take(np.array([3, start]), 3)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
def test_shards_hold_the_tokens(tmp_path, small_shards, dtype, count):
    stream = shards_in(tmp_path / "s", some_tokens(count), np.dtype(dtype))
    assert (all_of(stream) == np.arange(count) % 251).all()
    sizes = [path.stat().st_size for path in sorted((tmp_path / "s").glob("*.tokens"))]
    assert sum(sizes) == 64 * len(sizes) + count * np.dtype(dtype).itemsize
    assert len(sizes) == -(-count // 64)


def test_a_token_takes_as_few_bytes_as_it_can():
    sizes = [smallest_dtype(n).itemsize for n in (2, 256, 257, 65536, 65537)]
    assert sizes == [1, 1, 2, 2, 4]


def test_what_is_there_is_not_made_again(tmp_path, small_shards):
    heard = []
    shards_in(tmp_path / "s", some_tokens(), np.dtype("uint8"), note=heard.append)

    def never():
        raise AssertionError("tokens were asked for")
        yield

    stream = shards_in(tmp_path / "s", never(), np.dtype("uint8"), note=heard.append)
    assert stream.count == 1000 and heard == [f"tokenizing into {tmp_path / 's'}"]


def test_a_flipped_bit_anywhere_is_found_and_mended(tmp_path, small_shards):
    dtype = np.dtype("uint8")
    shards_in(tmp_path / "s", some_tokens(150), dtype)
    path = tmp_path / "s" / "00001.tokens"
    good = path.read_bytes()
    used = [place for place in range(len(good)) if not 56 <= place < 64]
    for place in [*used, 56, 63]:
        broken = bytearray(good)
        broken[place] ^= 1 << place % 8
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"00001\.tokens"):
            open_shards(tmp_path / "s")
    heard = []
    stream = shards_in(tmp_path / "s", some_tokens(150), dtype, note=heard.append)
    assert (all_of(stream) == np.arange(150)).all() and path.read_bytes() == good
    assert len(heard) == 1 and "damaged" in heard[0] and "tokenizing again" in heard[0]


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "00001.tokens").unlink(),
        lambda folder: (folder / "00001.tokens").write_bytes(b""),
        lambda folder: (folder / "00001.tokens").write_bytes(
            (folder / "00001.tokens").read_bytes()[:-1]
        ),
        lambda folder: (folder / "00000.tokens").replace(folder / "00001.tokens"),
        lambda folder: (folder / "index.json").write_text("{"),
        lambda folder: (folder / "index.json").write_text("[" * 100_000),
        lambda folder: (folder / "index.json").write_text("[]"),
        lambda folder: change(folder, lambda index: index.update(schema=99)),
        lambda folder: change(folder, lambda index: index.update(bytes=3)),
        lambda folder: change(folder, lambda index: index.update(bytes="x")),
        lambda folder: change(folder, lambda index: index["shards"].reverse()),
        lambda folder: change(folder, lambda index: index.update(shards=[1])),
        lambda folder: change(folder, lambda index: index["shards"][0].update(name="../x")),
        lambda folder: change(folder, lambda index: index["shards"][0].update(count="64")),
        lambda folder: change(folder, lambda index: index["shards"][0].update(sha256="0")),
    ],
)
def test_broken_files_are_made_again(tmp_path, small_shards, harm):
    folder = tmp_path / "s"
    shards_in(folder, some_tokens(), np.dtype("uint8"))
    harm(folder)
    with pytest.raises(ValueError):
        open_shards(folder)
    heard = []
    stream = shards_in(folder, some_tokens(), np.dtype("uint8"), note=heard.append)
    assert (all_of(stream) == np.arange(1000) % 251).all() and len(heard) == 1


def change(folder, edit):
    """With the right hash: what is wrong is found all the same."""
    index = json.loads((folder / "index.json").read_text())
    del index["sha256"]
    edit(index)
    (folder / "index.json").write_bytes(json_files.sealed_json(index))


def test_a_shard_that_claims_terabytes_is_refused_before_it_is_read(
    tmp_path, small_shards, monkeypatch
):
    made = list(range(23))
    shards_in(tmp_path, iter([np.array(made)]), np.dtype(np.uint8))
    os.truncate(tmp_path / "00000.tokens", 2**40)
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *given: pytest.fail("read"))
        with pytest.raises(ValueError, match="has 1099511627776 bytes, which is not"):
            open_shards(tmp_path)


def test_an_index_without_its_last_shard_is_found_by_its_own_hash(tmp_path, small_shards):
    folder = tmp_path / "s"
    shards_in(folder, some_tokens(), np.dtype("uint8"))
    index = json.loads((folder / "index.json").read_text())
    del index["shards"][-1]
    (folder / "index.json").write_bytes(json_files.as_json(index))
    with pytest.raises(ValueError, match="its hash does not match"):
        open_shards(folder)
    assert shards_in(folder, some_tokens(), np.dtype("uint8")).count == 1000


@pytest.mark.parametrize("name", ["index.json", "00001.tokens"])
@pytest.mark.parametrize("kind", ["link", "dangling", "fifo"])
def test_what_is_no_plain_file_is_replaced(tmp_path, small_shards, name, kind):
    folder = tmp_path / "s"
    shards_in(folder, some_tokens(), np.dtype("uint8"))
    path, elsewhere = folder / name, tmp_path / "elsewhere"
    good = path.read_bytes()
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(elsewhere)
    if kind == "link":
        elsewhere.write_bytes(good)
    heard = []
    stream = shards_in(folder, some_tokens(), np.dtype("uint8"), note=heard.append)
    assert (all_of(stream) == np.arange(1000) % 251).all()
    assert path.read_bytes() == good and not path.is_symlink()
    assert len(heard) == 1 and str(path) in heard[0] and "tokenizing again" in heard[0]
    assert not elsewhere.exists() or elsewhere.read_bytes() == good


def test_memory_and_shards_hold_the_same(corpus, small_shards, monkeypatch):
    tokenizer = Characters().train(corpus.alphabet(), special=False)
    from_files = [all_of(stream_of(corpus, tokenizer, s)) for s in ("train", "validation")]
    assert len(list(shards.cache_folder().glob("shards/*/index.json"))) == 2
    monkeypatch.setattr(shards, "SMALL", 10**6)
    monkeypatch.setattr(shards, "cache_folder", None)  # a small text needs no folder
    in_memory = [all_of(stream_of(corpus, tokenizer, s)) for s in ("train", "validation")]
    for one, two in zip(from_files, in_memory, strict=True):
        assert (one == two).all()
    assert tokenizer.decode(np.concatenate(in_memory)) == TEXT


def test_another_tokenizer_or_text_has_its_own_shards(corpus, small_shards, tmp_path):
    characters = Characters().train(corpus.alphabet(), special=False)
    stream_of(corpus, characters, "train")
    stream_of(corpus, Bytes().train([], False), "train")
    (tmp_path / "b.txt").write_text("z" + TEXT[1:])
    stream_of(TextFiles(path=str(tmp_path / "b.txt")).load(), characters, "train")
    assert len(list(shards.cache_folder().glob("shards/*"))) == 3


def test_a_folder_that_cannot_be_written_is_said(corpus, small_shards, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards.files, "write_whole", full)
    with pytest.raises(ValueError, match="No space left on device; set ATTNLAB_CACHE"):
        stream_of(corpus, Bytes().train([], False), "train")


def make(folder, barrier, answers):
    shards.SHARD = 64
    barrier.wait()
    for _ in range(5):
        shards.make_shards(folder, some_tokens(), np.dtype("uint8"))
        stream = open_shards(folder)
        answers.put(bool((all_of(stream) == np.arange(1000) % 251).all()))


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_two_processes_may_make_the_same_shards_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(2), context.Queue()
    (tmp_path / "s").mkdir()
    workers = [
        context.Process(target=make, args=(tmp_path / "s", barrier, answers)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    assert all(answers.get(timeout=60) for _ in range(10))
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert not list((tmp_path / "s").glob(".*.tmp"))


def test_tokens_that_have_no_room_are_named_with_path_and_bytes(
    small_shards, corpus, tmp_path, monkeypatch, full_disk
):
    monkeypatch.setattr(shards, "SHARD", 4096)
    (tmp_path / "long.txt").write_text(TEXT * 2)
    (tmp_path / "longer.txt").write_text(TEXT * 2)
    long = TextFiles(path=str(tmp_path)).load()
    tokenizer = Characters().train(long.alphabet(), special=False)
    said = r"00000\.tokens could not be written \([\d,]+ bytes\): .* ATTNLAB_CACHE"
    with pytest.raises(ValueError, match=said):
        stream_of(long, tokenizer, "train")
