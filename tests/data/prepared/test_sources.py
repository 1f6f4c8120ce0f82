"""Sources: which files belong to one, in which parts they are worked, and what is refused."""

import json
import os

import pytest

from attnlab.data.prepared import sources


def test_files_of_a_folder_come_in_the_order_of_their_names(tmp_path):
    for name in ("b.txt", "a/c.txt", "a.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / ".hidden.txt").write_text("no")
    found = sources.find(str(tmp_path))
    assert [file.name for file in found.files] == ["a.md", "a/c.txt", "b.txt"]
    assert found.bytes == 12 and found.name == tmp_path.name


def test_what_is_of_no_kind_is_named_and_what_is_of_another_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.png").write_bytes(b"\x89PNG")
    assert sources.find(str(tmp_path)).left_out == ("b.png",)
    assert len(sources.find(str(tmp_path), "text").files) == 2
    (tmp_path / "c.jsonl").write_text("{}")
    with pytest.raises(ValueError, match=r"several kinds: jsonl \(c.jsonl\), text \(a.txt\)"):
        sources.find(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "text"),
        ("a.JSONL", "jsonl"),
        ("a.ndjson.zst", "jsonl"),
        ("a.md.gz", "text"),
        ("a.parquet", "parquet"),
        ("a.gz", None),
        ("a.bin", None),
    ],
)
def test_the_end_of_a_name_says_the_kind(tmp_path, name, kind):
    assert sources.kind_of(tmp_path / name) == kind


def test_links_in_a_folder_are_refused_and_a_link_that_is_named_is_meant(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    assert len(sources.find(str(tmp_path / "link")).files) == 1
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "in" / "b.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(ValueError, match=r"b\.txt is a link"):
        sources.find(str(tmp_path / "in"))


@pytest.mark.parametrize("name", ["../secret", "sub/a.arrow", "/etc/passwd"])
def test_names_in_a_saved_folder_lead_nowhere_else(tmp_path, name):
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(ValueError, match="which is no file of its folder"):
        sources.find(str(tmp_path))


def test_splits_of_a_saved_folder_are_named(tmp_path):
    (tmp_path / "dataset_dict.json").write_text("{}")
    for split in ("test", "train"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "state.json").write_text("{}")
    with pytest.raises(ValueError, match="holds the splits test, train; name one of them"):
        sources.find(str(tmp_path))


@pytest.mark.parametrize("missing", ["", "nowhere.txt", "a\0b"])
def test_what_is_not_there_is_one_line(tmp_path, missing):
    with pytest.raises(ValueError, match=r"cannot be read|no source is named"):
        sources.find(missing and str(tmp_path / missing))


def test_an_empty_folder_and_a_fifo_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no text, JSONL or Parquet"):
        sources.find(str(tmp_path))
    os.mkfifo(tmp_path / "a.txt")
    for path in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(ValueError, match="is no plain file"):
            sources.find(str(path))


def test_parts_cover_every_byte_once_and_small_files_share_one(tmp_path):
    sizes = {"a.txt": 10, "b.txt": 20, "c.txt": 250, "d.txt": 5, "e.txt": 0}
    for name, size in sizes.items():
        (tmp_path / name).write_text("x" * size)
    files = sources.find(str(tmp_path)).files
    parts = sources.parts_of(files, 100, "text")
    assert [part.number for part in parts] == list(range(len(parts)))
    assert [(span.file, span.start, span.stop) for part in parts for span in part.spans] == [
        *((0, 0, 10), (1, 0, 20), (2, 0, 100), (2, 100, 200), (2, 200, 250), (3, 0, 5), (4, 0, 0))
    ]
    assert [len(part.spans) for part in parts] == [2, 1, 1, 3]
    assert sources.parts_of(files, 100, "text") == parts


def test_a_compressed_file_is_a_part_of_its_own(tmp_path):
    for name in ("a.txt", "b.txt.gz", "c.txt"):
        (tmp_path / name).write_text("text")
    parts = sources.parts_of(sources.find(str(tmp_path)).files, 100, "text")
    assert [part.streamed for part in parts] == [False, True, False]


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text")
    [file] = sources.find(str(path)).files
    file.refuse_change()
    with pytest.raises(ValueError, match="before its 9 bytes"):
        sources.read_range(file, 0, 9)
    path.write_text("texts")
    with pytest.raises(ValueError, match="has changed since"):
        file.refuse_change()
