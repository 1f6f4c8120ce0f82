"""The verb that runs the theory: attnlab claims."""

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from attnlab import registry, stop
from attnlab.cli.app import AsJson, app, errors, print_json, progress, screen

if TYPE_CHECKING:
    from attnlab.theory.claim import Claim
    from attnlab.theory.result import ClaimResult

COLOURS = {
    "holds": "green",
    "refuted": "red",
    "holds with a condition": "yellow",
    "cannot tell": "magenta",
}


@app.command(
    epilog="Example: attnlab claims --quick · attnlab claims copy --set lead=3 --plot copy.svg · "
    'attnlab claims one-head-swings --knob · attnlab claims --question "A4 1(c)" · '
    "attnlab claims --export claims-page"
)
def claims(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names from `attnlab list claims`; none: all.")
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(help='The claims that settle a course question, such as "A4 1(c)".'),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting; those of a claim: attnlab list claim.copy.",
        ),
    ] = None,
    knob: Annotated[
        bool, typer.Option("--knob", help="Turn the knob, which breaks the claim.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out claims that train models.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write the picture of one claim, as SVG.")
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(help="Record the results here: theory.md, its pictures, outcomes.json."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Write what is recorded into this folder, as a page without a server."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Do not go on where a stopped run has ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the theory: each claim gets a verdict, computed from an experiment.

    A single claim is explained at length. "cannot tell" means that the interval contains both
    answers. Exit code 1: a verdict is not the recorded one. With --knob that is always so.
    Stop it at any time: the same command goes on from there.
    """
    from attnlab.theory import catalogue

    if docs is not None and overrides:
        raise ValueError("--docs records claims with their default settings; leave out --set")
    if question is not None and names:
        raise ValueError(f"give names or --question, not both: {', '.join(names)}")
    chosen = catalogue.find_by_question(question) if question is not None else names
    chosen = chosen or catalogue.names(quick=quick)
    made = [(catalogue.choose(name, overrides or [], knob), name) for name in chosen]
    loaded = {registry.find("claim", name).name: claim for claim, name in made}
    if export is not None:
        if overrides or knob or quick or plot or docs or again or as_json:
            raise ValueError(
                "--export writes what is recorded and runs nothing; give it alone, or "
                "with names or --question"
            )
        _export(export, list(loaded) if names or question else [])
        return
    if quick:
        loaded = {name: claim for name, claim in loaded.items() if not claim.trained}
    if not loaded:
        raise ValueError(f"--quick leaves out {', '.join(chosen)}: it trains models")
    if plot is not None:
        _check_plot(plot, len(loaded))
    table = None if as_json or len(loaded) == 1 else _Rows(list(loaded), question)
    results = []
    for result in _settle(loaded, again):
        results.append(result)
        if table is not None:
            table.add(result.with_knob() if knob else result)
    shown = [result.with_knob() for result in results] if knob else results
    if plot is not None:
        _draw(shown[0], plot)
    if docs is not None:
        _record(results, docs)
    if as_json:
        print_json([result.plain() for result in shown])
    elif table is None:
        _explain(shown[0])
    else:
        table.end(shown)
    for result in results:
        if not overrides and not result.knob_flips:
            errors.print(
                f"[bold red]{result.name}:[/] its knob does not change the verdict", highlight=False
            )
            raise typer.Exit(1)
    if not all(result.as_expected for result in shown):
        raise typer.Exit(1)


def _settle(claims: Mapping[str, "Claim"], again: bool) -> Iterator["ClaimResult"]:
    """The results in order, each as it comes; those of a stopped run are not made again."""
    from attnlab.experiments.pool import Interrupted
    from attnlab.theory.result_cache import ResultCache

    kept, settled, count = ResultCache(claims, again=again), 0, len(claims)
    if kept.unusable:
        lines = "a kept result is" if kept.unusable == 1 else f"{kept.unusable} kept results are"
        errors.print(f"{lines} damaged or not of these claims: settled anew", highlight=False)
    if kept.found:
        errors.print(
            f"{len(kept.found)} of {count} claims were settled before it was stopped, by the same "
            "code on this machine; --again starts afresh",
            highlight=False,
            soft_wrap=True,
        )
    try:
        for number, (name, claim) in enumerate(claims.items(), 1):
            found = kept.found.get(name) or _run(name, claim, f"{number} of {count}")
            kept.add(found)
            settled = number
            yield found
    except Interrupted as error:
        stop.end(signal.Signals[error.signal], _how_far(settled, count, kept.reason))
    except KeyboardInterrupt as error:
        error.add_note(_how_far(settled, count, kept.reason))
        raise
    kept.remove()


def _how_far(settled: int, count: int, reason: str) -> str:
    if count == 1:
        return "the same command resumes from there"
    if reason:
        return f"{settled} of {count} claims were settled, and cannot be kept: {reason}"
    return f"{settled} of {count} claims are settled; the same command goes on from there"


def _run(name: str, claim: "Claim", where: str) -> "ClaimResult":
    from attnlab.experiments.progress import Terminal
    from attnlab.theory.result import run_claim

    if claim.trained:
        return run_claim(name, claim, Terminal(errors))
    with progress() as tick:
        tick(f"claim {where}: {name}")
        return run_claim(name, claim)


class _Rows:
    """A table whose rows are printed as they come."""

    def __init__(self, names: list[str], question: str | None) -> None:
        from attnlab.theory import sources

        self._widest, self._question = max(map(len, names)), question
        for key in sources.find_questions(question) if question is not None else []:
            screen.print(f"[cyan]{key}[/]: {sources.QUESTIONS[key]}", highlight=False)

    def add(self, result: "ClaimResult") -> None:
        from attnlab.theory import sources
        from attnlab.theory.claim import decisive
        from attnlab.theory.document import who_was_right

        evidence = result.evidence
        name = f"[bold]{result.name}[/]{' ' * (self._widest - len(result.name))}"
        right = who_was_right(result.plain()["answers"], sources.short)
        screen.print(f"{name}  {_verdict(result)}  {right}", highlight=False, soft_wrap=True)
        line = f"  {evidence.kind}: {decisive(evidence.measures).describe()}"
        screen.print(f"[dim]{escape(line)}[/]", highlight=False, soft_wrap=True)
        if self._question is not None:
            screen.print(f"  {escape(result.claim.about.statement)}", highlight=False)

    def end(self, results: list["ClaimResult"]) -> None:
        from attnlab.theory import sources

        screen.print(
            "[dim]The conclusions of five documents: ✓ right, ◐ incomplete, ✗ wrong. Their words "
            "and reasons: attnlab claims NAME[/]",
            highlight=False,
        )
        for number, short in sources.SHORT.items():
            what = sources.DOCUMENTS[number].partition(": ")[2]
            screen.print(f"[dim]  {short:<10}  {escape(what)}[/]", highlight=False, soft_wrap=True)
        wrong = [result.name for result in results if not result.as_expected]
        line = f"{len(results)} claims; " + (
            f"not as recorded: {', '.join(wrong)}" if wrong else "all as recorded"
        )
        screen.print(line, highlight=False)


def _explain(result: "ClaimResult") -> None:
    from attnlab.reports.report import Sample, paragraphs
    from attnlab.reports.report import Table as Numbers
    from attnlab.reports.terminal import grid
    from attnlab.theory.document import answers_table, verdict_text

    about, plain = result.claim.about, result.plain()
    screen.print(f"[bold]{result.name}[/]  {_verdict(result)}\n", highlight=False)
    screen.print(f"{escape(about.statement)}\n", highlight=False)
    screen.print(f"[cyan]{escape(about.formula)}[/]\n", highlight=False)
    if changes := result.claim.changes:
        screen.print(f"[yellow]Run with {escape(changes)}.[/]\n", highlight=False)
    for part in [
        *paragraphs(about.derivation),
        verdict_text(plain, about),
        *paragraphs(about.remark),
    ]:
        screen.print(f"{escape(part)}\n", highlight=False)
    answers = [answers_table(plain["answers"])] if plain["answers"] else []
    for block in [*result.evidence.details, *answers]:
        if isinstance(block, Numbers):
            screen.print(grid(block))
        elif isinstance(block, Sample):
            screen.print(f"{escape(block.title)}\n{escape(block.text)}", highlight=False)
    if about.answers and not answers:
        screen.print(
            "The documents' answers are marked for the default settings only: "
            f"attnlab claims {result.name}",
            highlight=False,
            soft_wrap=True,
        )


def _verdict(result: "ClaimResult") -> str:
    note = "" if result.as_expected else f" (recorded: {result.claim.about.expected})"
    return f"[{COLOURS[result.verdict]}]{result.verdict}[/]{note}"


def _check_plot(path: Path, count: int) -> None:
    """Called before the run, whose result would be lost if the path cannot be written."""
    if count != 1:
        raise ValueError(
            f"--plot draws one claim, not {count}; name it: attnlab claims copy --plot"
        )
    if path.suffix != ".svg":
        raise ValueError(f"--plot writes SVG; use {path.with_suffix('.svg')}")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written; name a file in an existing folder")


def _draw(result: "ClaimResult", path: Path) -> None:
    from attnlab import files
    from attnlab.reports import plots, vector

    files.write_whole(path, vector.standalone(plots.svg(result.evidence.picture)).encode())
    errors.print(f"wrote {escape(str(path))}", highlight=False, soft_wrap=True)


def _export(folder: Path, names: list[str]) -> None:
    from attnlab.page import export

    export.write(folder, names)
    line = f"wrote {folder}; open {folder / 'index.html'}, or put the folder on any host"
    screen.print(escape(line), highlight=False, soft_wrap=True)


def _record(results: list["ClaimResult"], docs: Path) -> None:
    import torch

    from attnlab.kernels.hardware import machine
    from attnlab.theory import document, record

    merged = record.merge(record.read(docs), results, machine(torch.device("cpu")))
    document.write(merged, docs)
