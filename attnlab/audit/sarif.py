"""What an audit came to as SARIF 2.1.0, which code hosts and editors show beside the code.

One rule for each property and one for "incomplete"; a result for each failure, at the line where
the code is defined. An error of attnlab itself is no result of the code: it is a notification.
"""

import ast
import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab import __version__, registry
from attnlab.audit.contract import EXIT_CODES, Finding
from attnlab.audit.errors import InputError
from attnlab.audit.subject.load import parts_of
from attnlab.audit.table import smallest
from attnlab.code.places import place_of
from attnlab.json_files import finite

if TYPE_CHECKING:
    from attnlab.audit.sandbox import Answer

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
INCOMPLETE = "incomplete"
HOPS = 5  # files through which a name is followed to where it is defined


def sarif(answer: "Answer", options: Mapping[str, Any]) -> dict[str, Any]:
    """The whole log, as plain data."""
    rules = _rules()
    numbers = {rule["id"]: number for number, rule in enumerate(rules)}
    results = [
        {**one, "ruleIndex": numbers[one["ruleId"]]} if one["ruleId"] in numbers else one
        for one in _results(answer, options)
    ]
    invocation: dict[str, Any] = {
        "executionSuccessful": not answer.traceback,
        "exitCode": EXIT_CODES[answer.verdict],
    }
    if answer.traceback:
        message = {"text": f"{answer.detail}\n{answer.traceback}"}
        notification = {"level": "error", "message": message}
        invocation["toolExecutionNotifications"] = [notification]
    driver = {"name": "attnlab", "version": __version__, "rules": rules}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results, "invocations": [invocation]}],
    }


def _rules() -> list[dict[str, Any]]:
    found = []
    for option in registry.options("property"):
        told = inspect.cleandoc(registry.load("property", option.name).__doc__ or "")
        found.append(_rule(option.name, option.summary, told or option.summary, "error"))
    about = "something declared was not established, or nothing could be audited"
    told = "What is declared and was not established is never a pass. The message says why."
    return [*found, _rule(INCOMPLETE, about, told, "warning")]


def _rule(name: str, about: str, told: str, level: str) -> dict[str, Any]:
    more = f"{told}\n\nattnlab list property.{name}" if name != INCOMPLETE else told
    return {
        "id": name.replace(" ", "-"),
        "name": "".join(word.capitalize() for word in name.split()),
        "shortDescription": {"text": about},
        "fullDescription": {"text": " ".join(told.split())},
        "help": {"text": more},
        "defaultConfiguration": {"level": level},
    }


def _results(answer: "Answer", options: Mapping[str, Any]) -> list[dict[str, Any]]:
    places = _locations(answer.target)
    certificate = answer.certificate
    if certificate is None:
        return [] if answer.traceback else [_result(INCOMPLETE, "warning", answer.detail, places)]
    found = []
    examples = list(answer.examples)
    for finding in certificate.failed:
        text = f"{certificate.target}: {finding.detail}"
        example = next((one for one in examples if one["name"] == finding.name), None)
        if example is not None:
            examples.remove(example)  # of two failures of a property the first has the first
            text += f". Smallest: {smallest(example, options)}" if example["sentence"] else ""
        found.append(_result(finding.name, "error", text, places, finding))
    reason = certificate.reason if certificate.verdict == INCOMPLETE else certificate.shortfall
    if reason:
        text = f"the audit of {certificate.target} is incomplete: {reason}"
        found.append(_result(INCOMPLETE, "warning", text, places))
    return found


def _result(
    rule: str,
    level: str,
    text: str,
    places: Sequence[Mapping[str, Any]],
    finding: Finding | None = None,
) -> dict[str, Any]:
    known: dict[str, Any] = {
        "ruleId": rule.replace(" ", "-"),
        "level": level,
        "message": {"text": text},
        "locations": list(places),
    }
    if finding is not None:
        facts = {"measured": finite(finding.measured), "declared": finite(finding.declared)}
        known["properties"] = facts
    return known


def _locations(target: str) -> list[dict[str, Any]]:
    """Where the code is defined: the file and line if they are known, and the name."""
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": target}]}
    source = None if target.startswith("hf:") else source_of(target)
    if source is not None:
        path, line = source
        with suppress(ValueError):
            path = path.resolve().relative_to(Path.cwd())
        uri = path.as_posix() if not path.is_absolute() else path.as_uri()
        place = {"artifactLocation": {"uri": uri}, "region": {"startLine": line}}
        location["physicalLocation"] = place
    return [location]


def source_of(target: str) -> tuple[Path, int] | None:
    """The file and the line that define what a target names, read without running any of it."""
    where, name = parts_of(target)
    try:
        place = place_of(where)
    except InputError:
        return None
    path = place.path or _module_file(place.module.split("."))
    if path is None:
        return None
    return _definition(path, name.split(".")[0], HOPS) or (path, 1)


def _module_file(parts: Sequence[str]) -> Path | None:
    spec = None
    with suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(parts[0])
    if spec is None or spec.origin is None:
        return None
    if len(parts) == 1:
        return Path(spec.origin)
    return _file_below(Path(spec.origin).parent, parts[1:])


def _file_below(folder: Path, parts: Sequence[str]) -> Path | None:
    below = folder.joinpath(*parts)
    return next(
        (one for one in (below.with_suffix(".py"), below / "__init__.py") if one.is_file()), None
    )


def _definition(path: Path, name: str, hops: int) -> tuple[Path, int] | None:
    """Where a file defines a name, or the file beside it from which it is imported."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, OSError, RecursionError):
        return None
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return path, node.lineno
        if isinstance(node, ast.Assign | ast.AnnAssign):
            ends = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and one.id == name for one in ends):
                return path, node.lineno
    for node in body:
        if not isinstance(node, ast.ImportFrom) or not hops:
            continue
        file = _imported_file(path, node)
        for alias in node.names:
            if name in (alias.asname, alias.name) or alias.name == "*":
                own = name if alias.name == "*" else alias.name
                found = _definition(file, own, hops - 1) if file else None
                if found is not None or alias.name != "*":
                    return found or (path, node.lineno)
    return None


def _imported_file(path: Path, node: ast.ImportFrom) -> Path | None:
    parts = (node.module or "").split(".") if node.module else []
    if node.level:
        return _file_below(path.parents[node.level - 1], parts)
    for folder in path.resolve().parents[:HOPS]:  # the package that the file itself is in
        if parts and folder.name == parts[0]:
            return _file_below(folder, parts[1:])
    return _file_below(path.parent, parts)
