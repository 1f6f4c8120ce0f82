"""What a file imports from its own folder is its own, whatever another folder has by that name."""

import dataclasses
import inspect
import pickle
import runpy
import sys
from pathlib import Path

import pytest
import torch

from attnlab.audit.contract import Contract
from attnlab.audit.sandbox import Request, audit_here
from attnlab.audit.subject.load import from_file
from attnlab.code.siblings import plain_names

FILE = """
import json
import torch
import helper_x
import package.inner
import package.inner as inside
from helper_x import *
from helper_x import Part, Settings
from package import deep

class Code(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.width, self.part, self.settings = width, Part(), Settings()
        self.found = [helper_x.WHO, package.inner.WHO, inside.WHO, deep.WHO, STAR]
    def forward(self, x):
        import helper_x
        from package.inner import who
        return [helper_x.WHO, who()]
"""
HELPER = """
from dataclasses import dataclass
import torch
WHO = STAR = "{who}"

class Part(torch.nn.Module):
    def who(self):
        return "{who}"

@dataclass
class Settings:
    who: "str" = WHO
"""


@pytest.fixture
def folders(tmp_path):
    """Two folders that hold files of the same names."""
    before = set(sys.modules)
    for who in "ab":
        package = tmp_path / who / "package"
        (package / "deep").mkdir(parents=True)
        (tmp_path / who / "h.py").write_text(FILE)
        (tmp_path / who / "helper_x.py").write_text(HELPER.format(who=who))
        (package / "__init__.py").write_text("from . import inner\n")
        # relative, absolute, and from beside the package
        (package / "inner.py").write_text(
            "from .deep import WHO\ndef who():\n    import package.deep\n    import helper_x\n"
            "    assert helper_x.WHO == WHO\n    return package.deep.WHO\n"
        )
        (package / "deep" / "__init__.py").write_text("from helper_x import WHO\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_files_of_one_name_have_their_own_siblings(folders):
    path, names = list(sys.path), ("helper_x", "package")
    codes = {who: from_file(f"{folders}/{who}/h.py:Code", {}) for who in "aba"}
    for who, code in codes.items():
        assert code.found == [who] * 5
        assert code(None) == [who] * 2  # imported while it runs
    assert sys.path == path and not any(name in sys.modules for name in names)


def test_classes_of_siblings_can_be_pickled_and_read(folders):
    codes = {who: from_file(f"{folders}/{who}/h.py:Code", {}) for who in "ab"}
    for who, code in codes.items():
        assert pickle.loads(pickle.dumps(code.settings)) == code.settings
        assert pickle.loads(pickle.dumps(code.part)).who() == who
        assert pickle.loads(pickle.dumps(code)).found == code.found
        assert f'return "{who}"' in inspect.getsource(type(code.part))
        assert dataclasses.replace(code.settings).who == who
        assert Path(inspect.getfile(type(code.part))).parent.name == who


def test_what_is_loaded_already_and_what_is_not_beside_come_from_elsewhere(tmp_path):
    for name in ("torch", "json"):  # as Python has it: what is loaded is not looked for
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "numpy").mkdir()  # a folder, and no package
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.py").write_text("NUMBER = 1\n")
    (tmp_path / "code.py").write_text(
        "import json, numpy, torch\nimport notes.one\nimport os.path\n"
        "def attend(q, k, v):\n    return v\n"
        "attend.found = [json.dumps, numpy.array, torch.cat, notes.one.NUMBER, os.path.join]\n"
    )
    import json
    import os

    import numpy

    found = from_file(f"{tmp_path}/code.py:attend", {}).found
    assert "notes" not in sys.modules
    assert found == [json.dumps, numpy.array, torch.cat, 1, os.path.join]


def test_a_sibling_that_is_not_there_is_called_as_the_file_calls_it(folders):
    (folders / "a" / "h.py").write_text("import package.absent\n")
    with pytest.raises(ValueError, match=r"No module named 'package\.absent'"):
        from_file(f"{folders}/a/h.py:Code", {})
    (folders / "a" / "h.py").write_text("import nowhere_to_be_found\n")
    with pytest.raises(ValueError, match="No module named 'nowhere_to_be_found'"):
        from_file(f"{folders}/a/h.py:Code", {})


CACHED = """
import torch
from helper_y import Cache, Settings

class Code(torch.nn.Module):
    def __init__(self, settings: Settings):
        super().__init__()
        self.layer = torch.nn.Linear(settings.width, settings.width)
    def forward(self, x, cache: Cache | None = None):
        if cache is None:
            return self.layer(x).cumsum(1)
        kept, cache.kept = cache.kept, x
        return self.layer(x).cumsum(1) + (0 if kept is None else kept[:, -1:])
"""
CACHES = """
from dataclasses import dataclass

class Cache:
    kept = None

@dataclass
class Settings:
    width: int = 8
    who: str = "{who}"
"""


def test_a_script_finds_siblings_by_their_own_names(tmp_path, monkeypatch, capsys):
    for who in "ab":
        (tmp_path / who).mkdir()
        (tmp_path / who / "cached.py").write_text(CACHED)
        (tmp_path / who / "helper_y.py").write_text(CACHES.format(who=who))
    for who in "ab":  # in one process, as two audits of one session
        target = f"{tmp_path}/{who}/cached.py:Code"
        answer = audit_here(Request(target=target, contract=Contract(causal=True, cache=True)))
        [one] = [one for one in answer.examples if one["name"] == "cache"]
        assert "sys.modules['helper_y'].Cache()" in one["script"], one["reason"]
        script = tmp_path / who / one["file"]
        script.write_text(one["script"])
        monkeypatch.setattr(sys, "argv", [str(script)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        monkeypatch.delitem(sys.modules, "helper_y", raising=False)
        with torch.random.fork_rng(), pytest.raises(SystemExit) as stop:
            runpy.run_path(str(script), run_name="__main__")
        assert stop.value.code == 1 and "wrong: " in capsys.readouterr().out
        assert sys.modules["helper_y"].Settings().who == who
        monkeypatch.undo()
        sys.modules.pop("helper_y")


def test_only_the_folder_is_taken_out_of_a_name():
    assert plain_names("sys.modules['attnlab_beside_0123456789abcdef.a.b'].C") == (
        "sys.modules['a.b'].C"
    )
    assert plain_names("attnlab_beside_x.a") == "attnlab_beside_x.a"


def test_import_module_finds_siblings_too(tmp_path):
    text = (
        "import importlib, importlib.util\nimport importlib.metadata as meta\n"
        "from importlib import import_module, util\n"
        "def attend(q, k, v):\n    return import_module('helper_z').WHO\n"
        "attend.found = [importlib.import_module('helper_z').WHO, meta.version,\n"
        "    importlib.import_module('json').dumps, util.find_spec, importlib.util.find_spec]\n"
    )
    import importlib.metadata
    import importlib.util
    import json

    known = [json.dumps, importlib.util.find_spec, importlib.util.find_spec]
    for who in "ab":
        (tmp_path / who).mkdir()
        (tmp_path / who / "code.py").write_text(text)
        (tmp_path / who / "helper_z.py").write_text(f"WHO = '{who}'\n")
        code = from_file(f"{tmp_path}/{who}/code.py:attend", {})
        assert code.found == [who, importlib.metadata.version, *known]
        assert code(0, 0, 0) == who  # while it runs
    assert "helper_z" not in sys.modules
