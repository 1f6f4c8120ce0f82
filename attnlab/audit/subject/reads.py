"""Which settings code reads, by its source: `config.n_head` in a class and in those it uses."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Set
from typing import Any


def read_names(code: object, called: Set[str]) -> list[str]:
    """Names that code reads of its settings, which it calls by one of these names.

    Classes and functions of the same module that it names are looked at too: a model is made of
    blocks, and a block of attentions. What code sets itself is not among them.
    """
    module = sys.modules.get(getattr(code, "__module__", "") or "")
    found: dict[str, None] = {}
    written: set[str] = set()
    waiting, seen = [code], {id(code)}
    while waiting:
        nodes = nodes_of(waiting.pop(0))
        methods = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            if isinstance(node, ast.Name):
                other = vars(module).get(node.id) if module else None
                own = inspect.isclass(other) or inspect.isfunction(other)
                if own and id(other) not in seen and other.__module__ == module.__name__:  # type: ignore[union-attr]
                    seen.add(id(other))
                    waiting.append(other)
            key = "" if id(node) in methods else _key_read(node, called)
            if key:
                loads = isinstance(getattr(node, "ctx", None), ast.Load)
                found.update({key: None} if loads else {})
                written.update(() if loads else (key,))
    return [name for name in found if name not in written]


def nodes_of(code: Any) -> list[ast.AST]:
    """Of what a class or a function is written as; none if that is not known."""
    try:
        return list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code)))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return []


def _key_read(node: ast.AST, called: Set[str]) -> str:
    """The key of `config.key` or `config["key"]`, or of `self.config.key`; empty if it is none."""
    holder = getattr(node, "value", None)
    name = getattr(holder, "id", None) or getattr(holder, "attr", None)
    if name not in called or not isinstance(node, ast.Attribute | ast.Subscript):
        return ""
    key = node.attr if isinstance(node, ast.Attribute) else getattr(node.slice, "value", None)
    return key if isinstance(key, str) and key.isidentifier() else ""
