"""What a person may have meant by a target or an option that cannot be used: ends of messages.

Nothing is run for them: files are read, not imported.
"""

import ast
import inspect
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from attnlab.audit.signature import annotation_of

USUAL = "write file.py:Name, module:Name or hf:ARCH"
MOST = 5  # names that are offered


def meant_by(target: str) -> str:
    """What to write instead of a target without a name."""
    path = Path(target.rstrip(":"))
    if path.suffix == ".ipynb":
        return notebook_advice()
    if path.suffix == ".py":
        names = _names_in(path)
        return f"write {' or '.join(f'{path}:{name}' for name in names)}" if names else USUAL
    module, _, name = target.rpartition(".")
    if module and all(map(str.isidentifier, target.split("."))):
        return f"write {module}:{name}"
    return USUAL


def notebook_advice() -> str:
    return (
        "it is a notebook: call attnlab.audit.audit(module) in it, or save the code as a file.py "
        "and write file.py:Name"
    )


def _names_in(path: Path) -> list[str]:
    """Classes of a file, those with a forward first; if it has none, its functions."""
    body: list[ast.stmt] = []
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        body = ast.parse(path.read_bytes()).body
    classes = [one for one in body if isinstance(one, ast.ClassDef)]
    called = {
        one.name
        for one in classes
        if any(isinstance(it, ast.FunctionDef) and it.name == "forward" for it in one.body)
    }
    found = [one.name for one in classes if one.name in called] or [one.name for one in classes]
    found = found or [one.name for one in body if isinstance(one, ast.FunctionDef)]
    return [name for name in found if not name.startswith("_")][:MOST]


def taken_as_text(module: ModuleType | None, options: Mapping[str, Any], where: str) -> str:
    """Of an option such as `layer=Block` where the file has a Block; empty if there is none."""
    for name, value in options.items():
        found = vars(module).get(value) if module and isinstance(value, str) else None
        if isinstance(found, nn.Module) or (
            inspect.isclass(found) and issubclass(found, nn.Module)
        ):
            return (
                f" ({name}={value} is the text {value!r}, not the {value} of {where}: name a "
                "function that makes the whole)"
            )
    return ""


def is_module_parameter(parameter: inspect.Parameter, module: ModuleType | None) -> bool:
    """Whether it says that it takes a module, which no `key=value` can give."""
    said = annotation_of(parameter, module)
    return inspect.isclass(said) and issubclass(said, nn.Module)
