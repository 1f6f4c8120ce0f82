"""Where code is: a file of its own, a file of a package, or a module that Python can import.

    file.py                      run by itself; it imports from its own folder (siblings.py)
    folder/package/deep/file.py  imported as package.deep.file: its relative imports work
    package.deep.file            a module of the current folder, or of the environment

A package that Python itself would find is imported under its own name. Any other one is known by
the folder it lies in as well, so that two copies of a package do not mix, and so is one of which
the sources were read before (fingerprint.py).
"""

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from attnlab import files
from attnlab.code.siblings import (
    SourceLoader,
    only_these,
    plain_names,
    sibling_package,
    use_siblings,
)
from attnlab.printable import raised

LARGEST = 4 << 20  # bytes of a source file; the largest of PyTorch has a third of that


class InputError(ValueError):
    """What a person gave cannot be used; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Place:
    text: str  # as it was given
    path: Path | None = None  # the file; None: a module of the environment
    root: Path | None = None  # the folder that holds the package
    module: str = ""  # dotted, from the root or in the environment; empty: a file of its own

    def loaded(self) -> ModuleType | None:
        """The module, if it was loaded before."""
        return sys.modules.get(self._key())

    @property
    def file(self) -> Path:
        """What is run: a link to a file is followed, one in a package is a module of that."""
        assert self.path is not None
        if self.root is None:
            return self.path.resolve()
        below = self.root.joinpath(*self.module.split("."))
        package = below / "__init__.py"  # which Python prefers
        return package if package.is_file() else below.with_suffix(".py")

    @property
    def folder(self) -> Path:
        """Where imports are looked for."""
        return self.root or self.file.parent

    @property
    def installed(self) -> bool:
        """Whether its files are those of the environment, and not a person's own."""
        return self.path is None or not {"site-packages", "dist-packages"}.isdisjoint(
            self.folder.parts
        )

    def load(self, sources: Mapping[Path, bytes] | None = None) -> ModuleType:
        """A file of its own is run again each time; a module of a package once in a process.

        Of a person's own folder nothing but these sources is run, if they are given.
        """
        if sources is None or self.installed:
            return self._load()
        with only_these(self.folder, sources):
            return self._load(sources)

    def _load(self, sources: Mapping[Path, bytes] | None = None) -> ModuleType:
        key = self._key(apart=sources is not None)
        if not self.module:
            return _run_file(self, key, sources)
        import torch  # whoever only names a place need not wait for it

        with torch.random.fork_rng(devices=[]), _importing(self.text):
            return importlib.import_module(key)

    def names(self) -> list[str] | None:
        """What the file defines, read without running it; None: that cannot be told from it."""
        if self.path is None:
            return None
        try:
            tree = parse(read_source(self.file), self.path)
        except SyntaxError:
            return None
        found = list[str]()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.append(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found += [one.asname or one.name.partition(".")[0] for one in node.names]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                found += [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
            else:  # a branch, say
                inner = [one for one in ast.walk(node) if hasattr(one, "name")]
                found += [str(one.name) for one in inner]
                if not isinstance(node, ast.Expr):
                    found += [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
        return None if "*" in found else found

    def _key(self, apart: bool = False) -> str:
        """What Python calls the module; `apart` from any that was not read before."""
        if self.root is not None:
            found = not apart and _is_importable(self.root, self.module)
            return self.module if found else f"{sibling_package(self.root, apart)}.{self.module}"
        if self.module:
            return self.module
        assert self.path is not None
        digest = hashlib.sha256(f"{self.file}{' apart' * apart}".encode()).hexdigest()
        return f"attnlab_audited_{self.path.stem}_{digest[:16]}"  # two folders may have one name


def place_of(text: str) -> Place:
    """The place that the first part of `file.py:Name` or `package.module:Name` names."""
    parts = text.split(".")
    path = Path(text)
    if text.endswith(".py") or path.name != text or not all(map(str.isidentifier, parts)):
        return _file_place(text, path)
    if parts[0] not in sys.modules:  # as Python has it: what is loaded is not looked for
        below = Path(*parts)
        for file in (below.with_suffix(".py"), below / "__init__.py"):
            if _is_file(file):
                root = Path.cwd()
                place = Place(text=text, path=file, root=root, module=text)
                return place if len(parts) > 1 else _file_place(text, file)
    spec = None
    with suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(parts[0])
    if spec is not None:
        return Place(text=text, module=text)
    if _is_file(path):
        return _file_place(text, path)
    raise InputError(
        f"{text} is no file, and no module that Python finds from here; give the path of a file, "
        f"such as {'/'.join(parts)}.py, or install the package (pip install {parts[0]})"
    )


def read_source(path: Path) -> bytes:
    try:
        return files.read_named(path, LARGEST)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def parse(content: bytes, path: Path) -> ast.Module:
    try:
        return ast.parse(content)
    except (MemoryError, RecursionError):
        raise InputError(f"{path} is nested too deeply to be read as Python") from None
    except ValueError as error:  # a byte 0
        raise SyntaxError(str(error)) from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # a folder that may not be read, a name that is too long
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def _file_place(text: str, path: Path) -> Place:
    if not _is_file(path):
        raise InputError(f"{path} is no file; give the path of a Python file")
    full = path.resolve()
    folders = 0
    while (full.parents[folders] / "__init__.py").is_file() and folders + 1 < len(full.parents):
        folders += 1
    top = full.parents[folders - 1].name if folders else ""
    level = _relative_level(full, top, full.stat().st_mtime_ns)
    if not level:
        return Place(text=text, path=path)
    folders = max(folders, level if level < len(full.parents) else 0)
    root = full.parents[folders]
    parts = list(full.relative_to(root).with_suffix("").parts)
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Place(text=text, path=path, root=root, module=module)


@lru_cache(maxsize=64)  # code is made often, to find the smallest example
def _relative_level(path: Path, package: str, changed: int) -> int:
    """How many folders up a file imports from; 0 if it does not need its package at all."""
    with suppress(SyntaxError):  # said when it is imported
        found = [0]
        for node in ast.walk(parse(read_source(path), path)):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                found.append(node.level)
                names = [node.module or ""] if not node.level else []
            elif isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            own = package and any(name.partition(".")[0] == package for name in names)
            if own or (isinstance(node, ast.Name) and node.id == "__package__"):
                found.append(1)
        return max(found)
    return 0


def _is_importable(root: Path, module: str) -> bool:
    """Whether Python finds this very copy of a package by its name."""
    top = module.partition(".")[0]
    spec = None
    with suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(top)
    if spec is None:
        return False
    here = [str(root / top), str(root / f"{top}.py")]
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return any(str(Path(one).resolve()) in here for one in places if one)


def _run_file(place: Place, name: str, sources: Mapping[Path, bytes] | None) -> ModuleType:
    path, folder = place.file, place.folder
    if not str(place.path).endswith(".py"):
        raise InputError(f"{place.text} is no Python file; its name must end in .py")
    loader = SourceLoader(name, str(path), sources)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look there
    use_siblings(module, folder, apart=sources is not None)
    sys.path.insert(0, str(folder))  # for what is imported by other means than a statement
    try:
        with _importing(place.text):
            loader.exec_module(module)
    finally:
        with suppress(ValueError):  # the code may have changed it too
            sys.path.remove(str(folder))
    return module


@contextmanager
def _importing(text: str) -> Iterator[None]:
    """A mistake of syntax is told by its line."""
    try:
        with theirs(f"{text} cannot be imported"):
            yield
    except InputError as error:
        slip = error.__cause__
        if not isinstance(slip, SyntaxError):
            raise
        file = Path(slip.filename).name if slip.filename else ""
        inside = f", {file}" if file and file != Path(text).name else ""
        where = f"{inside}, line {slip.lineno}" if slip.lineno else ""
        raise InputError(f"{text}{where}: {slip.msg}") from None


@contextmanager
def theirs(what: str) -> Iterator[None]:
    """Around a person's code and nothing else: whatever it raises is one line that says so."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):  # to be reported as what they are
        raise
    except BaseException as error:  # code may raise what is no Exception
        reason = plain_names(raised(error))
        raise InputError(f"{what}: {reason}") from error
