"""The fingerprint of a person's code: of its file, and of what that imports from its own folder.

Nothing is run: imports are read in the source. Of an installed package its own files count, and
what else is installed does not.
"""

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attnlab.code.places import place_of


def fingerprint(code: str) -> str:
    """Of `file.py:Name` or `package.module:Name`; empty where there is no such file."""
    digest = hashlib.sha256()
    content = source(code)
    for name in sorted(content):
        digest.update(f"{name}\0{len(content[name])}\0".encode() + content[name])
    return digest.hexdigest() if content else ""


def source(code: str) -> dict[str, bytes]:
    """The files that a fingerprint is of, named from the folder in which imports are looked for."""
    try:
        start = _start(code.rpartition(":")[0])
        return {str(one.relative_to(start.root)): text for one, text in _walk(start).items()}
    except (ValueError, ImportError, OSError):
        return {}


def source_files(code: str) -> list[Path]:
    """Where these files are, the one that is named first."""
    try:
        start = _start(code.rpartition(":")[0])
        return [start.path, *(one for one in _walk(start) if one != start.path)]
    except (ValueError, ImportError, OSError):
        return []


@dataclass(frozen=True)
class _Start:
    path: Path  # the file of a module
    root: Path  # the folder in which its own imports are looked for
    package: str = ""  # installed: nothing else there counts


def _start(text: str) -> _Start:
    place = place_of(text)
    if place.path is not None:
        path = place.path.resolve()
        return _Start(path, (place.root or path.parent).resolve())
    names = place.module.split(".")
    spec = importlib.util.find_spec(names[0])  # of the top alone: Python runs what is above a name
    if spec is None or spec.origin is None:
        raise ValueError(f"{text} has no file")
    origin = Path(spec.origin).resolve()
    root = origin.parent.parent if spec.submodule_search_locations else origin.parent
    found = origin if len(names) == 1 else next(_candidates(root, names), None)
    if found is None or not found.is_file():
        raise ValueError(f"{text} has no file")
    return _Start(found, root, names[0])


def _walk(start: _Start) -> dict[Path, bytes]:
    """The file and all that it imports, however deep, with their contents."""
    found: dict[Path, bytes] = {}
    todo = [start.path]
    while todo:
        file = todo.pop()
        if file in found:
            continue
        found[file] = file.read_bytes()
        for names in _imports(found[file], file.relative_to(start.root).parent.parts):
            if start.package in ("", *names[:1]):
                for size in range(1, len(names) + 1):
                    todo += _candidates(start.root, list(names[:size]))
    return found


@functools.lru_cache(maxsize=4096)
def _imports(content: bytes, here: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The dotted names that a file imports, each from the root on."""
    found: list[tuple[str, ...]] = []
    tree = None
    with suppress(SyntaxError, ValueError, RecursionError):  # said when it is run
        tree = ast.parse(content)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            found += [tuple(one.name.split(".")) for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            found += [base, *((*base, one.name) for one in node.names)]
    return list(dict.fromkeys(found))


def _candidates(root: Path, names: list[str]) -> Iterator[Path]:
    below = root.joinpath(*names)
    for one in (below.with_suffix(".py"), below / "__init__.py"):
        if names and one.is_file():
            yield one
