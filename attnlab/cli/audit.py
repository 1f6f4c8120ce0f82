"""The verb that puts somebody's attention code on the bench: attnlab audit."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from attnlab import config
from attnlab.cli.app import SETTINGS, AsJson, Words, app, print_json, progress, screen

if TYPE_CHECKING:
    from attnlab.audit import Certificate

COLOURS = {"pass": "green", "fail": "bold red", "not applicable": "dim", "cannot tell": "yellow"}


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab audit examples/leaky.py:LeakyAttention width=32 "
    "--declare causal=true --declare window=8",
)
def audit(
    target: Annotated[str, typer.Argument(help="file.py:Name, a class or a function.")],
    words: Words = None,
    declare: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="What it must do: causal, window, cache …"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find out what attention code does, and hold it to what is declared; exit code 1 if it fails.

    KEY=VALUE after the target are options for its constructor, such as width=32 heads=4. What is
    not declared is measured and reported.
    """
    from attnlab.audit import Contract
    from attnlab.audit.adapters import subject_for
    from attnlab.audit.examine import examine
    from attnlab.audit.load import from_file, options_of

    contract = config.override(Contract(), declare or [])
    options = options_of(words or [])
    subject = subject_for(from_file(target, options), options, target.rpartition(":")[2])
    with progress() as tick:
        certificate = examine(subject, contract, tick)
    if as_json:
        print_json(certificate.plain())
    else:
        _show(certificate)
    if certificate.verdict == "fail":
        raise typer.Exit(1)


def _show(certificate: "Certificate") -> None:
    for finding in certificate.findings:
        verdict = f"[{COLOURS[finding.verdict]}]{finding.verdict:14}[/]"
        line = f"{finding.name:12} {verdict} {escape(finding.detail)}"
        screen.print(line, highlight=False, soft_wrap=True)
    colour = COLOURS[certificate.verdict]
    screen.print(f"[{colour}]{escape(certificate.target)}: {certificate.verdict}[/]")
