"""JSON that is written for people, read with distrust, and sealed with a hash."""

import pytest

from attnlab import json_files


def test_json_comes_back_and_keeps_its_order_and_letters(tmp_path):
    value = {"b": [1, 2.5, None, True], "a": "π"}
    path = tmp_path / "a.json"
    path.write_bytes(json_files.as_json(value))
    assert json_files.read_json(path) == value and list(json_files.read_json(path)) == ["b", "a"]
    assert "π" in path.read_text(encoding="utf-8")


def test_json_without_a_meaning_is_not_written():
    with pytest.raises(ValueError, match="JSON"):
        json_files.as_json({"loss": float("nan")})


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_not_json_is_named_by_its_file(tmp_path, content):
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"wrong\.json is not JSON"):
        json_files.read_json(path)


def test_a_sealed_object_has_one_spelling(tmp_path):
    path = tmp_path / "x.json"
    good = json_files.sealed_json({"a": [1, "é"], "b": None})
    path.write_bytes(good)
    assert json_files.read_sealed(path) == {"a": [1, "é"], "b": None}
    for place in range(len(good)):
        broken = bytearray(good)
        broken[place] ^= 1 << place % 8
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"x\.json is"):
            json_files.read_sealed(path)
    half_a_pair = rb'{"a": "\ud800", "sha256": ""}'
    for other in (b"{}", b"[]", b'{"sha256": 3}', half_a_pair, good + b" "):
        path.write_bytes(other)
        with pytest.raises(ValueError, match="is damaged"):
            json_files.read_sealed(path)
    path.write_bytes(b'{"a": NaN, "sha256": ""}')
    with pytest.raises(ValueError, match=r"x\.json is not JSON: NaN is no finite number"):
        json_files.read_sealed(path)


def test_a_sealed_line_is_one_line_and_comes_back(tmp_path):
    value = {"a": ["x\ny", 2.5], "b": {"é": None}}
    line = json_files.sealed_json(value, indent=None)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert json_files.unseal(line, tmp_path, indent=None) == value
    with pytest.raises(ValueError, match="its hash does not match"):
        json_files.unseal(line.rstrip(), tmp_path, indent=None)
