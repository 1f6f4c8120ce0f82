"""Verbs on models: train them, list, evaluate and use what was trained."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table
from typer.core import TyperCommand

from attnlab.api.training import refuse_leak
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
from attnlab.cli.dry_run import DryRun, show_training
from attnlab.printable import one_line, printable
from attnlab.screen import discard_output, write_exactly

if TYPE_CHECKING:
    from attnlab.data.tokens import Tokenizer

Which = Annotated[
    str, typer.Argument(help="A run (path, name, or a preset for its newest) or a checkpoint.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


class TrainCommand(TyperCommand):
    """`--resume` alone means the newest run; Typer has no options with an optional value."""

    optional = ("--resume",)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("--resume"):
            raise ValueError("the preset comes first: attnlab train PRESET --resume …")
        return super().parse_args(ctx, _name_newest(args))


def _name_newest(words: list[str]) -> list[str]:
    """`--resume` and `--resume=` with the value that they stand for."""
    named = []
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        named.append("--resume" if word == "--resume=" else word)
        value_follows = word == "--resume" and "=" not in following and following[:1] != "-"
        if word in ("--resume", "--resume=") and not value_follows:
            named.append("newest")
    return named


@app.command(
    cls=TrainCommand,
    context_settings=SETTINGS,
    epilog="Example: attnlab train shakespeare-cpu data=input.txt steps=500 · "
    "attnlab train tiny --resume",
)
def train(
    preset: Annotated[str, typer.Argument(help="Where to begin: attnlab list presets.")],
    overrides: Overrides = None,
    file: Annotated[Path | None, typer.Option("--config", help="Settings as JSON.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="[auto|PATH]",
            help="Continue the newest unfinished run of the preset; auto: if one with these "
            "settings is there, else begin; PATH: that run or checkpoint.",
        ),
    ] = None,
    root: Runs = Path("runs"),
    dry_run: DryRun = False,
) -> None:
    """Pretrain or finetune a model; stop it at any time, resume with --resume.

    start=RUN begins with the weights of another run (finetuning). Under torchrun it uses all
    processes. data=PATH trains on another text. The settings of a preset: attnlab list preset.tiny.
    """
    if dry_run:
        if resume is not None:
            raise ValueError("--dry-run is for a training from its beginning; leave out --resume")
        from attnlab.training.launch import recipe_for

        recipe = recipe_for(preset, overrides or [], file)
        refuse_leak(recipe)
        show_training(recipe, root)
        return
    from attnlab.training import launch
    from attnlab.training.checkpoint import NotFinite
    from attnlab.training.report import Report, Terminal, duration

    try:
        run, result = launch.launch(
            preset,
            overrides or [],
            root=root,
            make_report=lambda world: Terminal(screen) if world.first else Report(),
            resume=resume,
            file=file,
            inspect=refuse_leak,
        )
    except NotFinite as error:
        said = f"[bold red]stopped:[/] {escape(one_line(error))}"
        errors.print(said, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    if result.ending == "SIGPIPE":
        discard_output()
    if int(os.environ.get("RANK", 0)) == 0:
        loss = result.best_loss
        best = "" if loss is None else f", best validation loss {loss:.4f}"
        screen.print(
            f"{result.ending} at step {result.step:,} after {duration(result.seconds)} "
            f"({duration(result.step_seconds)} in steps){best}",
            highlight=False,
            soft_wrap=True,
        )
        if not result.begun:
            screen.print("nothing was trained yet, so nothing is kept", highlight=False)
        elif result.ending.startswith("SIG"):
            say = f"attnlab train {preset} --runs {root} --resume {run.folder}"
            screen.print(f"resume with: {escape(say)}", highlight=False, soft_wrap=True)
        else:
            say = f"attnlab generate {run.folder} --prompt ..."
            screen.print(f"try it: {escape(say)}", highlight=False, soft_wrap=True)
    if result.ending.startswith("SIG"):
        raise typer.Exit(128 + signal.Signals[result.ending])


@app.command("runs", epilog="Example: attnlab runs --json")
def list_runs(root: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """List runs, newest first: how far they are, their losses, whether one is at work."""
    from attnlab.training.listing import summaries

    found = summaries(root)
    if as_json:
        print_json(found)
        return
    if not found:
        screen.print(f"no runs in {escape(str(root))}; begin one: attnlab train tiny")
    run = Column("run", overflow="fold")  # its name is what other verbs are given: never cut off
    table = Table(run, "state", "step", "loss", "validation", box=None, header_style="bold")
    for row in found:
        losses = ["–" if row[k] is None else f"{row[k]:.4f}" for k in ("loss", "best_loss")]
        step = f"{row['step']:,}/{row['steps']:,}"
        name = escape(printable(row["run"], keep=""))
        table.add_row(name, row["state"], step, *losses)
    if found:
        screen.print(table)
    for said in (line for row in found for line in row["damaged"]):
        errors.print(escape(said), highlight=False, soft_wrap=True)


@app.command(
    context_settings=SETTINGS, epilog="Example: attnlab evaluate runs/20260101-120000-tiny-abc123"
)
def evaluate(
    run: Which,
    overrides: Overrides = None,
    predict: Annotated[
        Path | None, typer.Option(help="Write the answers to the unlabelled questions there.")
    ] = None,
    root: Runs = Path("runs"),
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure a model on its whole validation split; if it answers questions, on those too.

    data=PATH evaluates on another text or folder.
    """
    from attnlab.training.examine import examine

    with progress() as tick:
        found = examine(run, overrides or [], root=root, device=device, predict=predict, tick=tick)
    if as_json:
        print_json(found)
        return
    _name_skipped(found.pop("skipped", []))
    for name, value in found.items():
        shown = f"{value:.4f}" if isinstance(value, float) else str(value)
        shown = "too large for a number" if value is None else shown
        line = f"{name.replace('_', ' '):20} {escape(shown)}"
        screen.print(line, highlight=False, soft_wrap=True)


@app.command(epilog='Example: attnlab generate RUN --prompt "The " --tokens 300 --temperature 0.8')
def generate(
    run: Which,
    prompt: Annotated[list[str], typer.Option(help="Text to continue; several form one batch.")],
    tokens: Annotated[int, typer.Option(help="How many tokens to add.")] = 200,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(help="Sample among the k likeliest tokens only.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample among the likeliest tokens that hold this probability."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    exact: Annotated[
        bool | None,
        typer.Option(
            help="Whether temperature 0 computes in float64.",
            show_default="as the model's size allows",
        ),
    ] = None,
    root: Runs = Path("runs"),
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Continue a prompt; at temperature 0, if exact, the text never depends on the batch."""
    from attnlab.generate import Sampling, warn_of_rounding
    from attnlab.training.saved import open_saved

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, exact=exact)
    saved = open_saved(run, root, device)
    _name_skipped(saved.broken)
    if told := warn_of_rounding(saved.model, sampling):
        errors.print(told, highlight=False, soft_wrap=True)
    shown = None
    if len(prompt) == 1 and not as_json:
        shown = Stream(saved.tokenizer, saved.tokenizer.prompt(prompt[0]).tolist())
    texts = saved.write(prompt, tokens=tokens, sampling=sampling, on_token=shown)
    if shown:
        shown.end()
    elif as_json:
        print_json([{"prompt": p, "text": t} for p, t in zip(prompt, texts, strict=True)])
    else:
        for before, text in zip(prompt, texts, strict=True):
            screen.rule(style="dim")
            write_exactly(f"{before}{text}\n")
    used = escape(printable(f"written by {saved.folder}", keep=""))
    errors.print(used, highlight=False, soft_wrap=True)


def _name_skipped(broken: list[str]) -> None:
    """Checkpoints that were passed over, and why."""
    for reason in broken:
        errors.print(f"skipped: {escape(reason)}", highlight=False, soft_wrap=True)


class Stream:
    """Prints a text as its tokens come; a character of several bytes is printed once whole."""

    def __init__(self, tokenizer: "Tokenizer", prompt: list[int]) -> None:
        self.tokenizer, self.tokens, self.shown = tokenizer, list(prompt), ""

    def __call__(self, row: int, token: int) -> None:
        self.tokens.append(token)
        self._show(last=False)

    def end(self) -> None:
        self._show(last=True)
        write_exactly("\n")

    def _show(self, last: bool) -> None:
        text = self.tokenizer.decode(self.tokens)
        if last or not text.endswith("\ufffd"):
            write_exactly(text[len(self.shown) :])
            self.shown = text
