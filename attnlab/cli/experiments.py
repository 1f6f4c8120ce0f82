"""Verbs that find something out: benchmarks, checks, studies, claims."""

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from attnlab import config, registry
from attnlab.cli.app import (
    SETTINGS,
    AsJson,
    Runs,
    Words,
    app,
    errors,
    print_json,
    progress,
    screen,
)


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab bench window lengths=16384 windows=256 --json",
)
def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark: attnlab list benches.")],
    words: Words = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed and memory against peers, in one run, after checking the numbers.

    Settings of window: lengths, windows (lists), batch, heads, kv_heads, width, dtype, device,
    turns, patience (seconds a candidate may take), dense_up_to (length), flex.
    Settings of decode: keys, window, batch, heads, kv_heads, width, calls (a turn), turns, threads.
    Settings of train: data (a path), losses to reach besides the peer's, seed, full.
    """
    settings = config.override(registry.load("bench", name)(), words or [])
    with progress() as tick:
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
    words: Words = None,
    as_json: AsJson = False,
) -> None:
    """Prove a promise the hard way, with controls that must fail; exit code 1 if it is broken.

    Settings as key=value or --key value.
    """
    settings = config.override(registry.load("check", name)(), _paired(words or []))
    with progress() as tick:
        report = settings.run(tick)
    if as_json:
        print_json(report)
    elif hasattr(settings, "show"):
        settings.show(report, screen)
    else:
        for line in _lines(report):
            screen.print(escape(line), highlight=False, soft_wrap=True)
    if not report["passed"]:
        raise typer.Exit(1)


def _lines(report: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A report as a table: what there are several of, one below the other."""
    widest = max((len(key) for key in report), default=0)
    for key, value in report.items():
        name = f"{indent}{key.replace('_', ' '):{widest}}"
        if isinstance(value, dict) and value:
            yield name.rstrip()
            yield from _lines(value, f"{indent}  ")
        elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
            yield name.rstrip()
            for one in value:
                yield from _lines(one, f"{indent}  ")
        elif isinstance(value, list | dict):
            yield f"{name}  {', '.join(map(str, value)) or 'none'}"
        else:
            yield f"{name}  {f'{value:.4g}' if isinstance(value, float) else value}"


def _paired(words: list[str]) -> list[str]:
    """`--kills 200` as `kills=200`."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab study birthplaces scale=tiny · "
    "attnlab study birthplaces data=FOLDER recipe=best",
)
def study(
    name: Annotated[str, typer.Argument(help="Which study: attnlab list studies.")],
    words: Words = None,
    root: Runs = Path("runs"),
    again: Annotated[bool, typer.Option("--again", help="Do all of it anew.")] = False,
    as_json: AsJson = False,
) -> None:
    """A whole experiment: trains, measures, and writes report.html, report.md and results.json.

    Stop it at any time: the same command goes on where it was, and repeats nothing that is done.
    Settings: scale, seeds, data=PATH and others of the study's own.
    """
    settings = config.override(registry.load("study", name)(), words or [])
    from attnlab.studies.desk import Interrupted
    from attnlab.studies.progress import Terminal
    from attnlab.studies.study import carry_out

    name = registry.find("study", name).name
    try:
        done = carry_out(name, settings, root=root, progress=Terminal(errors), again=again)
    except Interrupted as error:
        errors.print(f"{error}; the same command goes on from there", highlight=False)
        raise typer.Exit(128 + signal.Signals[error.signal]) from None
    if as_json:
        print_json(done.results)
        return
    screen.print(f"[bold]{escape(done.report.question)}[/]", highlight=False, soft_wrap=True)
    screen.print(escape(done.report.answer), highlight=False, soft_wrap=True)
    screen.print(
        f"read {escape(str(done.folder / 'report.html'))}", highlight=False, soft_wrap=True
    )
