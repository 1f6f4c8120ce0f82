"""Documents: however a file is cut into parts, each of them comes once, whole and in order."""

import gzip
import json

import pytest

from attnlab.data.prepared import documents, sources
from attnlab.data.prepared.documents import EMPTY, FIELD, JSON, TYPE, UTF8

LINES = [{"text": f"Line {number} of {'x' * (number * 7 % 90)}."} for number in range(200)]


def of(path, size, cut="auto", field="text"):
    """Contents and faults of all documents, read part by part."""
    found = sources.find(str(path))
    every = []
    for part in sources.parts_of(found.files, size, field):
        if part.streamed:
            for piece in documents.pieces_of(found.files[0], size, cut):
                every += documents.split(piece.content, piece.place, found.files[0], field, cut)
        else:
            every += documents.documents_of(part, found.files, field, cut)
    return every


@pytest.fixture(params=[".jsonl", ".jsonl.gz"])
def jsonl(tmp_path, request):
    path = tmp_path / f"a{request.param}"
    content = "".join(json.dumps(line) + "\n" for line in LINES).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("size", [1, 37, 500, 4096, 10**6])
def test_every_line_comes_once_for_parts_of_any_size(jsonl, size):
    assert [one.content.decode() for one in of(jsonl, size)] == [line["text"] for line in LINES]


TEXTS = {
    "paragraphs": "".join(f"Paragraph {n}\nof two lines.\n\n" + "\n" * (n % 3) for n in range(90)),
    "windows": "One.\r\n\r\nTwo\r\nlines.\r\n \t\r\nThree.",
    "blank first": "\n\n\nOne.\n\nTwo.\n\n",
    "no blank line": "line\n" * 700,
    "no line": "é" * 3000,
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [50, 997, 10**6])
def test_text_that_is_cut_is_whole_when_put_together(tmp_path, monkeypatch, name, packed, size):
    monkeypatch.setattr(documents, "LONGEST", 600)
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    content = TEXTS[name].encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    found = of(path, size)
    assert not any(one.fault for one in found)
    assert b"".join(one.content for one in found) == content
    if len(content) > 600:
        assert len(found) > 1 and max(len(one.content) for one in found) <= 600


def test_text_is_cut_after_blank_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One\nand more.\n\nTwo.\n\n\n" + "Three.\n\n" * 200_000)
    found = of(path, 10**5)
    assert [one.content for one in found[:3]] == [
        b"One\nand more.\n\n",
        b"Two.\n\n\n",
        b"Three.\n\n",
    ]
    assert len(found) == 200_002


def test_a_small_file_is_a_document_and_lines_are_if_asked_for(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n")
    (tmp_path / "b.txt").write_text("Three.")
    assert [one.content for one in of(tmp_path, 100)] == [b"One.\n\nTwo.\n", b"Three."]
    lines = of(tmp_path, 100, cut="lines")
    assert [one.content for one in lines if not one.fault] == [b"One.", b"Two.", b"Three."]
    assert [one.fault for one in lines if one.fault] == [EMPTY]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"", EMPTY),
        (b'{"text": " "}', EMPTY),
        (b'{"text": null}', EMPTY),
        (b'{"text": "a"', JSON),
        (b'["a"]', JSON),
        (b"[" * 100_000, JSON),
        (b'{"title": "a"}', FIELD),
        (b'{"text": 3}', TYPE),
        (b'{"text": "\xff"}', UTF8),
        (b'{"text": "\\ud800"}', UTF8),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, line, fault):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n')
    one, wrong, other = of(path, 100)
    assert (one.content, other.content) == (b"a", b"b")
    assert (wrong.fault, wrong.place) == (fault, f"{path}, byte 14")


def test_text_that_is_not_utf8_is_found(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert [one.fault for one in of(tmp_path, 100)] == [UTF8]


def test_a_broken_archive_is_one_line(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n' * 999)[:-20])
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz is no whole gzip file"):
        of(path, 1000)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(documents, "ENDLESS", 2**20)
    monkeypatch.setattr(documents, "READ", 2**18)
    content = b'{"text": "' + b"a" * 2**23
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(ValueError, match="has no end of a line"):
        of(tmp_path / name, 2**20)


def test_a_sample_is_of_all_parts_and_about_as_large_as_asked(jsonl):
    found = sources.find(str(jsonl))
    parts = sources.parts_of(found.files, 1000, "text")
    texts = list(
        documents.sample_of(
            parts, found.files, size=2000, field="text", cut="auto", keep=lambda one: True
        )
    )
    everything = [line["text"] for line in LINES]
    assert set(texts) <= set(everything) and 2000 <= sum(map(len, texts)) < 4000
    if not found.files[0].packed:
        assert texts[0] == everything[0] and everything.index(texts[-1]) > 180
    none = documents.sample_of(
        parts, found.files, size=2000, field="text", cut="auto", keep=lambda one: False
    )
    assert not list(none)
