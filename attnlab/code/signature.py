"""What a class or function of a person's own takes, read in its source: nothing is run."""

import ast
from contextlib import suppress
from typing import NamedTuple

from attnlab.code.places import InputError, parse, place_of, read_source


class Taken(NamedTuple):
    name: str
    default: str  # as it is written; empty: it must be given


def taken(code: str) -> list[Taken]:
    """The parameters of `file.py:Name`; of a function those with a default: others are tensors.

    None where the source does not show them: installed code, a name that is imported there, a
    class that inherits its constructor.
    """
    path, _, names = code.rpartition(":")
    with suppress(InputError, SyntaxError):
        place = place_of(path)
        if place.path is None:
            return []
        found: ast.AST | None = parse(read_source(place.path), place.path)
        for name in [*names.split("."), "__init__"]:
            if isinstance(found, ast.FunctionDef):
                break
            found = _defined(found, name)
        if isinstance(found, ast.FunctionDef):
            every = _parameters(found)
            return every if found.name == "__init__" else [one for one in every if one.default]
    return []


def _defined(inside: ast.AST | None, name: str) -> ast.AST | None:
    for node in getattr(inside, "body", []):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    return None


def _parameters(function: ast.FunctionDef) -> list[Taken]:
    given = function.args
    places = [*given.posonlyargs, *given.args]
    without: list[None] = [None] * (len(places) - len(given.defaults))
    defaults = [*without, *given.defaults, *given.kw_defaults]
    return [
        Taken(one.arg, "" if default is None else ast.unparse(default))
        for one, default in zip([*places, *given.kwonlyargs], defaults, strict=True)
        if one.arg not in ("self", "cls")
    ]
