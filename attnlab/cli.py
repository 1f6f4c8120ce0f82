"""The command line: verbs that parse, call and print. Torch is imported inside a verb only."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

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
    "presets": ["preset"],
    "corpora": ["corpus", "tokenizer", "objective"],
    "optimisers": ["optimiser"],
    "studies": ["study"],
    "checks": ["check"],
    "benches": ["bench"],
}


def main() -> None:
    """The entry point: what a person can correct is one line and exit code 2."""
    # Before torch is loaded: its threads otherwise wait for each other in a long busy loop, and
    # another process on the same cores makes a training step 50 times slower (docs/notes.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        app()
    except (ValueError, OSError) as error:
        _fail(_one_line(error))
    except (MemoryError, RuntimeError) as error:
        if not _is_about_memory(error):
            raise
        _fail("memory ran out; use a smaller batch, context or model, or a larger accumulate")
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(130)


def _fail(reason: str) -> NoReturn:
    errors.print(f"[bold red]error:[/] {reason}", highlight=False, soft_wrap=True)
    sys.exit(2)


def _one_line(error: BaseException) -> str:
    """What an error says; of a very long value the beginning and the end will do."""
    text = " ".join(str(error).split())
    return escape(text if len(text) <= 600 else f"{text[:300]} … {text[-200:]}")


def _is_about_memory(error: BaseException) -> bool:
    """PyTorch has a class for CUDA; on the CPU there is only the text."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "can't allocate memory" in str(error)


def _version(show: bool) -> bool:
    if show:
        print(f"attnlab {__version__}")
        raise typer.Exit
    return show


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command("list", epilog="Example: attnlab list positions")
def list_options(
    what: Annotated[str, typer.Argument(help=f"One of {', '.join(GROUPS)}.")] = "all",
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
    name: Annotated[str, typer.Argument(help="Which benchmark: window or train.")],
    words: Words = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed and memory against peers, in one run, after checking the numbers.

    Settings of window: lengths, windows (lists), batch, heads, kv_heads, width, dtype, device,
    turns, patience (seconds a candidate may take), dense_up_to (length), flex.
    Settings of train: data (a path), losses to reach besides the peer's, seed, full.
    """
    settings = config.override(registry.load("bench", name)(), words or [])
    with progress() as tick:
        report = settings.run(tick)
    if as_json:
        _print_json(report)
    else:
        settings.show(report, screen)
    if not settings.passed(report):
        raise typer.Exit(1)


Runs = Annotated[Path, typer.Option("--runs", help="The folder of run folders.")]
Which = Annotated[
    str, typer.Argument(help="A run (path, name, or a preset for its newest) or a checkpoint.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab train shakespeare-cpu data=input.txt steps=500 · "
    "attnlab train tiny --resume",
)
def train(
    preset: Annotated[str, typer.Argument(help="Where to begin: attnlab list presets.")],
    words: Words = None,
    file: Annotated[Path | None, typer.Option("--config", help="Settings as JSON.")] = None,
    root: Runs = Path("runs"),
) -> None:
    """Pretrain or finetune a model; stop it at any time, go on with --resume.

    --resume goes on with the newest unfinished run of the preset; --resume auto does so if one
    with these settings is there, else begins; --resume PATH takes that run or checkpoint.
    start=RUN begins with the weights of another run (finetuning). Under torchrun it uses all
    processes. Settings: data=PATH, steps, batch, context, seed, optimiser.rate, model.width …
    """
    from attnlab.training import launch
    from attnlab.training.loop import NotFinite
    from attnlab.training.report import Report, Terminal, duration

    if preset.startswith("-"):
        raise ValueError("the preset comes first: attnlab train PRESET --resume …")
    resume, rest = _resume_word(words or [])
    try:
        run, result = launch.launch(
            preset,
            rest,
            root=root,
            make_report=lambda world: Terminal(screen) if world.first else Report(),
            resume=resume,
            file=file,
        )
    except NotFinite as error:
        errors.print(f"[bold red]stopped:[/] {_one_line(error)}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    if int(os.environ.get("RANK", 0)) == 0:
        loss = result.best_loss
        best = "" if loss is None else f", best validation loss {loss:.4f}"
        screen.print(
            f"{result.ending} at step {result.step:,} after {duration(result.seconds)} "
            f"({duration(result.step_seconds)} in steps){best}",
            highlight=False,
            soft_wrap=True,
        )
        if result.ending.startswith("SIG"):
            say = f"attnlab train {preset} --runs {root} --resume {run.folder}"
            screen.print(f"go on with: {escape(say)}", highlight=False, soft_wrap=True)
        else:
            say = f"attnlab generate {run.folder} --prompt ..."
            screen.print(f"try it: {escape(say)}", highlight=False, soft_wrap=True)
    if result.ending.startswith("SIG"):
        raise typer.Exit(128 + signal.Signals[result.ending])


def _resume_word(words: list[str]) -> tuple[str | None, list[str]]:
    """`--resume`, `--resume auto`, `--resume PATH` or `--resume=…` among the other words."""
    rest, resume = [], None
    remaining = iter(words)
    for word in remaining:
        if word == "--resume":
            following = next(remaining, None)
            resume = "newest" if following is None or "=" in following else following
            rest += [following] if following is not None and "=" in following else []
        elif word.startswith("--resume="):
            resume = word.partition("=")[2] or "newest"
        else:
            rest.append(word)
    return resume, rest


@app.command("runs", epilog="Example: attnlab runs --json")
def list_runs(root: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """List runs, newest first: how far they are, their losses, whether one is at work."""
    from attnlab.training.listing import summaries

    found = summaries(root)
    if as_json:
        _print_json(found)
        return
    if not found:
        screen.print(f"no runs in {escape(str(root))}; begin one: attnlab train tiny")
    run = Column("run", overflow="fold")  # its name is what other verbs are given: never cut off
    table = Table(run, "state", "step", "loss", "validation", box=None, header_style="bold")
    for row in found:
        losses = ["–" if row[k] is None else f"{row[k]:.4f}" for k in ("loss", "best_loss")]
        step = f"{row['step']:,}/{row['steps']:,}"
        table.add_row(escape(row["run"]), row["state"], step, *losses)
    if found:
        screen.print(table)


@app.command(
    context_settings=SETTINGS, epilog="Example: attnlab evaluate runs/20260101-120000-tiny-abc123"
)
def evaluate(
    run: Which,
    words: Words = None,
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
        found = examine(run, words or [], root=root, device=device, predict=predict, tick=tick)
    if as_json:
        _print_json(found)
        return
    _name_skipped(found.pop("skipped", []))
    for name, value in found.items():
        shown = f"{value:.4f}" if isinstance(value, float) else str(value)
        line = f"{name.replace('_', ' '):20} {escape(shown)}"
        screen.print(line, highlight=False, soft_wrap=True)


@app.command(epilog='Example: attnlab generate RUN --prompt "The " --tokens 300 --temperature 0.8')
def generate(
    run: Which,
    prompt: Annotated[list[str], typer.Option(help="Where to begin; several go on in one batch.")],
    tokens: Annotated[int, typer.Option(help="How many tokens to add.")] = 200,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Only the so many likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Only those that reach this part.")] = None,
    seed: int = 0,
    root: Runs = Path("runs"),
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Let a model go on from a prompt; at temperature 0 its answer never depends on the batch."""
    from attnlab.generate import Sampling, generate
    from attnlab.training.saved import open_saved

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    saved = open_saved(run, root, device)
    _name_skipped(saved.broken)
    prompts = [saved.tokenizer.encode(text).tolist() for text in prompt]
    shown = Stream(saved.tokenizer, prompts[0]) if len(prompts) == 1 and not as_json else None
    new = generate(saved.model, prompts, tokens=tokens, sampling=sampling, on_token=shown)
    texts = [saved.tokenizer.decode(answer) for answer in new]
    if shown:
        shown.end()
    elif as_json:
        _print_json([{"prompt": p, "text": t} for p, t in zip(prompt, texts, strict=True)])
    else:
        for before, text in zip(prompt, texts, strict=True):
            screen.rule(style="dim")
            screen.print(f"[bold]{escape(before)}[/]{escape(text)}", highlight=False)


def _name_skipped(broken: list[str]) -> None:
    """Checkpoints that were passed over, and why."""
    for reason in broken:
        errors.print(f"skipped: {escape(reason)}", highlight=False, soft_wrap=True)


class Stream:
    """Prints a text as its tokens come; a character of several bytes is printed once whole."""

    def __init__(self, tokenizer: Any, prompt: list[int]) -> None:
        self.tokenizer, self.tokens, self.shown = tokenizer, list(prompt), ""

    def __call__(self, row: int, token: int) -> None:
        self.tokens.append(token)
        self._show(last=False)

    def end(self) -> None:
        self._show(last=True)
        print(flush=True)

    def _show(self, last: bool) -> None:
        text = self.tokenizer.decode(self.tokens)
        if last or not text.endswith("\ufffd"):
            print(text[len(self.shown) :], end="", flush=True)
            self.shown = text


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
        _print_json(report)
    else:
        for key, value in report.items():
            screen.print(f"{key.replace('_', ' '):24} {escape(str(value))}", highlight=False)
    if not report["passed"]:
        raise typer.Exit(1)


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
        _print_json(done.results)
        return
    screen.print(f"[bold]{escape(done.report.question)}[/]", highlight=False, soft_wrap=True)
    screen.print(escape(done.report.answer), highlight=False, soft_wrap=True)
    screen.print(
        f"read {escape(str(done.folder / 'report.html'))}", highlight=False, soft_wrap=True
    )


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
