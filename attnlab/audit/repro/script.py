"""A failing case as a script that needs torch, what is audited, and nothing of this package.

The check of the property (`audit/properties/`) is printed into it with all that it names, and so
is the stage that the code was put on. Names are looked up where they are defined: an import of
something else is repeated, a definition of this package is printed in its place.
"""

import ast
import importlib
import inspect
import re
import symtable
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from attnlab.audit.contract import Finding
from attnlab.audit.probe.tools import tool_names
from attnlab.audit.properties.property import Case
from attnlab.audit.repro.stage import Stage
from attnlab.code.siblings import plain_names

OWN = "attnlab"


def script(stage: Stage, finding: Finding, case: Case) -> str:
    """Builds the stage, runs the case, and tells by its exit code."""
    tools = tool_names(case.fails)
    heading = stage.heading(tools)
    given = ", ".join(f"{key}={value!r}" for key, value in case.sizes.items())
    detail = " ".join(finding.detail.split()).replace("\\", "/").replace('"', "'")
    ending = f"""
def report_crash(*error: Any) -> None:
    sys.__excepthook__(*error)
    os._exit(2)  # 1 would mean that it is still wrong


sys.excepthook = report_crash
{heading.making}


{stage.text(tools)}


torch.manual_seed(0)
fails, sentence, _ = {case.fails.__name__}(
    {", ".join(tools)},
    {given},
    tolerance=TOLERANCE,
)
print(("wrong: " if fails else "mended: ") + sentence)
sys.exit(1 if fails else 0)
"""
    definitions = Definitions()
    for home in stage.homes():
        definitions.add(ending, home)
    definitions.define(case.fails.__name__, sys.modules[case.fails.__module__])
    constants = [heading.constants, *definitions.constants.values()]
    limit = f"TOLERANCE = {case.tolerance!r}  # what rounding explains; more is a difference"
    heading_text = f'''"""{heading.title}, {finding.title}: {detail}

    python {script_name(stage.target, finding)} {heading.usage}

{inspect.getdoc(case.fails)}

Exit code 1 while it is so, 0 once it is mended, 2 if the code is not found or breaks down.
Needs {heading.needs}.
"""'''
    parts = [heading_text, definitions.import_lines(), "\n".join([*constants, limit])]
    body = "\n\n\n".join(definitions.functions.values())
    return plain_names("\n\n".join(parts) + f"\n\n\n{body}\n\n{ending}")


class Definitions:
    """Definitions that a script needs, each after those that it names."""

    def __init__(self) -> None:
        self.constants: dict[str, str] = {}
        self.functions: dict[str, str] = {}
        self._imports = {("os", ""), ("sys", ""), ("torch", ""), ("typing", "Any")}
        self._homes: dict[str, str] = {}

    def add(self, text: str, home: ModuleType) -> None:
        """What a text names of what there is in a module."""
        for name in sorted(used_names(text) & _definitions(home).keys()):
            self.define(name, home)

    def define(self, name: str, home: ModuleType) -> None:
        node, text = _definitions(home)[name]
        if isinstance(node, ast.Import):
            self._imports.add((text, ""))
            return
        if isinstance(node, ast.ImportFrom):
            if text.startswith(OWN):
                self.define(name, importlib.import_module(text))
            else:
                self._imports.add((text, name))
            return
        known = self._homes.setdefault(name, home.__name__)
        assert known == home.__name__, f"{name} is defined in {known} and in {home.__name__}"
        if name in self.constants or name in self.functions:
            return
        kind = self.constants if isinstance(node, ast.Assign) else self.functions
        kind[name] = ""  # it may name itself
        self.add(text, home)
        kind[name] = text
        kind.update({name: kind.pop(name)})  # after what it names

    def import_lines(self) -> str:
        """Of the standard library first."""
        groups = []
        for standard in (True, False):
            some = [
                (module, name)
                for module, name in sorted(self._imports)
                if (module.partition(".")[0] in sys.stdlib_module_names) == standard
            ]
            lines = [f"import {module}" for module, name in some if not name]
            for module in dict.fromkeys(module for module, name in some if name):
                names = ", ".join(name for home, name in some if home == module and name)
                lines.append(f"from {module} import {names}")
            groups.append("\n".join(lines))
        return "\n\n".join(groups)


@cache
def _definitions(home: ModuleType) -> dict[str, tuple[ast.stmt, str]]:
    """By name: the statement of a module that defines it, and its text; of imports, from where."""
    source = inspect.getsource(home)
    lines = source.splitlines()
    found: dict[str, tuple[ast.stmt, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                as_ = f" as {alias.asname}" if alias.asname else ""
                name = alias.asname or alias.name.partition(".")[0]
                found[name] = (node, f"{alias.name}{as_}")
        elif isinstance(node, ast.ImportFrom):
            plain = [alias.name for alias in node.names if alias.asname is None]
            found |= {name: (node, str(node.module)) for name in plain}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[node.name] = (node, "\n".join(lines[first - 1 : node.end_lineno]))
        elif isinstance(node, ast.Assign):
            text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            found |= {one.id: (node, text) for one in node.targets if isinstance(one, ast.Name)}
    return found


def used_names(text: str) -> set[str]:
    """Every name that a text takes from around it."""

    def walk(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            top = table.get_type() == "module" and not symbol.is_assigned()
            if symbol.is_referenced() and (top or symbol.is_global()):
                yield symbol.get_name()
        for child in table.get_children():
            yield from walk(child)

    return set(walk(symtable.symtable(text, "script", "exec")))


def script_name(target: str, finding: Finding) -> str:
    name = Path(target.rpartition(":")[2]).name  # of a saved model, its folder's
    words = re.findall(r"\w+", finding.title)
    return "_".join([name, *words]) + ".py"
