"""A browser is looked for and never installed: tests change nothing on the machine."""

import os
import sys
from pathlib import Path

import pytest
from page import chromium


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A PATH of one folder, in which `program` makes a program that notes its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("ATTNLAB_CHROMIUM", raising=False)
    return folder


def program(folder, name):
    made = folder / name
    made.write_text(f"#!{sys.executable}\nopen({str(folder / 'called')!r}, 'a').write('{name} ')\n")
    made.chmod(0o755)
    return str(made)


def test_without_a_browser_nothing_is_run_even_by_root(path, monkeypatch):
    for name in ("apt-get", "sudo", "playwright"):
        program(path, name)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert chromium.find(str(path / "none")) is None
    assert not (path / "called").exists()
    assert "make browser" in chromium.HOW and "ATTNLAB_CHROMIUM" in chromium.HOW


def test_a_named_browser_comes_before_the_path_and_that_before_playwrights_own(path, monkeypatch):
    own = path.parent / "own"
    own.touch()
    assert chromium.find(str(own)) == str(own)
    there = program(path, "chromium")
    assert chromium.find(str(own)) == there
    named = program(path, "another")
    monkeypatch.setenv("ATTNLAB_CHROMIUM", "another")
    assert chromium.find(str(own)) == named
    Path(named).unlink()
    assert chromium.find(str(own)) is None
    assert not (path / "called").exists()
