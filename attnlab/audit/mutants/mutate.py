"""Sources, and what they become when one place is rewritten.

An `Original` is correct code that is known by its source: some modules, what in them may be
rewritten, an expression that makes the code, and the contract that it keeps. A `Mutant` is an
original of which an operator has rewritten one place.
"""

import ast
import importlib.util
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from attnlab import counter_rng
from attnlab.audit.contract import Contract
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.base import Subject
from attnlab.config import from_dict

ROOT = Path(__file__).parents[3]  # above the package: the examples are there


@dataclass(frozen=True)
class Operator:
    """`rewrite` gives for a node of a syntax tree the nodes that may stand in its place."""

    name: str
    about: str  # the mistake, in one line
    rewrite: Callable[[ast.AST], Iterator[ast.AST]]


@dataclass(frozen=True, kw_only=True)
class Original:
    """`modules` are executed anew, in this order, so that a rewritten one is used by the others.

    A name that ends in .py is a file beside the package.
    """

    name: str
    modules: tuple[str, ...]
    scope: tuple[str, ...]  # functions, classes and `Class.method`s that are rewritten
    make: str  # an expression, in the names of the last module
    declared: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    calls: tuple[str, ...] = ()  # besides the usual ones: of `code`, `draw` and `torch`

    @property
    def contract(self) -> Contract:
        return from_dict(Contract, dict(self.declared))

    def subject(self, sources: Mapping[str, str]) -> Subject:
        """Of these sources, with the same weights every time."""
        return subject_for(self.code(sources), self.options, self.name)

    def code(self, sources: Mapping[str, str]) -> Callable[..., Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(counter_rng.number(0, self.name))
            before = {name: sys.modules.get(name) for name in self.modules}
            try:
                for name in self.modules:
                    module = _empty_module(name)
                    sys.modules[name] = module
                    exec(compile(sources[name], f"<{self.name}>", "exec"), vars(module))
                return eval(self.make, vars(module))
            finally:
                for name, known in before.items():
                    if known is None:
                        del sys.modules[name]
                    else:
                        sys.modules[name] = known

    @property
    def sources(self) -> dict[str, str]:
        return {name: _source(name) for name in self.modules}

    @property
    def correct(self) -> "Mutant":
        """Itself, of its sources as they are."""
        return Mutant(self, "", self.modules[-1], "", "", "", "")


def _empty_module(name: str) -> ModuleType:
    if name.endswith(".py"):
        return ModuleType(name)
    spec = importlib.util.find_spec(name)
    assert spec is not None
    return importlib.util.module_from_spec(spec)


@cache
def _tree(name: str) -> ast.Module:
    if name.endswith(".py"):
        return _without_docstrings(ast.parse((ROOT / name).read_text()))
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return _without_docstrings(ast.parse(Path(spec.origin).read_text()))


@cache
def _source(name: str) -> str:
    return ast.unparse(_tree(name))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return ast.fix_missing_locations(tree)


@dataclass(frozen=True)
class Mutant:
    original: Original
    operator: str
    module: str
    before: str  # the line that is rewritten
    after: str
    scope: str = field(repr=False)  # the function or class around it, as it was
    changed: str = field(repr=False)  # and as it is

    @cached_property
    def key(self) -> str:
        """In which function it is, and what it reads there: to be listed by."""
        before, after = self.scope.splitlines(), self.changed.splitlines()
        line = next(n for n, one in enumerate(after) if one != before[n])
        heads = [one.split() for one in before[: line + 1] if one.lstrip().startswith("def ")]
        name = heads[-1][1].partition("(")[0]
        text = f"{self.before} → pass" if self.after == "pass" else self.after
        return f"{self.original.name}, {name}: {text}"

    def __str__(self) -> str:
        return f"{self.original.name}: {self.before}  →  {self.after or 'nothing'}"

    @cached_property
    def sources(self) -> dict[str, str]:
        sources = self.original.sources
        if self.scope:
            whole = sources[self.module]
            assert whole.count(self.scope) == 1, f"the place of {self} is not known"
            sources[self.module] = whole.replace(self.scope, self.changed)
        return sources

    def subject(self) -> Subject:
        return self.original.subject(self.sources)


@dataclass(frozen=True)
class _Place:
    parent: ast.AST
    field: str
    index: int | None  # in a list of nodes
    node: ast.AST

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def mutants(original: Original, operators: tuple[Operator, ...]) -> list[Mutant]:
    """Every place that an operator rewrites; the first operator that makes a text has it."""
    found: dict[tuple[str, str], Mutant] = {}
    scopes = [
        (module, scope, inside, _text(scope, inside), list(_places(scope)))
        for module in original.modules
        for scope, inside in _scopes(_tree(module), original)
    ]
    for operator in operators:
        for module, scope, inside, usual, places in scopes:
            for place in places:
                for node in operator.rewrite(place.node):
                    place.put(node)
                    text = _text(scope, inside)
                    place.put(place.node)
                    if text != usual and (module, text) not in found:
                        lines = difference(usual, text)
                        found[module, text] = Mutant(
                            original, operator.name, module, *lines, usual, text
                        )
    return list(found.values())


def _text(scope: ast.AST, inside: bool) -> str:
    text = ast.unparse(scope)
    return textwrap.indent(text, "    ") if inside else text


def difference(before: str, after: str) -> tuple[str, str]:
    """The lines in which two texts differ, without what they share around them."""
    old, new = before.splitlines(), after.splitlines()
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return " ⏎ ".join(map(str.strip, old)), " ⏎ ".join(map(str.strip, new))


def _scopes(tree: ast.Module, original: Original) -> Iterator[tuple[ast.AST, bool]]:
    """Functions and classes that are rewritten; whether they are inside a class."""
    names = original.scope
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        if node.name in names:
            yield node, False
        for inner in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(inner, ast.FunctionDef) and f"{node.name}.{inner.name}" in names:
                yield inner, True


# what computes nothing: annotations, defaults of settings, decorators
SILENT = ("annotation", "returns", "decorator_list", "args", "bases", "keywords")


def _places(node: ast.AST) -> Iterator[_Place]:
    """Every node below that computes something, from top to bottom."""
    silent = SILENT if isinstance(node, ast.FunctionDef | ast.ClassDef) else SILENT[:1]
    for name, value in ast.iter_fields(node):
        if name in silent or isinstance(node, ast.Raise | ast.Assert):
            continue
        for index, one in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(one, ast.AST) or isinstance(one, ast.expr_context):
                continue
            yield _Place(node, name, index, one)
            if not (isinstance(one, ast.FunctionDef) and one.name == "__init__"):
                yield from _places(one)
