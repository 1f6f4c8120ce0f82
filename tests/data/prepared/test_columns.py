"""Columns of Parquet and Arrow, and zstd: the same documents as of JSONL, for parts of any size."""

import json

import pytest

from attnlab import config
from attnlab.data.prepared import columns, documents, sources
from attnlab.data.prepared.corpus import Prepared
from attnlab.data.prepared.making import prepare
from attnlab.data.prepared.preparation import Preparation

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

TEXTS = [f"Row {number}: " + "word " * (number % 7) for number in range(400)]


def parquet_file(folder):
    table = pyarrow.table({"id": list(range(400)), "text": TEXTS, "more": [{"text": "no"}] * 400})
    parquet.write_table(table, folder / "a.parquet", row_group_size=90)
    return folder / "a.parquet"


def arrow_stream(folder):
    """As `datasets` saves it."""
    table = pyarrow.table({"text": pyarrow.array(TEXTS, pyarrow.large_string())})
    name = "data-00000-of-00001.arrow"
    with pyarrow.ipc.new_stream(str(folder / name), table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return folder


def arrow_file(folder):
    table = pyarrow.table({"text": TEXTS})
    with pyarrow.ipc.new_file(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    return folder / "a.arrow"


def zstd(folder):
    content = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    with pyarrow.CompressedOutputStream(str(folder / "a.jsonl.zst"), "zstd") as file:
        file.write(content)
    return folder / "a.jsonl.zst"


@pytest.mark.parametrize("make", [parquet_file, arrow_stream, arrow_file, zstd])
@pytest.mark.parametrize("part", ["300B", "4KB", "1MB"])
def test_every_row_comes_once_and_in_order(tmp_path, monkeypatch, make, part):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    source = str(make(tmp_path / "in"))
    words = ["tokenizer=bytes", "validation=0", f"part={part}", "workers=1"]
    prepare(config.override(Preparation(), words), source, tmp_path / "out")
    found = list(Prepared(path=str(tmp_path / "out")).load().pieces("train"))
    assert found == [text + "\n" for text in TEXTS]
    if part == "300B":
        assert len(list((tmp_path / "out").glob("*.tokens"))) > 3


@pytest.mark.parametrize("make", [parquet_file, arrow_file])
def test_a_column_that_is_not_there_or_no_text_is_refused(tmp_path, make):
    path = make(tmp_path)
    with pytest.raises(ValueError, match=r"has no column body; it has (id, )?text.*say field="):
        columns.ranges(path, sources.kind_of(path), "body", 100)


def test_a_column_of_numbers_is_refused(tmp_path):
    path = parquet_file(tmp_path)
    with pytest.raises(ValueError, match="column id is int64, not text; columns of text: text"):
        columns.ranges(path, "parquet", "id", 100)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_file_that_is_none_is_one_line(tmp_path, name):
    (tmp_path / name).write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(ValueError, match=f"{name} cannot be read"):
        columns.ranges(tmp_path / name, sources.kind_of(tmp_path / name), "text", 100)


def test_rows_without_a_text_are_counted(tmp_path):
    parquet.write_table(pyarrow.table({"text": ["a", None, "", "b"]}), tmp_path / "a.parquet")
    found = sources.find(str(tmp_path))
    [part] = sources.parts_of(found.files, 1000, "text")
    faults = [one.fault for one in documents.documents_of(part, found.files, "text", "auto")]
    assert faults == ["", "empty", "empty", ""]


def test_a_file_whose_texts_have_no_ends_is_one_line(tmp_path):
    """What it holds is only looked at when its texts are read."""
    ends = pyarrow.array([0, 10, 5], pyarrow.int32()).buffers()[1]
    texts = pyarrow.StringArray.from_buffers(2, ends, pyarrow.py_buffer(b"too few letters"))
    table = pyarrow.table({"text": texts})
    with pyarrow.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match=r"a\.arrow cannot be read: "):
        list(columns.rows(tmp_path / "a.arrow", "arrow", "text", 0, 1))


def test_a_mistake_of_ours_is_not_the_file_s(tmp_path):
    with pytest.raises(TypeError), columns._reading(tmp_path / "a.parquet"):
        raise TypeError("ours")
