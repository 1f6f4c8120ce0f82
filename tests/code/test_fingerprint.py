"""A fingerprint changes with the code that would be run, and with nothing else."""

import sys

import pytest

from attnlab.code.fingerprint import fingerprint


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import helper\nfrom parts import one\n\nclass Mine: ...\n")
    (tmp_path / "helper.py").write_text("SIZE = 1\n")
    (tmp_path / "other.py").write_text("SIZE = 1\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/__init__.py").write_text("")
    (tmp_path / "parts/one.py").write_text("from . import two\n")
    (tmp_path / "parts/two.py").write_text("X = 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("mine.py", True),
        ("helper.py", True),
        ("parts/__init__.py", True),
        ("parts/one.py", True),
        ("parts/two.py", True),
        ("other.py", False),
    ],
)
def test_what_is_imported_from_the_folder_counts(folder, changed, counts):
    before = fingerprint("mine.py:Mine")
    assert len(before) == 64
    path = folder / changed
    path.write_text(path.read_text() + "# changed\n")
    assert (fingerprint("mine.py:Mine") != before) is counts


def test_it_is_the_same_from_another_folder_and_by_another_name(folder, monkeypatch):
    here = fingerprint("mine.py:Mine")
    monkeypatch.chdir("/")
    assert fingerprint(f"{folder}/mine.py:Mine") == here == fingerprint(f"{folder}/mine.py:Other")


def test_nothing_is_run(folder):
    (folder / "mine.py").write_text("raise SystemExit('run')\n")
    (folder / "parts/__init__.py").write_text("raise SystemExit('run')\n")
    assert fingerprint("mine.py:Mine") and fingerprint("parts.one:X")
    assert "parts" not in sys.modules


def test_a_module_of_a_package_is_found_where_python_finds_it():
    assert len(fingerprint("json.decoder:JSONDecoder")) == 64


@pytest.mark.parametrize("code", ["gone.py:X", "no.such.module:X", "sys:exit", "x"])
def test_without_a_file_there_is_none(folder, code):
    assert fingerprint(code) == ""
