"""The verb that settles the theory: attnlab claims."""

import dataclasses
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from attnlab.cli.app import AsJson, app, errors, print_json, progress, screen

if TYPE_CHECKING:
    from attnlab.theory.claim import Claim
    from attnlab.theory.settle import Outcome

COLOURS = {
    "holds": "green",
    "refuted": "red",
    "holds with a condition": "yellow",
    "cannot tell": "magenta",
}


@app.command(
    epilog="Example: attnlab claims --quick · attnlab claims copy --set lead=3 --plot copy.svg · "
    'attnlab claims one-head-swings --knob · attnlab claims --question "A4 1(c)"'
)
def claims(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which: attnlab list claims; none: all.")
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(help='Those that settle a question of the courses, such as "A4 1(c)".'),
    ] = None,
    words: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")
    ] = None,
    knob: Annotated[bool, typer.Option("--knob", help="Turn the knob, which breaks it.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out those that train.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write the picture of one claim, as SVG.")
    ] = None,
    docs: Annotated[
        Path | None, typer.Option(help="Write theory.md with its pictures into this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the theory: each claim gets a verdict, computed from an experiment.

    One claim is explained at length. Exit code 1 when a verdict is not the recorded one, as it
    has to be with --knob. "cannot tell": the interval holds both answers.
    """
    from attnlab.experiments.pool import Interrupted
    from attnlab.theory import settle

    if docs is not None and words:
        raise ValueError("--docs records claims as they stand; leave --set out")
    if question is not None and names:
        raise ValueError(f"give names or --question, not both: {', '.join(names)}")
    chosen = settle.answering(question) if question is not None else names
    chosen = chosen or settle.names(quick=quick)
    loaded = {name: settle.load(name, words or []) for name in chosen}
    if quick:
        loaded = {name: claim for name, claim in loaded.items() if not claim.trained}
    if not loaded:
        raise ValueError(f"{', '.join(chosen)}: trains models; leave out --quick")
    if plot is not None:
        _check_plot(plot, len(loaded))
    try:
        outcomes = [_settle(name, claim) for name, claim in loaded.items()]
    except Interrupted as error:
        errors.print(f"{error}; the same command goes on from there", highlight=False)
        raise typer.Exit(128 + signal.Signals[error.signal]) from None
    shown = [outcome.broken() for outcome in outcomes] if knob else outcomes
    if plot is not None:
        _draw(shown[0], plot)
    if docs is not None:
        _document(outcomes, docs)
    if as_json:
        print_json([outcome.plain() for outcome in shown])
    elif len(shown) == 1:
        _explain(shown[0])
    else:
        _tabulate(shown, question)
    for outcome in outcomes:
        if not words and not outcome.knob_flips:
            errors.print(f"[bold red]{outcome.name}:[/] its knob changes nothing", highlight=False)
            raise typer.Exit(1)
    if not all(outcome.as_expected for outcome in shown):
        raise typer.Exit(1)


def _settle(name: str, claim: object) -> "Outcome":
    from attnlab.experiments.progress import Terminal
    from attnlab.theory.claim import Claim
    from attnlab.theory.settle import settle

    assert isinstance(claim, Claim)
    if claim.trained:
        return settle(name, claim, Terminal(errors))
    with progress() as tick:
        tick(f"settling {name}")
        return settle(name, claim)


def _tabulate(outcomes: list["Outcome"], question: str | None = None) -> None:
    from attnlab.theory import sources
    from attnlab.theory.page import who_was_right
    from attnlab.theory.settle import deciding, said

    for key in sources.asked(question) if question is not None else []:
        screen.print(f"[cyan]{key}[/]: {sources.QUESTIONS[key]}", highlight=False)
    widest = max(len(outcome.name) for outcome in outcomes)
    for outcome in outcomes:
        evidence = outcome.evidence
        name = f"[bold]{outcome.name}[/]{' ' * (widest - len(outcome.name))}"
        right = who_was_right(outcome.plain()["answers"])
        screen.print(f"{name}  {_verdict(outcome)}  {right}", highlight=False, soft_wrap=True)
        line = f"  {evidence.kind}: {said(deciding(evidence.measures))}"
        screen.print(f"[dim]{escape(line)}[/]", highlight=False, soft_wrap=True)
        if question is not None:
            screen.print(f"  {escape(outcome.claim.about.statement)}", highlight=False)
    screen.print(
        "[dim]What the documents 000 to 004 conclude: ✓ right, ◐ incomplete, ✗ wrong; their words "
        "and reasons: attnlab claims NAME[/]",
        highlight=False,
    )
    wrong = [outcome.name for outcome in outcomes if not outcome.as_expected]
    line = f"{len(outcomes)} claims; " + (
        f"not as recorded: {', '.join(wrong)}" if wrong else "all as recorded"
    )
    screen.print(line, highlight=False)


def _explain(outcome: "Outcome") -> None:
    from attnlab.reports.report import Sample, paragraphs
    from attnlab.reports.report import Table as Numbers
    from attnlab.reports.terminal import grid
    from attnlab.theory.page import answers_table, verdict_text

    about, plain = outcome.claim.about, outcome.plain()
    screen.print(f"[bold]{outcome.name}[/]  {_verdict(outcome)}\n", highlight=False)
    screen.print(f"{escape(about.statement)}\n", highlight=False)
    screen.print(f"[cyan]{escape(about.formula)}[/]\n", highlight=False)
    if changes := _changes(outcome.claim):
        screen.print(f"[yellow]Run with {escape(changes)}.[/]\n", highlight=False)
    for part in [
        *paragraphs(about.derivation),
        verdict_text(plain, about),
        *paragraphs(about.remark),
    ]:
        screen.print(f"{escape(part)}\n", highlight=False)
    answers = [answers_table(plain["answers"])] if plain["answers"] else []
    for block in [*outcome.evidence.details, *answers]:
        if isinstance(block, Numbers):
            screen.print(grid(block))
        elif isinstance(block, Sample):
            screen.print(f"{escape(block.title)}\n{escape(block.text)}", highlight=False)
    if about.answers and not answers:
        screen.print(
            "What the documents answer is judged for the claim as it stands: "
            f"attnlab claims {outcome.name}",
            highlight=False,
            soft_wrap=True,
        )


def _changes(claim: "Claim") -> str:
    """The settings that are not those of the record."""
    return ", ".join(
        f"{one.name}={getattr(claim, one.name)} (recorded: {one.default})"
        for one in dataclasses.fields(claim)
        if getattr(claim, one.name) != one.default and one.name != "runs"
    )


def _verdict(outcome: "Outcome") -> str:
    mark = "" if outcome.as_expected else " (recorded: " + outcome.claim.about.expected + ")"
    return f"[{COLOURS[outcome.verdict]}]{outcome.verdict}[/]{mark}"


def _check_plot(path: Path, count: int) -> None:
    """Before anything is run: a path that cannot be written would lose the run."""
    if count != 1:
        raise ValueError(
            f"--plot draws one claim, not {count}; name it: attnlab claims copy --plot"
        )
    if path.suffix != ".svg":
        raise ValueError(f"--plot writes SVG; use {path.with_suffix('.svg')}")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written; name a file in a folder that is there")


def _draw(outcome: "Outcome", path: Path) -> None:
    from attnlab import files
    from attnlab.reports import plots, vector

    files.write_whole(path, vector.standalone(plots.svg(outcome.evidence.picture)).encode())


def _document(outcomes: list["Outcome"], folder: Path) -> None:
    import torch

    from attnlab import files
    from attnlab.theory.page import PICTURES, document, record
    from attnlab.training.loop import machine

    recorded = record(outcomes, machine(torch.device("cpu")))
    text, pictures = document(recorded)
    inside = folder / PICTURES
    inside.mkdir(parents=True, exist_ok=True)
    for old in inside.glob("*.svg"):
        old.unlink()
    for name, svg in pictures.items():
        files.write_whole(inside / name, svg.encode())
    files.write_whole(inside / "outcomes.json", files.as_json(recorded))
    files.write_whole(folder / "theory.md", text.encode())
