"""The command line: verbs that parse, call and print. Torch is imported inside a verb only."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnlab import __version__, config, registry

app = typer.Typer(
    name="attnlab",
    help="A laboratory for attention in language models.",
    epilog="Example: attnlab list attention",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
screen = Console()
errors = Console(stderr=True)

# `key=value` words, and `--key=value` for those who are used to dashes
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
Words = Annotated[
    list[str] | None, typer.Argument(help="Settings as key=value.", metavar="KEY=VALUE")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

# what `attnlab list` calls a group, and the registry kinds in it
GROUPS = {
    "attention": ["attention", "score", "cache"],
    "positions": ["positions"],
    "models": ["model"],
    "benches": ["bench"],
}


def main() -> None:
    """The entry point: what a person can correct is one line and exit code 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        errors.print(f"[bold red]error:[/] {_one_line(error)}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(130)


def _one_line(error: BaseException) -> str:
    return escape(" ".join(str(error).split()))


def _version(show: bool) -> None:
    if show:
        print(f"attnlab {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command("list", epilog="Example: attnlab list positions")
def list_options(
    what: Annotated[str, typer.Argument(help="attention, positions, models or benches")] = "all",
    as_json: AsJson = False,
) -> None:
    """Show the options that can be chosen by name."""
    if what != "all" and what not in GROUPS:
        raise ValueError(f"nothing called {what!r} to list; {registry.suggest(what, list(GROUPS))}")
    kinds = [kind for group in ([what] if what != "all" else GROUPS) for kind in GROUPS[group]]
    found = [option for kind in kinds for option in registry.options(kind)]
    if as_json:
        _print_json([vars(option) for option in found])
        return
    table = Table("setting", "summary", box=None, header_style="bold")
    for option in found:
        table.add_row(f"{option.kind}=[cyan]{option.name}[/]", escape(option.summary))
    screen.print(table)


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab bench window lengths=16384 windows=256 --json",
)
def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark: window.")],
    words: Words = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed and memory against peers, in one run, after checking the numbers.

    Settings of window: lengths, windows (lists), batch, heads, kv_heads, width, dtype, device,
    turns, patience (seconds a candidate may take), dense_up_to (length), flex.
    """
    settings = config.override(registry.load("bench", name)(), words or [])
    from attnlab.bench import window

    with progress() as tick:
        report = window.run(settings, tick)
    if as_json:
        _print_json(report)
    else:
        from attnlab.bench import table

        table.show(report, screen)
    if any(row["wrong"] for row in report["rows"]):
        raise typer.Exit(1)


@app.command(epilog="Example: attnlab tour")
def tour() -> None:
    """A quick look at what the laboratory has: the main job of `make lab`."""
    from attnlab.tour import walk

    if not walk(screen):
        raise typer.Exit(1)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on the terminal that says what is being done; nothing when it is not a terminal."""
    with errors.status("starting") as status:
        yield lambda text: status.update(text)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
