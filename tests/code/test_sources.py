"""What runs is what was read, has the fingerprint and was allowed: no bytecode, no other file."""

import importlib._bootstrap_external as bootstrap
import importlib.util
import os
import sys
from pathlib import Path

import pytest

from attnlab.code import consent
from attnlab.code.fingerprint import fingerprint, source
from attnlab.code.own import OwnCode


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where Python keeps bytecode, as it does unless the environment says otherwise."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(consent, "_allowed", set())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(code):
    consent.allow(code)
    return OwnCode.for_code(code)().load()


def write(path, text):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def plant(path, text):
    """Bytecode of another source, which Python does not compare with that beside it."""
    code = compile(text, str(path), "exec")
    there = Path(importlib.util.cache_from_source(str(path)))
    there.parent.mkdir(exist_ok=True)
    there.write_bytes(bootstrap._code_to_hash_pyc(code, b"\0" * 8, checked=False))


CODES = {
    "mine.py:WHO": ("mine.py",),
    "uses.py:WHO": ("helper_s.py",),
    "net_s.deep:WHO": ("net_s/deep.py",),
    "net_s/deep.py:WHO": ("net_s/deep.py",),
    "net_s.above:WHO": ("net_s/__init__.py",),
}


def write_all(who):
    write("mine.py", f"WHO = '{who}'\n")
    write("uses.py", "from helper_s import WHO\n")
    write("helper_s.py", f"WHO = '{who}'\n")
    write("net_s/__init__.py", f"WHO = '{who}'\n")
    write("net_s/deep.py", f"from . import above\nWHO = '{who}'\n")
    write("net_s/above.py", "from . import WHO\n")


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("imports_from", ["here", "elsewhere"])
def test_bytecode_is_neither_run_nor_written(folder, monkeypatch, code, imports_from):
    if imports_from == "here":  # as with `python -m attnlab`: Python finds the package by itself
        monkeypatch.syspath_prepend(str(folder))
    write_all("source")
    assert load(code) == "source"
    assert not list(folder.rglob("*.pyc"))
    write_all("read")  # so that it is loaded again
    for name in CODES[code]:
        plant(folder / name, "WHO = 'planted'\n")
    assert load(code) == "read"


@pytest.mark.parametrize("code", CODES)
def test_an_edit_of_equal_size_and_time_is_run(folder, code):
    for who in ("aa", "bb"):
        write_all(who)
        for path in folder.rglob("*.py"):
            os.utime(path, (1_700_000_000, 1_700_000_000))
        assert load(code) == who


def test_packages_above_a_module_count(folder):
    write_all("x")
    write("net_s/__init__.py", "from . import other\nWHO = 'x'\n")
    write("net_s/other.py", "")
    write("net_s/deep.py", "WHO = 'x'\n")
    names = {"net_s/__init__.py", "net_s/other.py", "net_s/deep.py"}
    assert set(source("net_s.deep:WHO")) == names
    for name in names:
        before = fingerprint("net_s.deep:WHO")
        write(name, Path(name).read_text() + "# changed\n")
        assert fingerprint("net_s.deep:WHO") != before


def test_a_link_has_the_siblings_of_what_it_leads_to(folder):
    for who in ("real", "work"):
        write(f"{who}/helper_s.py", f"WHO = '{who}'\n")
    (folder / "work/mine.py").symlink_to(
        folder / write("real/mine.py", "from helper_s import WHO\n")
    )
    assert source("work/mine.py:WHO")["helper_s.py"] == b"WHO = 'real'\n"
    assert load("work/mine.py:WHO") == "real"


def test_a_link_in_a_package_is_a_module_of_that(folder):
    write_all("here")
    write("store/there.py", "from .above import WHO\n")
    (folder / "net_s/linked.py").symlink_to(folder / "store/there.py")
    assert {"net_s/linked.py", "net_s/above.py"} <= set(source("net_s.linked:WHO"))
    assert load("net_s.linked:WHO") == "here"


@pytest.mark.parametrize(
    "way",
    [
        "import importlib; importlib.import_module('helper_s')",
        "import sys; sys.modules['importlib'].import_module('helper_s')",  # as a library does it
        "import only_s",
        "import built_s",
    ],
)
def test_what_was_not_read_is_refused(folder, way):
    write("helper_s.py", "raise KeyError('it is run')\n")
    write("only_s.py", "raise KeyError('it is run')\n")
    plant(folder / "only_s.py", "raise KeyError('it is run')\n")
    next(folder.rglob("only_s*.pyc")).rename(folder / "only_s.pyc")
    (folder / "only_s.py").unlink()
    write(f"built_s{importlib.machinery.EXTENSION_SUFFIXES[0]}", "no ELF")
    write("mine.py", f"\n{way}\n")
    with pytest.raises(
        ValueError, match=r"_s\S+ lies beside the code and is not in its finger"
    ) as e:
        load("mine.py:WHO")
    assert str(e.value).endswith("(mine.py, line 2)") and "\n" not in str(e.value)


def test_what_is_imported_later_is_what_was_read(folder):
    write("helper_s.py", "WHO = 'read'\n")
    write("other_s.py", "WHO = 'other'\n")
    write(
        "mine.py",
        "import importlib\ndef who():\n    import helper_s\n    return helper_s.WHO\n"
        "def other():\n    return importlib.import_module('other_s').WHO\n"
        "class Both:\n    who, other = staticmethod(who), staticmethod(other)\n",
    )
    both = load("mine.py:Both")
    write("helper_s.py", "WHO = 'edited'\n")
    assert both.who() == "read"
    with pytest.raises(ImportError, match=r"other_s\.py lies beside"):
        both.other()


@pytest.mark.parametrize("content", ["holes", "depth", "much", "kernel", "folder"])
def test_what_cannot_be_read_as_source_is_one_line(folder, content):
    path = folder / "mine.py"
    if content == "holes":
        with path.open("wb") as file:
            file.truncate(1 << 38)
    elif content == "folder":
        path.mkdir()
    elif content == "kernel":
        path.symlink_to("/proc/kmsg" if Path("/proc/kmsg").exists() else "/dev/zero")
    else:
        path.write_text("-" * 200_000 + "1" if content == "depth" else "#" * (5 << 20))
    said = {"depth": "nested too deeply", "kernel": "mine.py"}.get(
        content, "mine.py (cannot|is no)"
    )
    for name in ("mine.py:WHO", "uses.py:WHO"):
        write("uses.py", "import mine\nWHO = mine.WHO\n")
        if name == "uses.py:WHO" and content in ("folder", "kernel"):
            continue
        with pytest.raises(ValueError, match=said) as caught:
            load(name)
        assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)
        assert fingerprint(name) == "" or content == "kernel"


def test_an_exit_at_import_says_its_line_once(folder):
    write("mine.py", "import sys\nsys.exit(0)\n")
    with pytest.raises(ValueError) as caught:
        load("mine.py:WHO")
    assert str(caught.value) == "mine.py cannot be imported: SystemExit: 0 (mine.py, line 2)"


def test_an_exception_that_does_not_say_what_it_is_is_one_line(folder):
    write(
        "mine.py",
        "class Mute(Exception):\n    def __str__(self):\n        raise self\nraise Mute\n",
    )
    said = r"mine\.py cannot be imported: Mute: it does not say what happened \(mine\.py, line 4\)"
    with pytest.raises(ValueError, match=said):
        load("mine.py:WHO")
