"""The verb that says why two models differ: attnlab diff."""

import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from attnlab import files, json_files
from attnlab.cli.app import (
    SETTINGS,
    AsJson,
    Overrides,
    Runs,
    app,
    errors,
    print_json,
    progress,
    screen,
)

if TYPE_CHECKING:
    from attnlab.doctor.diagnosis import Diagnosis

SIDES = ("a", "b")


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab diff hf:llama mine.py:Llama b.width=32",
)
def diff(
    a: Annotated[
        str,
        typer.Argument(
            help="file.py:Name, package.module:Name, hf:ARCH, a folder of transformers, or a run."
        ),
    ],
    b: Annotated[str, typer.Argument(help="The same; its weights are replaced by those of A.")],
    options: Overrides = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            "--map",
            help="JSON: names of A's parameters, as patterns, and what they are called in B.",
        ),
    ] = None,
    convert: Annotated[
        Path | None, typer.Option(help="Write the conversion of weights, a Python file.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the answer as one HTML page.")] = None,
    length: Annotated[
        int | None, typer.Option(min=4, help="Tokens of the longest text; more than any window.")
    ] = None,
    root: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Find out whether two models are the same function, and if not, why.

    B is given the weights of A, in place of its own. KEY=VALUE are options for both constructors;
    a.KEY=VALUE and b.KEY=VALUE for one. The word none is Python's None; write "'none'" for the
    text. Exit code 0 if they are equal, 1 if they differ, 2 if they could not be
    compared.
    """
    _check_places(convert, html)
    found = _diagnose(a, b, _options(options or []), _rules(rules), length, root)
    if as_json:
        print_json(found.plain())
    else:
        _show(found)
    console = errors if as_json else screen
    if convert is not None and found.conversion:
        files.write_whole(convert.resolve(), found.conversion.encode())
        console.print(escape(f"wrote {convert}"), highlight=False, soft_wrap=True)
    if html is not None:
        from attnlab.doctor.page import page

        command = shlex.join(["attnlab", *sys.argv[1:]])
        files.write_whole(html.resolve(), page(found, command).encode())
        console.print(escape(f"wrote {html}"), highlight=False, soft_wrap=True)
    raise typer.Exit(found.exit_code)


def _options(words: list[str]) -> dict[str, list[str]]:
    """For each side: those that are for both, and its own."""
    found: dict[str, list[str]] = {"a": [], "b": []}
    for word in words:
        side, dot, rest = word.partition(".")
        own = bool(dot) and side in SIDES and "=" not in side
        for one in (side,) if own else SIDES:
            found[one].append(rest if own else word)
    return found


def _diagnose(
    a: str,
    b: str,
    options: dict[str, list[str]],
    rules: dict[str, str],
    length: int | None,
    root: Path,
) -> "Diagnosis":
    with progress() as tick, redirect_stdout(sys.stderr):  # what the code prints is not the answer
        tick(f"load {a}")
        from attnlab.audit.errors import SubjectError
        from attnlab.doctor.case import Case
        from attnlab.doctor.diagnosis import diagnose
        from attnlab.doctor.patient import open_patient

        try:
            first = open_patient(a, options["a"], root)
            tick(f"load {b}")
            second = open_patient(b, options["b"], root)
            tick("first look")
            return diagnose(Case(first, second, rules, length), tick)
        except SubjectError as error:
            raise ValueError(f"{a} and {b} cannot be compared: {error}") from error


def _rules(path: Path | None) -> dict[str, str]:
    """Patterns of names, and what they stand for."""
    import re

    if path is None:
        return {}
    value = json_files.parse_json(files.read_named(path), path)
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        example = '{"h\\\\.(\\\\d+)\\\\.W_Q": "layers.\\\\1.wq.weight"}'
        raise ValueError(f"{path} holds no names by pattern; write {example}")
    for pattern, text in value.items():
        try:
            re.compile(pattern).sub(text, "")
        except re.error as error:
            raise ValueError(f"{path}: {pattern!r} is no pattern: {error}") from None
    return value


def _check_places(convert: Path | None, html: Path | None) -> None:
    """What cannot be written is said before the work, not after it."""
    if html is not None:
        from attnlab.reports import plots

        plots.require()
    for option, file in (("--convert", convert), ("--html", html)):
        if file is None:
            continue
        if file.is_dir():
            raise ValueError(f"{option} {file} is a folder; name a file in it")
        if not file.parent.is_dir():
            raise ValueError(f"{option} {file}: there is no folder {file.parent}; make it first")
        if file.exists() and (not file.is_file() or (option == "--html" and file.suffix == ".py")):
            raise ValueError(f"{option} {file} would be replaced; name another file")


def _show(found: "Diagnosis") -> None:
    from attnlab.doctor.words import sentences

    first, *rest = sentences(found)
    colour = "green" if found.equal else "red"
    screen.print(f"[{colour}]{escape(first)}[/]", highlight=False, soft_wrap=True)
    for line in rest:
        screen.print(escape(line), highlight=False, soft_wrap=True)
    if found.sets and any(one.move is not None for one in found.causes):
        screen.print("\nthe conversion of weights, as it was run:\n", highlight=False)
        screen.print(escape(found.conversion), highlight=False, soft_wrap=True)
