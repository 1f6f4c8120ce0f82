"""The folder: what is damaged, half or a stranger's is one line, and nothing of it is believed."""

import os

import pytest

from attnlab import config, files, json_files
from attnlab.data.prepared import folder
from attnlab.data.prepared.making import prepare
from attnlab.data.prepared.preparation import Preparation

WORDS = ["tokenizer=bytes", "validation=0.3", "part=200B", "workers=1"]


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "Document {number}."}}\n' for number in range(40)))
    prepare(config.override(Preparation(), WORDS), str(path), tmp_path / "out")
    return tmp_path / "out"


def test_it_is_hashed_once_and_again_when_a_time_or_size_has_changed(made, monkeypatch):
    hashed = []
    plain = files.sha256

    def sha256(path):
        hashed.append(path.suffix)
        return plain(path)

    monkeypatch.setattr(files, "sha256", sha256)

    def shards_hashed():
        hashed.clear()
        folder.open_folder(made)
        return sum(suffix != ".json" for suffix in hashed)

    assert shards_hashed() == 0  # who wrote them has hashed them
    one = made / "train-00000-00000.tokens"
    os.utime(one, ns=(1, 1))
    count = len([*made.glob("*.tokens"), *made.glob("*.ends")])
    assert [shards_hashed(), shards_hashed()] == [count, 0]
    moved = made.rename(made.with_name("moved"))  # who sends a folder may say what he likes
    hashed.clear()
    folder.open_folder(moved)
    assert sum(suffix != ".json" for suffix in hashed) == count


def test_every_byte_of_it_is_checked(made):
    for path in sorted(made.iterdir()):
        if path.name in (".lock", "plan.json"):
            continue
        whole = path.read_bytes()
        for place in {0, len(whole) // 2, len(whole) - 1}:
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(ValueError, match=r"damaged|not the tokenizer|not JSON|another ver"):
                folder.open_folder(made, whole=True)
        path.write_bytes(whole[:-1])
        with pytest.raises(ValueError, match=r"damaged|not the tokenizer|not JSON|bytes and not"):
            folder.open_folder(made)
        path.write_bytes(whole)
    folder.open_folder(made)


def test_a_file_that_is_missing_or_a_link_is_said(made):
    one = made / "train-00000-00000.tokens"
    kept = one.rename(made.parent / "kept")
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        folder.open_folder(made)
    one.symlink_to(kept)
    with pytest.raises(ValueError, match=r"bytes and not|is a link"):
        folder.open_folder(made)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": 7}, "by another version of attnlab"),
        ({"width": 3}, "width is 3"),
        ({"parts": [{"part": "../../etc/passwd"}]}, "no parts.0.last"),
        ({"parts": 3}, "parts is 3"),
    ],
)
def test_an_index_of_a_stranger_is_read_with_distrust(made, changes, said):
    path = made / folder.INDEX
    index = json_files.unseal(path.read_bytes(), path, None)
    path.write_bytes(json_files.sealed_json({**index, **changes}, None))
    with pytest.raises(ValueError, match=said):
        folder.open_folder(made)


@pytest.mark.parametrize("name", ["../escape", "00000-00000/../x", "00001-00000\n", "1"])
def test_no_name_of_an_index_leads_elsewhere(made, name):
    path = made / folder.INDEX
    index = json_files.unseal(path.read_bytes(), path, None)
    index["parts"][0]["part"] = name
    path.write_bytes(json_files.sealed_json(index, None))
    with pytest.raises(ValueError, match="does not name its parts by their numbers"):
        folder.open_folder(made)


def test_half_a_folder_is_not_opened(made):
    (made / folder.INDEX).unlink()
    with pytest.raises(ValueError, match="not prepared to the end"):
        folder.open_folder(made)
    with pytest.raises(ValueError, match="is no prepared text"):
        folder.open_folder(made.parent)


def test_without_a_cache_it_is_hashed_every_time(made, monkeypatch):
    def refuse():
        raise PermissionError("no folder of ours")

    monkeypatch.setattr(files, "cache_folder", refuse)
    hashed, plain = [], files.sha256
    monkeypatch.setattr(files, "sha256", lambda path: hashed.append(path) or plain(path))
    for _ in range(2):
        hashed.clear()
        assert folder.open_folder(made).total("train", "documents") > 20
        assert len(hashed) > 10
