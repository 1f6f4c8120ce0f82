"""Files of packages and importable modules are found, and two copies of one package do not mix."""

import pickle
import subprocess
import sys

import pytest

from attnlab.audit.contract import Contract
from attnlab.audit.sandbox import Limits, Request, audit_here, audit_in_child
from attnlab.audit.subject.load import expression, from_file
from attnlab.code.places import place_of

CODE = """
from torch import nn
from .rope import WHO
from ..common import Base, WHO as OTHER
from net_y.deep import rope

class Leaky(Base):
    def __init__(self, width, heads=1):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.found = [WHO, OTHER, rope.WHO]
    def forward(self, x):
        from . import rope
        import net_y.common
        self.found += [rope.WHO, net_y.common.WHO]
        return self.inner(x) + x.flip(1)

class Model(nn.Module):
    class Inner(nn.Linear):
        pass
    def __init__(self, width=7):
        super().__init__()
        self.width = width
        self.layers = nn.ModuleList([nn.Linear(width, 3), Leaky(width)])
    @staticmethod
    def attend(q, k, v):
        return v
    @classmethod
    def small(cls, width=3):
        return cls(width)
    def mine(self, q, k, v):
        return v * self.width
"""


def write_package(folder, who):
    deep = folder / "net_y" / "deep"
    deep.mkdir(parents=True)
    (folder / "net_y" / "__init__.py").write_text("")
    common = f"from torch import nn\nWHO = '{who}'\nclass Base(nn.Module): pass\n"
    (folder / "net_y" / "common.py").write_text(common)
    (deep / "__init__.py").write_text("from .code import Leaky\n")
    (deep / "rope.py").write_text(f"WHO = '{who}'\n")
    (deep / "code.py").write_text(CODE)
    return deep / "code.py"


@pytest.fixture(autouse=True)
def fresh_modules():
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "net_y" in name or "attnlab_beside" in name:
            del sys.modules[name]


def test_two_copies_of_a_package_do_not_mix(tmp_path, monkeypatch):
    files = {who: write_package(tmp_path / who, who) for who in "abc"}
    monkeypatch.syspath_prepend(str(tmp_path / "c"))  # this one Python finds by itself
    codes = {who: from_file(f"{files[who]}:Leaky", {"width": 3}) for who in "abcab"}
    for who, code in codes.items():
        code(code.inner.weight[None])
        assert code.found == [who] * 5
        assert type(code).__module__.endswith("net_y.deep.code")
        assert pickle.loads(pickle.dumps(code)).found == code.found
    assert type(codes["c"]).__module__ == "net_y.deep.code"
    assert len({type(code) for code in codes.values()}) == 3


def test_folders_without_an_init_file_are_packages_if_relative_imports_say_so(tmp_path):
    path = write_package(tmp_path, "a")
    (tmp_path / "net_y" / "__init__.py").unlink()
    (path.parent / "__init__.py").unlink()
    assert place_of(str(path)).module == "net_y.deep.code"
    assert from_file(f"{path}:Leaky", {"width": 3}).found == ["a"] * 3


def test_a_file_that_needs_no_package_is_run_by_itself(tmp_path):
    (tmp_path / "__init__.py").write_text("raise RuntimeError('not this')\n")
    (tmp_path / "helper_y.py").write_text("SIZE = 5\n")
    path = tmp_path / "code.py"
    path.write_text("import helper_y\ndef attend(q, k, v):\n    return helper_y.SIZE * v\n")
    assert place_of(str(path)).module == ""
    assert from_file(f"{path}:attend", {})(0, 0, 2) == 10


def test_modules_of_the_current_folder_and_of_the_environment_are_named_with_dots(
    tmp_path, monkeypatch
):
    write_package(tmp_path / "a", "a")
    write_package(tmp_path / "b", "b")
    (tmp_path / "a" / "plain_y.py").write_text("from helper_y import attend\n")
    (tmp_path / "a" / "helper_y.py").write_text("def attend(q, k, v):\n    return v\n")
    monkeypatch.chdir(tmp_path / "a")
    assert from_file("net_y.deep.code:Leaky", {"width": 3}).found == ["a"] * 3
    assert from_file("net_y.deep:Leaky", {"width": 3}).found == ["a"] * 3
    assert from_file("plain_y:attend", {})(0, 0, 3) == 3
    monkeypatch.chdir(tmp_path / "b")
    assert from_file("net_y.deep.code:Leaky", {"width": 3}).found == ["b"] * 3
    assert from_file("torch.nn:Linear", {"in_features": 3, "out_features": 5}).out_features == 5
    with pytest.raises(ValueError, match=r"nowhere_y is no file, and no module that Python finds"):
        from_file("nowhere_y:A", {})
    with pytest.raises(ValueError, match=r"torch\.absent cannot be imported: ModuleNotFoundError"):
        from_file("torch.absent:A", {})
    with pytest.raises(ValueError, match=r"torch\.nn has no 'Liner'"):
        from_file("torch.nn:Liner", {})


def test_names_lead_into_classes_and_into_what_they_make(tmp_path):
    path = write_package(tmp_path, "a")
    wide = {"width": 5}
    assert type(from_file(f"{path}:Model.layers.1", wide)).__name__ == "Leaky"
    assert from_file(f"{path}:Model.layers.1.inner", wide).in_features == 5
    assert from_file(f"{path}:Model.Inner", {"in_features": 2, "out_features": 3}).in_features == 2
    assert from_file(f"{path}:Model.attend", {})(1, 2, 3) == 3
    assert from_file(f"{path}:Model.small", wide).width == 5
    assert from_file(f"{path}:Model.mine", wide)(1, 2, 3) == 15
    said = "module.Model(width=5).layers[1].inner"
    assert expression(f"{path}:Model.layers.1.inner", wide) == said
    assert expression(f"{path}:Model.small", wide) == "module.Model.small(width=5)"
    with pytest.raises(ValueError, match="has no 'layer'; did you mean 'layers'"):
        from_file(f"{path}:Model.layer", wide)
    with pytest.raises(ValueError, match="has no 'Modl'; did you mean 'Model'"):
        from_file(f"{path}:Modl.layers", wide)


@pytest.mark.parametrize("name", ["Leaky", "Model.layers.1"])
def test_a_script_imports_the_package(tmp_path, name):
    path = write_package(tmp_path, "a")
    request = Request(target=f"{path}:{name}", options=("width=3",), contract=Contract(causal=True))
    [one] = [one for one in audit_here(request).examples if one["name"] == "causality"]
    script = tmp_path / one["file"]
    script.write_text(one["script"])
    for words in ([script], [script, path]):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd="/")
        assert done.returncode == 1 and done.stdout.startswith("wrong: output 0 moves"), done.stderr
    (path.parents[1] / "common.py").unlink()
    assert subprocess.run([sys.executable, script], capture_output=True).returncode == 2


def test_a_child_audits_a_module_of_the_current_folder_and_its_script_finds_it(
    tmp_path, monkeypatch
):
    write_package(tmp_path, "a")
    monkeypatch.chdir(tmp_path)
    request = Request(
        target="net_y.deep.code:Leaky", options=("width=3",), contract=Contract(causal=True)
    )
    answer = audit_in_child(request, Limits(seconds=250))
    assert answer.verdict == "fail", answer.detail
    [one] = [one for one in answer.examples if one["name"] == "causality"]
    (tmp_path / "script.py").write_text(one["script"])
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True)
    assert done.returncode == 1 and "wrong: " in done.stdout, done.stderr


def test_syntax_is_told_by_file_and_line(tmp_path):
    path = write_package(tmp_path, "a")
    (path.parent / "rope.py").write_text("WHO = 1\ndef f(:\n")
    with pytest.raises(ValueError, match=r"code\.py, rope\.py, line 2: invalid syntax"):
        from_file(f"{path}:Leaky", {"width": 3})
