"""Verbs that find something out: benchmarks, checks, studies, claims."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from attnlab import config, registry, stop
from attnlab.checks import lines
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
from attnlab.cli.dry_run import DryRun, show_experiment
from attnlab.cli.places import Address, On, Processes
from attnlab.cluster import at
from attnlab.stop import Stopped

if TYPE_CHECKING:
    from attnlab.experiments.experiment import Experiment, Record
    from attnlab.experiments.pool import Pool


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab bench window lengths=16384 windows=256 --json",
)
def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark: attnlab list benches.")],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed and memory against peers, in one run, after checking the numbers.

    The settings of a benchmark: attnlab list bench.window.
    """
    settings = config.override(registry.load("bench", name)(), overrides or [])
    with (
        _telling_how_far(as_json, lambda report: settings.show(report, screen)),
        progress() as tick,
    ):
        report = settings.run(tick)
    if as_json:
        print_json(report)
    else:
        settings.show(report, screen)
    if not settings.passed(report):
        raise typer.Exit(1)


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab check kill kills=200 · attnlab check corruption trials=1000",
)
def check(
    name: Annotated[str, typer.Argument(help="Which check: attnlab list checks.")],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Prove a promise the hard way, with controls that must fail; exit code 1 if it is broken.

    The settings of a check: attnlab list check.kill.
    """
    settings = config.override(registry.load("check", name)(), overrides or [])
    with _telling_how_far(as_json, _list), progress() as tick:
        report = settings.run(tick)
    if as_json:
        print_json(report)
    elif hasattr(settings, "show"):
        settings.show(report, screen)
    else:
        _list(report)
    if not report["passed"]:
        raise typer.Exit(1)


def _list(report: Mapping[str, Any]) -> None:
    for line in lines(report):
        screen.print(escape(line), highlight=False, soft_wrap=True)


@contextmanager
def _telling_how_far(as_json: bool, show: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Who stops a check sees what was found until then, and never that it has passed."""
    try:
        yield
    except Stopped as stopped:
        found = {name: value for name, value in stopped.found.items() if name != "passed"}
        if as_json:
            print_json({"stopped_after": stopped.done, **found, "passed": False})
        else:
            if found:
                show(found)
            screen.print(f"stopped after {stopped.done}: no verdict", highlight=False)
        raise


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab study birthplaces scale=tiny · "
    "attnlab study birthplaces data=FOLDER recipe=best",
)
def study(
    name: Annotated[str, typer.Argument(help="Which study: attnlab list studies.")],
    overrides: Overrides = None,
    on: On = "local",
    address: Address = None,
    processes: Processes = None,
    root: Runs = Path("runs"),
    again: Annotated[bool, typer.Option("--again", help="Do all of it anew.")] = False,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """A whole experiment: trains, measures, and writes report.html, report.md and results.json.

    Stop it at any time: the same command resumes it, and repeats no finished job. It trains one
    model after another with all cores; with --processes or --on ray several at a time, each on one.
    The settings of a study: attnlab list study.window.
    """
    cluster = at(on, address)
    settings = config.override(registry.load("study", name)(), overrides or [])
    name = registry.find("study", name).name
    if dry_run:
        show_experiment(name, settings, root=root, again=again)
        return
    words = ["study", name, *(overrides or []), *(cluster.words if cluster else [])]
    words += ["--processes", str(processes)] if processes else []
    from attnlab.experiments.places import pool_of

    # a study trains here, with all cores, unless it is asked otherwise
    pool = pool_of(cluster, processes) if cluster or processes else None
    record = carry_out_here(name, settings, words, root=root, again=again, pool=pool)
    if as_json:
        print_json(record.results)
    else:
        show(record)


def carry_out_here(
    name: str,
    experiment: "Experiment",
    words: list[str],
    *,
    root: Path,
    again: bool,
    pool: "Pool | None" = None,
) -> "Record":
    """Run an experiment with its progress on the terminal; stopped, it says how to resume.

    The report names the words of its own command, though it may be a part of a tour.
    """
    from attnlab.experiments.experiment import carry_out
    from attnlab.experiments.pool import Interrupted
    from attnlab.experiments.progress import Terminal

    try:
        return carry_out(
            name,
            experiment,
            root=root,
            progress=Terminal(errors),
            again=again,
            command=words,
            pool=pool,
        )
    except Interrupted as error:
        stop.end(signal.Signals[error.signal], RESUMES)
    except KeyboardInterrupt as error:
        error.add_note(RESUMES)
        raise


RESUMES = "the same command resumes it"


def show(record: "Record", *tables: Table) -> None:
    """The question, its answer, and where to read more."""
    screen.print(f"[bold]{escape(record.report.question)}[/]", highlight=False, soft_wrap=True)
    for table in tables:
        screen.print(table)
    page = escape(str(record.folder / "report.html"))
    for line in (escape(record.report.answer), f"read {page}"):
        screen.print(line, highlight=False, soft_wrap=True)
