"""Private interfaces of PyTorch are named in one file."""

import ast
import re
from pathlib import Path

import pytest
import torch

from attnlab import compat

PACKAGE = Path(compat.__file__).parent
FILES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    # scripts that the audit prints must run without this package
    if path != Path(compat.__file__) and "audit" not in path.relative_to(PACKAGE).parts[:-1]
]


def private_names(tree):
    """`torch._x`, `torch.a._x` and what is imported from such a module."""
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.Attribute) and re.fullmatch(r"[\w.]+", ast.unparse(node)):
            name = ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            name = ".".join([node.module, *(alias.name for alias in node.names)])
        elif isinstance(node, ast.Import):
            name = " ".join(alias.name for alias in node.names)
        if name.startswith("torch") and "._" in name and "__" not in name:
            yield name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nobody_else_uses_what_is_private_to_torch(path):
    assert not list(private_names(ast.parse(path.read_text())))


@pytest.mark.parametrize(
    "line",
    [
        "torch._foreach_mul_(grads, factor)",
        "torch._dynamo.config.patch(x=1)",
        "from torch.utils._pytree import tree_leaves",
        "from torch.nn import _reduction",
        "import torch._inductor",
    ],
)
def test_control_private_names_are_found(line):
    assert list(private_names(ast.parse(line)))


def test_a_limit_of_recompilations_holds_within_and_no_longer():
    def limits():
        config = torch._dynamo.config
        return config.recompile_limit, config.accumulated_recompile_limit

    before = limits()
    with compat.recompile_limit(100):
        assert limits() == (100, 400)
    assert limits() == before


def test_a_missing_compiler_is_none(monkeypatch):
    from torch._inductor import cpp_builder

    def missing():
        raise RuntimeError("no compiler")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    assert compat.cpp_compiler() is None
