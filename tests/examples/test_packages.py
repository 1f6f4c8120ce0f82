"""examples/packages: the list of packages, the scripts that confirm findings, and their page.

None of the packages is needed: a script must say in one line that its own is missing.
"""

import ast
import runpy
import shlex
import sys
import types
from pathlib import Path

import pytest

from attnlab import config
from attnlab.audit.contract import Contract
from attnlab.audit.subject.load import options_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "packages"
PAGE = ROOT / "docs" / "packages.md"
SCRIPTS = sorted((FOLDER / "confirm").glob("*.py"))
LINES = [
    words
    for text in (FOLDER / "packages.txt").read_text().splitlines()
    if (words := shlex.split(text, comments=True))
]


def imports(script: Path) -> set[str]:
    """The packages that a script needs besides torch."""
    found = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
    return found - set(sys.stdlib_module_names) - {"torch"}


def factories() -> set[str]:
    tree = ast.parse((FOLDER / "targets.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_list_names_each_line_once():
    assert len(LINES) == len({tuple(words) for words in LINES})


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_line_is_target_options_and_declarations_that_are_known(words):
    target, *rest = words
    place, colon, name = target.rpartition(":")
    assert colon and name.isidentifier()
    if place.endswith(".py"):
        assert place == "examples/packages/targets.py"
        assert name in factories()
    else:
        assert all(part.isidentifier() for part in place.split("."))
    at = rest.index("--declare") if "--declare" in rest else len(rest)
    options_of(rest[:at])
    assert set(rest[at::2]) <= {"--declare"}
    assert config.override(Contract(), rest[at + 1 :: 2]).declared() or at == len(rest)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_is_named_in_the_page(script):
    compile(script.read_text(), script.name, "exec")
    assert script.stem in PAGE.read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_says_in_one_line_that_its_package_is_missing(script, monkeypatch, capsys):
    packages = imports(script)
    assert len(packages) == 1
    assert script.stem.startswith(tuple(packages))
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)  # which makes its import fail
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert "pip install" in line
