"""The verb that puts somebody's attention code on the bench: attnlab audit."""

import os
import shlex
import sys
import traceback
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from attnlab import config, files
from attnlab.cli.app import SETTINGS, AsJson, Overrides, app, errors, print_json, progress, screen

if TYPE_CHECKING:
    from attnlab.audit.contract import Contract
    from attnlab.audit.sandbox import Answer

COLOURS = {"pass": "green", "fail": "bold red", "not applicable": "dim"}  # others are yellow


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab audit examples/leaky.py:LeakyAttention width=32 "
    "--declare causal=true --declare window=8",
)
def audit(
    target: Annotated[
        str, typer.Argument(help="file.py:Name, a class or a function; hf:ARCH, hf:DIR, hf:all.")
    ],
    options: Overrides = None,
    declare: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="What it must do: causal, window, cache …"),
    ] = None,
    contract: Annotated[
        Path | None, typer.Option(help="A JSON file of what it must do; --declare wins over it.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a certificate, one HTML page.")] = None,
    repro: Annotated[
        Path | None, typer.Option(help="A folder for a script per failure, without attnlab.")
    ] = None,
    as_json: AsJson = False,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Without a process of its own, and no limits.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds the audit may take.")] = 60.0,
    memory: Annotated[float, typer.Option(help="GiB that the code may take.")] = 8.0,
) -> None:
    """Find out what attention code does, and hold it to what is declared.

    KEY=VALUE after the target are options for its constructor, such as width=32 heads=4. What is
    not declared is measured and reported. Exit code 0 if it passes, 1 if something fails, 2 if
    nothing could be audited or something declared could not be established, 3 if attnlab itself
    failed.
    """
    from attnlab.audit import sandbox

    limits = sandbox.Limits(seconds=timeout, gibibytes=memory)
    request = sandbox.Request(
        target=target, options=tuple(options or ()), contract=_contract(contract, declare or [])
    )
    _check_places(html, repro)
    if target == "hf:all":
        _sweep(as_json, timeout)
        return
    with progress() as tick:
        if in_process:
            with redirect_stdout(sys.stderr):  # what the code prints is not the answer
                answer = sandbox.audit_here(request, tick)
        else:
            answer = sandbox.audit_in_child(request, limits, tick)
    if as_json:
        print_json(answer.plain())
    if answer.certificate is not None:
        if not as_json:
            _show(answer)
        answer = _write(answer, html, repro)
    if answer.traceback:
        raise typer.Exit(_report_failure(answer))
    if answer.certificate is None:
        raise ValueError(answer.detail)
    if answer.certificate.verdict == "incomplete":
        line = f"the audit of {target} is incomplete: {answer.certificate.reason}"
        errors.print(escape(line), highlight=False, soft_wrap=True)
    raise typer.Exit(answer.certificate.exit_code)


def _report_failure(answer: "Answer") -> int:
    """An error of ours on the standard error; its exit code."""
    from attnlab.audit.contract import EXIT_CODES

    what = "was not audited:" if answer.certificate is None else "was audited, but"
    line = f"{answer.target} {what} {answer.detail}; please report this"
    errors.print(escape(answer.traceback.rstrip()), highlight=False, soft_wrap=True)
    errors.print(f"[bold red]error:[/] {escape(line)}", highlight=False, soft_wrap=True)
    return EXIT_CODES["error"]


def _sweep(as_json: bool, seconds: float) -> None:
    """Every architecture of the installed transformers, each in a process of its own."""
    from attnlab.audit.hf.models import architectures
    from attnlab.audit.hf.sweep import exit_code, sweep

    with progress() as tick:
        rows = sweep(architectures(), tick, seconds=seconds)
    if as_json:
        print_json(rows)
    for row in [] if as_json else rows:
        colour = COLOURS.get(row["verdict"], "yellow")
        line = f"{row['target']:24} [{colour}]{row['verdict']:12}[/]"
        line += f" {escape(row.get('reason') or row.get('detail', ''))}"
        screen.print(line, highlight=False, soft_wrap=True)
    raise typer.Exit(exit_code(rows))


def _contract(path: Path | None, declare: list[str]) -> "Contract":
    from attnlab.audit.contract import Contract

    declared: Any = {} if path is None else files.parse_json(path.read_bytes(), path)
    try:
        contract = config.from_dict(Contract, declared)
    except config.ConfigError as error:
        raise config.ConfigError(f"{path}: {error}") from None
    return config.override(contract, declare)


def _check_places(html: Path | None, repro: Path | None) -> None:
    """What cannot be written is said before the work, not after it."""
    if html is not None:
        from attnlab.reports import plots

        plots.require()
        if html.is_dir() or not html.parent.is_dir():
            raise ValueError(f"--html {html} is no place for a file; name one in a folder")
        if not os.access(html if html.exists() else html.parent, os.W_OK):
            raise ValueError(f"--html {html} cannot be written; name another file")
    if repro is not None:
        above = next(one for one in (repro, *repro.parents) if one.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise ValueError(f"--repro {repro} is no folder that can be written; name another")


def _write(answer: "Answer", html: Path | None, repro: Path | None) -> "Answer":
    """The answer, with what went wrong on our side while it was written, if anything did."""
    assert answer.certificate is not None
    if html is not None:
        from attnlab.audit.certificate import page

        command = shlex.join(["attnlab", *sys.argv[1:]])
        try:
            text = page(answer.certificate, answer.examples, command)
        except Exception as error:
            detail = f"attnlab itself failed to draw the page: {type(error).__name__}: {error}"
            answer = replace(answer, detail=detail, traceback=traceback.format_exc())
        else:
            files.write_whole(html, text.encode())
    if repro is None:
        return answer
    repro.mkdir(parents=True, exist_ok=True)
    for one in answer.examples:
        if one["script"]:
            files.write_whole(repro / one["file"], one["script"].encode())
        else:
            line = f"no script for {one['name']}: {one['reason']}"
            errors.print(escape(line), highlight=False, soft_wrap=True)
    return answer


def _show(answer: "Answer") -> None:
    assert answer.certificate is not None
    smallest = {one["name"]: one["sentence"] for one in answer.examples}
    for finding in answer.certificate.findings:
        verdict = f"[{COLOURS.get(finding.verdict, 'yellow')}]{finding.verdict:14}[/]"
        line = f"{finding.name:12} {verdict} {escape(finding.detail)}"
        screen.print(line, highlight=False, soft_wrap=True)
        if smallest.get(finding.name):
            line = f"{'':27} smallest: {escape(smallest[finding.name])}"
            screen.print(line, highlight=False, soft_wrap=True)
    certificate = answer.certificate
    if certificate.verdict == "fail" and certificate.shortfall:
        screen.print(escape(certificate.shortfall), highlight=False, soft_wrap=True)
    colour = COLOURS.get(certificate.verdict, "yellow")
    screen.print(f"[{colour}]{escape(certificate.target)}: {certificate.verdict}[/]")
