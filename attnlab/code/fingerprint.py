"""The fingerprint of a person's code: of its file, and of what that imports from its own folder.

Nothing is run: imports are read in the source. Of an installed package its own files count, and
what else is installed does not. Python runs the `__init__.py` of every package above a module
before it, so these belong to it.
"""

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from attnlab import files
from attnlab.code.places import InputError, Place, parse, place_of, read_source


@dataclass(frozen=True, kw_only=True)
class Code:
    """What was read of some code; two with one fingerprint are the same."""

    fingerprint: str = ""  # empty: it has no file, as what is built into Python
    place: Place = field(compare=False)
    files: Mapping[Path, bytes] = field(compare=False)  # the one that is named first
    root: Path | None = field(compare=False)  # the folder in which imports are looked for


def read(code: str) -> Code:
    """`file.py:Name` or `package.module:Name`, read once; an InputError if that cannot be."""
    place = place_of(code.rpartition(":")[0])
    start = _start(place)
    if start is None:
        return Code(place=place, files={}, root=None)
    found, digest = _walk(start), hashlib.sha256()
    named = _named(found, start.root)
    for name in sorted(named):
        digest.update(f"{name}\0{len(named[name])}\0".encode() + named[name])
    return Code(fingerprint=digest.hexdigest(), place=place, files=found, root=start.root)


def fingerprint(code: str) -> str:
    """Of `file.py:Name` or `package.module:Name`; empty where there is no such file."""
    with suppress(ValueError):
        return read(code).fingerprint
    return ""


def source(code: str) -> dict[str, bytes]:
    """The files that a fingerprint is of, named from the folder in which imports are looked for."""
    with suppress(ValueError):
        found = read(code)
        return _named(found.files, found.root)
    return {}


def _named(found: Mapping[Path, bytes], root: Path | None) -> dict[str, bytes]:
    return {str(one.relative_to(root)): found[one] for one in found} if root is not None else {}


def source_files(code: str) -> list[Path]:
    """Where these files are, the one that is named first."""
    with suppress(ValueError):
        return list(read(code).files)
    return []


@dataclass(frozen=True)
class _Start:
    path: Path  # the file of a module
    root: Path  # the folder in which its own imports are looked for
    package: str = ""  # installed: nothing else there counts


def _start(place: Place) -> _Start | None:
    if place.path is not None:
        return _Start(place.file, place.folder)
    names = place.module.split(".")
    spec = None
    with suppress(ValueError, ImportError):  # of the top alone: Python runs what is above a name
        spec = importlib.util.find_spec(names[0])
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin).resolve()
    root = origin.parent.parent if spec.submodule_search_locations else origin.parent
    found = origin if len(names) == 1 else next(_candidates(root, names), None)
    return None if found is None or not found.is_file() else _Start(found, root, names[0])


def _walk(start: _Start) -> dict[Path, bytes]:
    """The file and all that it imports, however deep, with their contents."""
    found: dict[Path, bytes] = {}
    above = start.path.relative_to(start.root).parents
    packages = [start.root / one / "__init__.py" for one in above if one.parts]
    todo = [*(one for one in packages if one.is_file()), start.path]
    size = 0
    while todo:
        file = todo.pop()
        if file in found:
            continue
        found[file] = read_source(file)
        size += len(found[file])
        if size > files.NAMED:
            raise InputError(f"{start.path} imports more than {files.NAMED >> 20} MiB of source")
        for names in _imports(found[file], file.relative_to(start.root).parent.parts, file):
            if start.package in ("", *names[:1]):
                for size in range(1, len(names) + 1):
                    todo += _candidates(start.root, list(names[:size]))
    return found


@functools.lru_cache(maxsize=4096)
def _imports(content: bytes, here: tuple[str, ...], file: Path) -> list[tuple[str, ...]]:
    """The dotted names that a file imports, each from the root on."""
    found: list[tuple[str, ...]] = []
    tree = None
    with suppress(SyntaxError):  # said when it is run
        tree = parse(content, file)
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
