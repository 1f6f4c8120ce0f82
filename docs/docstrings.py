"""Pages of the code for the site: what the docstrings say, a page for each folder.

    attnlab/attention/heads.py ──ast──> api/attnlab.attention.md

Files are read, not imported. Names that begin with an underscore, and what has no docstring, are
left out.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = ("__main__",)
CODE = re.compile(r"(`+[^`]+`+)")
FENCE = "`" * 3


def pages(package: Path) -> dict[str, str]:
    """The text of each page by its path in the site; the first one lists the others."""
    folders: dict[str, list[Path]] = {}
    for path in sorted(package.rglob("*.py")):
        folder = ".".join(path.parent.relative_to(package.parent).parts)
        folders.setdefault(folder, [])
        if path.stem not in ("__init__", *LEFT_OUT):
            folders[folder].append(path)
    front = [
        "# Code",
        "What the docstrings say, a page for each folder. The [map](../map.md) is the whole tree, "
        "with a sentence for each file.",
        _toctree(folders),
    ]
    found = {"api/index.md": "\n\n".join(front)}
    for folder, modules in folders.items():
        about = package.parent / Path(*folder.split(".")) / "__init__.py"
        text = [f"# {folder}", markdown(_docstring(about))]
        text += [part for path in modules for part in _module(path, package)]
        found[f"api/{folder}.md"] = "\n\n".join(text) + "\n"
    return found


def _toctree(names: object) -> str:
    return "\n".join([f"{FENCE}{{toctree}}", ":maxdepth: 1", "", *map(str, names), FENCE])


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def _module(path: Path, package: Path) -> Iterator[str]:
    name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
    tree = ast.parse(path.read_text())
    yield f"## {path.name}"
    yield markdown(ast.get_docstring(tree) or "")
    for node in tree.body:
        yield from _entry(node, name)


def _entry(node: ast.stmt, place: str, depth: int = 5) -> Iterator[str]:
    """A class with its methods, or a function, as a directive of Sphinx."""
    if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    text = ast.get_docstring(node)
    if node.name.startswith("_") or text is None:
        return
    colons = ":" * depth  # what stands inside has fewer
    inside = [markdown(text)]
    if isinstance(node, ast.ClassDef):
        kind, signature = "class", node.name
        inside += [one for it in node.body for one in _entry(it, place, depth - 1)]
    else:
        made = any(getattr(one, "id", "") == "property" for one in node.decorator_list)
        method = depth < 5
        kind = "property" if made else "method" if method else "function"
        signature = node.name if made else _signature(node, method)
    head = [f"{colons}{{py:{kind}}} {signature}", f":module: {place}" if depth == 5 else ""]
    if isinstance(node, ast.AsyncFunctionDef):
        head.append(":async:")
    yield "\n".join([*filter(None, head), "", "\n\n".join(inside), colons])


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, method: bool) -> str:
    given = node.args
    if method and given.args and given.args[0].arg in ("self", "cls"):
        given.args.pop(0)
    arguments = ast.unparse(given)
    gives = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({arguments}){gives}"


def markdown(docstring: str) -> str:
    """Plain sentences, code in backticks and indented blocks, as Markdown that says the same."""
    lines = []
    for line in docstring.split("\n"):
        if line.startswith("    "):  # a block of code
            lines.append(line)
            continue
        parts = CODE.split(line)
        parts[::2] = [re.sub(r"([\\*_<>\[\]#|{}$~])", r"\\\1", part) for part in parts[::2]]
        lines.append("".join(parts))
    return "\n".join(lines)
