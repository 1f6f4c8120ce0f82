"""The verb that puts somebody's attention code on the bench: attnlab audit."""

import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from attnlab import files, json_files, stop
from attnlab.cli.app import SETTINGS, AsJson, Overrides, app, errors, print_json, progress, screen
from attnlab.cli.places import Address, On
from attnlab.cli.sweep import COLOURS, sweep_targets
from attnlab.cluster import at

if TYPE_CHECKING:
    from rich.console import Console

    from attnlab.audit.sandbox import Answer, Limits, Request


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab audit examples/leaky.py:LeakyAttention width=32 "
    "--declare causal=true --declare window=8",
)
def audit(
    target: Annotated[
        str,
        typer.Argument(
            help="file.py:Name or package.module:Name, a class or a function; "
            "hf:ARCH as hf:llama; a folder of a saved model; "
            "many: hf:all, hf:llama*, @FILE with a target a line."
        ),
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
    sarif: Annotated[
        Path | None, typer.Option(help="Write SARIF, which code hosts show beside the code.")
    ] = None,
    as_json: AsJson = False,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Without a process of its own, and no limits.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds the audit may take.")] = 60.0,
    memory: Annotated[float, typer.Option(help="GiB that the code may take.")] = 8.0,
    device: Annotated[str, typer.Option(help="Where the code runs: cpu, cuda, cuda:1.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Of many targets: a file for a row each, as they come.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the file of --out ends.")
    ] = False,
    on: On = "local",
    address: Address = None,
) -> None:
    """Find out what attention code does, and hold it to what is declared.

    KEY=VALUE after the target are options for its constructor, such as width=32 heads=4. What is
    not declared is measured and reported. Exit code 0 if it passes, 1 if something fails, 2 if
    nothing could be audited or something declared could not be established, 3 if attnlab itself
    failed.
    """
    from attnlab.audit import sandbox
    from attnlab.audit.declaration import read_contract
    from attnlab.audit.sweep import is_sweep

    cluster = at(on, address)
    limits = sandbox.Limits(seconds=timeout, gibibytes=memory)
    request = sandbox.Request(
        target=target,
        options=tuple(options or ()),
        contract=read_contract(contract, declare or []),
        device=device,
    )
    many = is_sweep(target)
    for option, given in (("html", html), ("repro", repro), ("sarif", sarif)):
        if many and given is not None:
            raise ValueError(f"--{option} is for one target; many have --json and --out rows.jsonl")
    if not many and (out is not None or resume):
        raise ValueError(f"--out and --resume are for many targets, and {target} is one")
    if not many and cluster is not None:
        raise ValueError(f"--on ray is for many targets, and {target} is one")
    _check_places(html, repro, sarif, out)
    if many:
        sweep_targets(request, limits, as_json, out, resume, cluster)
    answer = _audit(request, None if in_process else limits)
    _tell(answer, request.options, as_json)
    if not answer.interrupted:
        answer = _write(answer, html, repro, sarif, request.options, as_json)
    raise typer.Exit(_conclude(answer))


def _audit(request: "Request", limits: "Limits | None") -> "Answer":
    """In a process of its own; without limits, in this one."""
    from attnlab.audit import sandbox
    from attnlab.audit.answer import stopped

    known: list[Answer] = []
    with progress() as tick:
        if limits is not None:
            return sandbox.audit_in_child(request, limits, tick)
        try:
            with redirect_stdout(sys.stderr):  # what the code prints is not the answer
                return sandbox.audit_here(request, tick, known.append)
        except KeyboardInterrupt:
            return stopped(request.target, known[-1] if known else None)


def _tell(answer: "Answer", options: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json(answer.plain())
    elif answer.certificate is not None:
        _show(answer, options)


def _conclude(answer: "Answer") -> int:
    """Says on the standard error why it is no pass, if that needs saying; the exit code."""
    certificate, line = answer.certificate, answer.detail
    if answer.traceback:
        return _report_failure(answer)
    if certificate is None and not answer.interrupted:
        raise ValueError(answer.detail)
    if certificate is not None and certificate.verdict == "incomplete":
        line = f"the audit of {answer.target} is incomplete: {certificate.reason}"
    elif certificate is not None and certificate.unfinished and not answer.interrupted:
        line = ""  # it is said beside the verdict
    if line:
        errors.print(escape(line), highlight=False, soft_wrap=True)
    if certificate is None or answer.interrupted:
        return 128 + stop.received()
    return certificate.exit_code


def _report_failure(answer: "Answer") -> int:
    """An error of ours on the standard error; its exit code."""
    from attnlab.audit.contract import EXIT_CODES

    what = "was not audited:" if answer.certificate is None else "was audited, but"
    line = f"{answer.target} {what} {answer.detail}; please report this"
    errors.print(escape(answer.traceback.rstrip()), highlight=False, soft_wrap=True)
    errors.print(f"[bold red]error:[/] {escape(line)}", highlight=False, soft_wrap=True)
    return EXIT_CODES["error"]


def _check_places(
    html: Path | None, repro: Path | None, sarif: Path | None, out: Path | None
) -> None:
    """What cannot be written is said before the work, not after it."""
    if html is not None:
        from attnlab.reports import plots

        plots.require()
    for option, file in (("--html", html), ("--sarif", sarif), ("--out", out)):
        if file is None:
            continue
        if file.is_dir():
            raise ValueError(f"{option} {file} is a folder; name a file in it")
        if not file.parent.is_dir():
            raise ValueError(f"{option} {file}: there is no folder {file.parent}; make it first")
        if file.suffix == ".py" or (file.exists() and not file.is_file()):  # code, a device, a pipe
            raise ValueError(f"{option} {file} would be replaced; name another file")
        shut = file.exists() and not os.access(file, os.W_OK)
        if shut or not _takes_files(file.resolve().parent):
            raise ValueError(f"{option} {file} cannot be written; name another file")
    if repro is not None:
        above = next(one for one in (repro, *repro.parents) if one.exists())
        if not above.is_dir() or not _takes_files(above):
            raise ValueError(f"--repro {repro} is no folder that can be written; name another")


def _takes_files(folder: Path) -> bool:
    """Tried, since permissions do not tell of every folder, such as those below /proc."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _write(
    answer: "Answer",
    html: Path | None,
    repro: Path | None,
    sarif: Path | None,
    options: Sequence[str],
    as_json: bool,
) -> "Answer":
    """The answer, with what went wrong on our side while it was written, if anything did."""
    console = errors if as_json else screen
    if html is not None and answer.certificate is not None:
        answer = _write_page(answer, html, console)
    if repro is not None and answer.certificate is not None:
        _write_scripts(answer, repro, console)
    if sarif is not None:
        _write_sarif(answer, sarif, options, console)
    return answer


def _write_page(answer: "Answer", html: Path, console: "Console") -> "Answer":
    from attnlab.audit.certificate import page

    assert answer.certificate is not None
    command = shlex.join(["attnlab", *sys.argv[1:]])
    try:
        text = page(answer.certificate, answer.examples, command)
    except Exception as error:  # a mistake of ours, said as one: what was found is not lost by it
        detail = f"attnlab itself failed to draw the page: {type(error).__name__}: {error}"
        return replace(answer, detail=detail, traceback=traceback.format_exc())
    files.write_whole(html.resolve(), text.encode())  # a link stays one
    _say_written(html, console)
    return answer


def _write_scripts(answer: "Answer", repro: Path, console: "Console") -> None:
    repro.mkdir(parents=True, exist_ok=True)
    for one in answer.examples:
        if one["script"]:
            files.write_whole(repro / one["file"], one["script"].encode())
            _say_written(repro / one["file"], console)
        else:
            line = f"no script for {one['name']}: {one['reason']}"
            errors.print(escape(line), highlight=False, soft_wrap=True)


def _write_sarif(answer: "Answer", path: Path, options: Sequence[str], console: "Console") -> None:
    from attnlab.audit.sarif import sarif

    files.write_whole(path.resolve(), json_files.as_json(sarif(answer, _given(options))))
    _say_written(path, console)


def _say_written(path: Path, console: "Console") -> None:
    console.print(escape(f"wrote {path}"), highlight=False, soft_wrap=True)


def _given(options: Sequence[str]) -> dict[str, Any]:
    """Options as values; those of code that could not be audited may be none."""
    from attnlab.audit.errors import InputError
    from attnlab.audit.subject.load import options_of

    try:
        return options_of(options)
    except InputError:
        return {}


def _show(answer: "Answer", options: Sequence[str]) -> None:
    from attnlab.audit.table import rows, smallest

    assert answer.certificate is not None
    given = _given(options)
    examples = {(one["name"], one["aspect"]): one for one in answer.examples if one["sentence"]}
    for row in rows(answer.certificate.findings):
        first = row.findings[0]
        verdict = f"[{COLOURS.get(row.verdict, 'yellow')}]{row.verdict:14}[/]"
        named = row.names if len(row.findings) == 1 else f"{row.names}\n{'':12}"
        aspect = f"{first.aspect}: " if first.aspect else ""
        line = f"{named:12} {verdict} {escape(aspect + row.detail)}"
        screen.print(line, highlight=False, soft_wrap=True)
        if row.verdict == "fail" and (first.name, first.aspect) in examples:
            example = examples[first.name, first.aspect]
            line = f"{'':27} smallest: {escape(smallest(example, given))}"
            screen.print(line, highlight=False, soft_wrap=True)
    certificate = answer.certificate
    if certificate.verdict == "fail" and certificate.shortfall:
        screen.print(escape(certificate.shortfall), highlight=False, soft_wrap=True)
    colour = COLOURS.get(certificate.verdict, "yellow")
    screen.print(f"[{colour}]{escape(certificate.target)}: {certificate.verdict}[/]")
