"""What an audited file imports from its own folder, kept apart from what another folder has.

    a/h.py: import helper  ->  attnlab_beside_1f….helper    b/h.py: import helper  ->  another one

Python knows a module by its name alone, so the second `helper` of a process would be the first.
Here a module beside an audited file has its folder in its name. The import statements of the file,
and of what lies beside it, ask `importer` instead of Python's own `__import__`, and so does
`importlib.import_module` there; pickling and `inspect` find the module in `sys.modules` by that
longer name. A package that lies in the folder is found in the same way, with all inside it.

No bytecode is used or written: that in `__pycache__` may be a stranger's, or of an older source.
Code that has a fingerprint is run from the very bytes that this was made of, and what lies in its
folder and has none is refused.
"""

import builtins
import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PREFIX = "attnlab_beside_"
NAMES = re.compile(rf"{PREFIX}[0-9a-f]{{16}}\.")

# by package of siblings: what may be run of its folder; any file where there is no entry
_sources: dict[str, dict[Path, bytes]] = {}
_loading: list[Path] = []  # folders of code that is being imported, and has a fingerprint


def plain_names(text: str) -> str:
    """A text with the names that a file itself has for its siblings."""
    return NAMES.sub("", text)


def use_siblings(module: ModuleType, folder: Path, apart: bool) -> None:
    """Have the import statements of a module find what lies in this folder."""
    _install(module, sibling_package(folder, apart))


@contextmanager
def only_these(folder: Path, sources: Mapping[Path, bytes]) -> Iterator[None]:
    """Of this folder these sources are run, and no others; what ran with others is forgotten."""
    package = sibling_package(folder, apart=True)
    known = _sources.setdefault(package, {})
    known.update(sources)
    loaded = {name: it for name, it in sys.modules.items() if name.startswith(f"{package}.")}
    loaders = [getattr(it, "__loader__", None) for it in loaded.values()]
    if any(
        known.get(Path(one.path)) != one.content for one in loaders if isinstance(one, SourceLoader)
    ):
        for name in loaded:
            del sys.modules[name]
    _loading.append(folder)
    try:
        yield
    finally:
        _loading.pop()


def sibling_package(folder: Path, apart: bool) -> str:
    """The name under which what lies in a folder is found; `apart` of what has a fingerprint."""
    if not any(isinstance(one, _SiblingFinder) for one in sys.meta_path):
        sys.meta_path.insert(0, _SiblingFinder())
    digest = hashlib.sha256(f"{folder}{' apart' * apart}".encode()).hexdigest()
    package = f"{PREFIX}{digest[:16]}"
    if package not in sys.modules:
        sys.modules[package] = ModuleType(package, f"What lies in {folder}.")
        sys.modules[package].__path__ = [str(folder)]
    return package


def _install(module: ModuleType, package: str) -> None:
    """Before the module is run: its functions keep the built-in names that it begins with."""
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": importer(package)}


def importer(package: str) -> Callable[..., ModuleType]:
    """Python's `__import__`, for code whose siblings are in this package."""

    def import_module(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if top == "importlib" and not level:
            found = builtins.__import__(name, globals, locals, fromlist or (), level)
            return _Importlib(package) if found is importlib else found
        if level or not _is_sibling(top, package):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        found = builtins.__import__(f"{package}.{name}", globals, locals, fromlist or (), 0)
        return found if fromlist else sys.modules[f"{package}.{top}"]

    return import_module


class _Importlib(ModuleType):
    """`importlib` as code has it that is asked for its siblings: `import_module` knows them."""

    def __init__(self, package: str) -> None:
        super().__init__("importlib")
        self._siblings = package

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        known = not name.startswith(".") and _is_sibling(name.partition(".")[0], self._siblings)
        return importlib.import_module(f"{self._siblings}.{name}" if known else name, package)

    def __getattr__(self, name: str) -> object:
        return getattr(importlib, name)


def _is_sibling(top: str, package: str) -> bool:
    """Whether Python would take it from the folder, were that first on its path."""
    if f"{package}.{top}" in sys.modules:
        return True
    if top in sys.modules or top in sys.builtin_module_names:
        return False
    folders = list(sys.modules[package].__path__)
    spec = PathFinder.find_spec(top, folders)
    if spec is None:
        return False
    # a folder without an __init__.py comes after every package of that name
    others = [one for one in sys.path if one not in folders]
    return spec.origin is not None or PathFinder.find_spec(top, others) is None


class _SiblingFinder(MetaPathFinder):
    """Finds a sibling by its longer name; its own imports ask the same importer."""

    def find_spec(
        self, fullname: str, path: Iterable[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None:
            self._refuse_beside(fullname)
        if path is None or not fullname.startswith(PREFIX):
            return None
        spec = PathFinder.find_spec(fullname, list(path))
        if spec is None or spec.origin is None:
            return spec
        sources = _sources.get(fullname.partition(".")[0])
        if sources is not None and Path(spec.origin) not in sources:
            raise _unread(Path(spec.origin))
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _SiblingLoader(fullname, spec.loader.path, sources)
        return spec

    def _refuse_beside(self, name: str) -> None:
        """By another way than `importer`, Python would run its bytecode."""
        spec = PathFinder.find_spec(name) if _loading else None
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parents[1 if spec.submodule_search_locations else 0]
            if folder in _loading:
                raise _unread(Path(spec.origin))


def _unread(file: Path) -> ImportError:
    return ImportError(
        f"{file.name} lies beside the code and is not in its fingerprint, so it is not run; have "
        "it as source, and import it by a statement: import …"
    )


class SourceLoader(SourceFileLoader):
    """Of these sources, if they are given, or of the file as it is now; never of bytecode."""

    def __init__(self, name: str, path: str, sources: Mapping[Path, bytes] | None = None) -> None:
        super().__init__(name, path)
        self._sources = sources or {}
        self.content = b""  # that was run

    def get_code(self, fullname: str) -> CodeType:
        self.content = self.get_data(self.path)
        code: CodeType = self.source_to_code(self.content, self.path)
        return code

    def get_data(self, path: str) -> bytes:
        known = self._sources.get(Path(path))
        return super().get_data(path) if known is None else known


class _SiblingLoader(SourceLoader):
    def exec_module(self, module: ModuleType) -> None:
        _install(module, self.name.partition(".")[0])
        super().exec_module(module)
