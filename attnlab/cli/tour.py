"""The tour of `make lab`: the laboratory at work once, by the commands anybody would type."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.rule import Rule

from attnlab.cli.app import Runs, app, screen
from attnlab.cli.comparing import compare
from attnlab.cli.experiments import study
from attnlab.cli.theory import claims


@dataclass(frozen=True)
class Stop:
    title: str
    words: str  # the command, as a person types it
    seconds: int  # about, on two cores
    work: Callable[[Path], None]


STOPS = (
    Stop(
        "Theory: is it true that …?",
        "claims --quick",
        15,
        lambda root: claims(quick=True),
    ),
    Stop(
        "A study: does a model know what it has only read?",
        "study birthplaces scale=tiny",
        50,
        lambda root: study("birthplaces", ["scale=tiny"], root=root),
    ),
    Stop(
        "A fair fight: four ways to attend, same text, same batches, same budget",
        "compare lab",
        170,
        lambda root: compare(["lab"], root=root),
    ),
)


@app.command(epilog="Example: attnlab tour")
def tour(root: Runs = Path("runs")) -> None:
    """The laboratory at work once: claims settled, models trained and compared. `make lab`.

    Stop it at any time: started again, it resumes and repeats no training that is done.
    """
    minutes = round(sum(stop.seconds for stop in STOPS) / 60)
    screen.print(
        f"[bold]attnlab[/]: a tour of {len(STOPS)} stops, about {minutes} minutes on two cores; "
        "what is done already is not done again.",
        highlight=False,
    )
    began = time.monotonic()
    for number, stop in enumerate(STOPS, 1):
        screen.print()
        screen.print(Rule(f"[bold]{number}. {stop.title}[/]", align="left"))
        screen.print(f"[cyan]attnlab {stop.words}[/]   about {stop.seconds} s", highlight=False)
        stop.work(root)
    screen.print()
    screen.print(Rule("[bold]Now look at it, and touch it[/]", align="left"))
    screen.print(
        f"All of it took {time.monotonic() - began:.0f} s. The reports above are pages to read in "
        "a browser. Sliders, attention maps, curves and texts:",
        highlight=False,
    )
    at = "" if root == Path("runs") else f" --runs {root}"
    screen.print(f"  {_program()} page{at}", style="cyan", highlight=False, soft_wrap=True)


def _program() -> str:
    """As it was called: it may be in no folder that the shell looks into."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "attnlab" else "attnlab"
