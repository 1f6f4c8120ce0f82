"""Text from files and folders: split exactly, streamed, and clear about what is wrong."""

import os
import socket
from pathlib import Path

import pytest

from attnlab.data import corpora
from attnlab.data.corpora import PythonDocs, TextCorpus, TextFiles

TEXT = "Eine Tür — 日本 🙂.\n" * 60


@pytest.fixture(params=[1, 2, 3, 5, 1000])
def small_chunks(request, monkeypatch):
    """Characters of several bytes are cut by most of these."""
    monkeypatch.setattr(corpora, "CHUNK", request.param)


def written(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def whole(corpus, split):
    return "".join(corpus.pieces(split))


def refused(path, **settings):
    with pytest.raises(ValueError) as caught:
        TextFiles(path=str(path), **settings).load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_splits_are_the_text_cut_once(tmp_path, small_chunks):
    corpus = TextFiles(path=written(tmp_path, "a.txt", TEXT)).load()
    train, held = whole(corpus, "train"), whole(corpus, "validation")
    assert train + held == TEXT and len(train) == int(len(TEXT) * 0.9)
    assert (corpus.characters("train"), corpus.characters("validation")) == (len(train), len(held))
    assert "".join(corpus.alphabet()) == TEXT and not corpus.documents
    assert corpus.questions == {"train": [], "dev": [], "test": []}


@pytest.mark.parametrize(
    ("count", "validation", "train"), [(1394, 0.1, 1254), (100, 0.0, 100), (33, 0.25, 24)]
)
def test_the_border_is_rounded_down(tmp_path, count, validation, train):
    corpus = TextFiles(path=written(tmp_path, "a", "x" * count), validation=validation).load()
    assert corpus.characters("train") == len(whole(corpus, "train")) == train
    assert corpus.characters("validation") == len(whole(corpus, "validation")) == count - train


def test_nothing_is_read_in_one_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "CHUNK", 64)
    corpus = TextFiles(path=written(tmp_path, "a.txt", TEXT)).load()
    assert max(map(len, corpus.pieces("train"))) <= 64


def test_a_folder_is_its_text_files_in_order(tmp_path):
    for name in ("b.md", "a/z.txt", "a/c.PY", ".hidden.txt", ".git/x.txt", "image.png", "c.txt"):
        written(tmp_path, name, f"text of {name}")
    os.mkfifo(tmp_path / "fifo.txt")
    corpus = TextFiles(path=str(tmp_path)).load()
    names = ["a/c.PY", "a/z.txt", "b.md", "c.txt"]
    assert "".join(corpus.alphabet()) == "\n".join(f"text of {name}" for name in names)


def test_the_fingerprint_follows_text_and_split_and_not_the_name(tmp_path, small_chunks):
    one = TextFiles(path=written(tmp_path, "a.txt", TEXT)).load().fingerprint
    two = TextFiles(path=written(tmp_path, "b.txt", TEXT)).load().fingerprint
    three = TextFiles(path=written(tmp_path, "c.txt", "e" + TEXT[1:])).load().fingerprint
    four = TextFiles(path=str(tmp_path / "a.txt"), validation=0.2).load().fingerprint
    assert one == two and len({one, three, four}) == 3


def test_what_is_not_there_is_named(tmp_path):
    assert "no text is named; write data=PATH" in refused("")
    assert f"{tmp_path / 'no.txt'} does not exist" in refused(tmp_path / "no.txt")
    assert "cannot be used as a path" in refused("a\0b")
    assert "cannot be used as a path" in refused("x" * 5000)
    assert "cannot be used as a path" in refused("~no such user/x")
    assert "holds no text files" in refused(tmp_path)


def test_text_that_is_too_short_is_counted(tmp_path):
    assert "is empty" in refused(written(tmp_path, "a.txt", ""))
    assert "10 characters leave 9 to train on and 1" in refused(written(tmp_path, "b", "x" * 10))
    assert "leave 1 to train on" in refused(written(tmp_path, "c", "x"), validation=0)
    assert TextFiles(path=str(tmp_path / "b"), validation=0).load().characters("train") == 10


@pytest.mark.parametrize("wrong", [b"\xff", b"\xc3", b"\xe6\x97", b"\xed\xa0\x80"])
def test_bytes_that_are_not_utf8_are_located(tmp_path, small_chunks, wrong):
    start = "日本é".encode()
    for end in (b"", b"abc"):
        path = written(tmp_path, "a.txt", start + wrong + end)
        assert f"a.txt is not UTF-8 text: wrong byte at offset {len(start)}" in refused(path)


def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert "is a FIFO; text comes from" in refused(tmp_path / "fifo")
    assert "is a device" in refused("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        assert "is a socket" in refused(tmp_path / "s")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_said(tmp_path):
    path = written(tmp_path, "a.txt", TEXT)
    Path(path).chmod(0)
    assert "a.txt cannot be read: Permission denied" in refused(path)


def test_a_file_that_cannot_be_opened_is_said(tmp_path, monkeypatch):
    path = written(tmp_path, "a.txt", TEXT)

    def fail(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "open", fail)
    assert "a.txt cannot be read: Permission denied" in refused(path)


def test_a_file_that_changes_in_use_is_noticed(tmp_path):
    corpus = TextFiles(path=written(tmp_path, "a.txt", TEXT)).load()
    written(tmp_path, "a.txt", TEXT + "more")
    with pytest.raises(ValueError, match="changed while it was in use"):
        whole(corpus, "train")


def text_corpus(validation):
    return TextCorpus("a text", lambda: iter([TEXT]), validation)


@pytest.mark.parametrize("make", [PythonDocs, TextFiles, text_corpus])
@pytest.mark.parametrize("validation", [-0.1, 1.0, 1.5, float("nan")])
def test_a_part_for_validation_is_less_than_all(make, validation):
    with pytest.raises(ValueError, match=r"validation is .*; it is the part .* 0 to less than 1"):
        make(validation=validation)


@pytest.mark.parametrize("validation", [1.5, 1.0, -0.5, float("nan")])
def test_a_corpus_refuses_the_part_before_it_reads_the_text(validation):
    """It may be made without settings; −0.5 was taken, 1.5 was called a text that is too short."""
    rule = rf"validation is {validation}; it is the part .* less than 1, such as 0\.1"
    with pytest.raises(ValueError, match=rule):
        TextCorpus("text", lambda: pytest.fail("read"), validation)


def test_an_unknown_split_is_named(tmp_path):
    corpus = TextFiles(path=written(tmp_path, "a.txt", TEXT)).load()
    with pytest.raises(ValueError, match="unknown split 'dev'; choose from train, validation"):
        whole(corpus, "dev")


def test_python_has_documentation_to_read():
    corpus = PythonDocs().load()
    assert corpus.characters("train") > 100_000
    assert corpus.fingerprint == PythonDocs().load().fingerprint
    assert "assert" in whole(corpus, "train")


def test_runs_inside_of_a_folder_are_no_text(tmp_path):
    (tmp_path / "a.txt").write_text("a text of some length " * 9)
    for name in ("runs/one/config.json", "runs/one/checkpoints/x.json", "study/parts/a.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"not": "a text"}')
    (tmp_path / "study/settings.json").write_text("{}")
    found = TextFiles(path=str(tmp_path)).load()
    assert found.name == f"{tmp_path}, 1 file"
    assert "not" not in "".join(found.pieces("train"))
