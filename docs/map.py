"""Writes the tree in docs/map.md: each file with the first sentence of its docstring.

python docs/map.py
"""

import ast
import re
from pathlib import Path

from attnlab import registry

ROOT = Path(__file__).parent.parent
MAP = Path(__file__).with_suffix(".md")
TREE = re.compile(r"(?<=```text\n)attnlab/.*?(?=```)", re.DOTALL)


FOLDED = {"attnlab/audit/properties": "property"}  # `attnlab list property` shows these files


def tree(package: Path) -> str:
    """The package as lines, a folder before what it holds: `  name.py    what it is`."""
    lines = _lines(package, depth=0)
    width = max(len(name) for name, _ in lines) + 2
    return "".join(f"{name:{width}}{about}".rstrip() + "\n" for name, about in lines)


def _lines(folder: Path, depth: int) -> list[tuple[str, str]]:
    kind = FOLDED.get(folder.relative_to(ROOT).as_posix(), "")
    about = _about(folder / "__init__.py") + (f": `attnlab list {kind}`" if kind else "")
    lines = [("  " * depth + folder.name + "/", about)]
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if (path / "__init__.py").is_file():
            lines += _lines(path, depth + 1)
        elif kind and path.stem in {re.sub(r"\W", "_", one.name) for one in registry.options(kind)}:
            continue
        elif path.suffix in (".py", ".c", ".h", ".js") and path.name != "__init__.py":
            lines.append(("  " * (depth + 1) + path.name, _about(path)))
        elif any(inside.suffix != ".pyc" for inside in path.rglob("*.*")):  # not a stale cache
            lines.append(("  " * (depth + 1) + path.name + "/", ""))
    return lines


def _about(path: Path) -> str:
    """The first sentence of a docstring, or of the comment that a file in C opens with."""
    text = path.read_text()
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        said = " ".join(re.sub(r"^\s*[/*]+", "", line) for line in text.split("*/")[0].split("\n"))
    first = " ".join(said.split("\n\n")[0].split())
    return re.split(r"(?<=[^.])\. ", first + " ")[0].strip().rstrip(".")


def written(text: str) -> str:
    """The page with its tree as the files are now."""
    return TREE.sub(lambda _: tree(ROOT / "attnlab"), text)


if __name__ == "__main__":
    MAP.write_text(written(MAP.read_text()))
