"""`--dry-run`: what a command would do, its size and its time; nothing is written."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from attnlab import config
from attnlab.cli.app import errors, progress, screen

if TYPE_CHECKING:
    from attnlab.experiments.experiment import Experiment
    from attnlab.experiments.forecast import Forecast
    from attnlab.training.recipe import Recipe

DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show what would run, its size and its time; write nothing."),
]


def show_training(recipe: "Recipe", root: Path) -> None:
    """The settings of a training, what it needs, and how long it would take."""
    from attnlab.experiments.forecast import forecast

    notes = list[str]()
    with progress() as tick:
        tick("taking a few steps")
        found = forecast(recipe, root, notes.append)
    for line in notes:
        errors.print(escape(line), highlight=False, soft_wrap=True)
    table = Table("setting", "value", box=None, header_style="bold")
    for field in config.describe(found.recipe, chosen=True):
        table.add_row(f"[cyan]{field.key}[/]", escape(field.default or "(empty)"))
    screen.print(table)
    for name, said in _lines(found).items():
        screen.print(f"[bold]{name:11}[/] {escape(said)}", highlight=False, soft_wrap=True)
    _end()


def _lines(found: "Forecast") -> Mapping[str, str]:
    from attnlab.training.report import duration, scaled

    recipe, opening = found.recipe, found.opening
    size = "cannot be read here" if found.memory is None else f"{_bytes(found.memory)} in a step"
    parts = f"{recipe.steps:,} steps of {recipe.batch:,} samples of {recipe.length:,} tokens"
    ready = opening.ready_seconds
    wait = f", after {duration(ready)} to get ready" if recipe.compile else ""
    return {
        "parameters": f"{opening.parameters:,}",
        "text": f"{found.text}: {found.samples:,} samples, {found.held_out:,} held out",
        "training": f"{parts}: {opening.tokens:,} tokens, {opening.epochs:.1f} epochs, "
        f"{scaled(opening.flops)}FLOP",
        "memory": f"{size}; {_bytes(found.checkpoint)} in a checkpoint",
        "time": f"about {duration(opening.expected_seconds)} on {found.device}{wait}: "
        f"{duration(opening.step_seconds)} a step, timed here just now (MFU "
        f"{100 * opening.reached:.2g} %); evaluations are an estimate",
    }


def show_experiment(name: str, experiment: "Experiment", *, root: Path, again: bool) -> None:
    """The parts of an experiment, and how long those that are not done would take."""
    from attnlab.experiments.forecast import parts_of
    from attnlab.training.report import duration

    with progress() as tick:
        tick("taking a few steps")
        parts = parts_of(name, experiment, root=root, again=again)
    table = Table("part", "about", box=None, header_style="bold")
    for part in parts:
        table.add_row(escape(part.name), "done" if part.done else duration(part.seconds))
    screen.print(table)
    left = [part.seconds for part in parts if not part.done]
    screen.print(
        f"{len(left)} of {len(parts)} parts to do, about {duration(sum(left))}: an estimate, from "
        "a few steps of each training",
        highlight=False,
        soft_wrap=True,
    )
    _end()


def show_variants(recipes: Mapping[str, Any], matched: str) -> None:
    """The variants of a comparison as they would be trained."""
    from attnlab.experiments.match import count

    table = Table("variant", "parameters", "steps", box=None, header_style="bold")
    for label, recipe in recipes.items():
        table.add_row(escape(label), f"{count(recipe.model):,}", f"{recipe.steps:,}")
    screen.print(table)
    screen.print(f"matched by {matched}", highlight=False)


def _bytes(count: float) -> str:
    from attnlab.training.report import scaled

    return f"{scaled(count)}B"


def _end() -> None:
    screen.print("nothing was written; the same without --dry-run begins", highlight=False)
