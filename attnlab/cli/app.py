"""The command line's entry: errors and warnings as one line, and the options that verbs share."""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape

from attnlab import __version__, stop
from attnlab.cli.words import Verb, alike, hint
from attnlab.config.hints import ConfigError
from attnlab.errors import MENDABLE, explain
from attnlab.files import FULL, CacheWarning, failed_write
from attnlab.printable import json_safe, printable
from attnlab.registry import OptionWarning
from attnlab.screen import Screen, discard_output, never_fail_to_encode

app = typer.Typer(
    name="attnlab",
    help="A laboratory for attention in language models.",
    epilog="Example: attnlab list attention",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
screen = Screen()
errors = Screen(stderr=True)
_usual_format = warnings.formatwarning

# of a verb whose words are settings, in either form (words.py)
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings, as key=value or --key value.", metavar="KEY=VALUE"),
]
# the base of typer's errors of usage, which has no public name
USAGE: type[Exception] = [
    one for one in typer.BadParameter.__mro__ if hasattr(one, "format_message")
][-1]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Runs = Annotated[Path, typer.Option("--runs", help="The folder of run folders.")]


def main() -> None:
    """The entry point: what a person can correct is one line and exit code 2."""
    # Before torch is loaded: its threads otherwise wait for each other in a long busy loop, and
    # another process on the same cores makes a training step 50 times slower (docs/notes.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    warnings.formatwarning = _format_warning
    never_fail_to_encode()
    with stop.ending() as handler:
        try:
            sys.exit(_run(sys.argv[1:]))
        except MENDABLE as error:
            line = None if handler.signal else explain(error)
            if line is None:
                raise
            _fail(escape(line))


def _run(words: list[str]) -> int:
    """The exit code of a command."""
    try:
        code = _invoke(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # while an error can still be said
        return code
    except BrokenPipeError:
        discard_output()
        return 1
    except OSError as error:
        lost = _is_output_lost()
        if lost:
            discard_output()
        bare = error.filename is None and error.strerror == os.strerror(error.errno or 0)
        if bare and (lost or error.errno in FULL):  # all other errors of writing name their file
            said = f"the output could not be written: {error.strerror}"
            raise OSError(error.errno, said) from None
        raise
    except USAGE as error:
        if type(error).__name__ != "NoArgsIsHelpError":  # which has shown the help
            _fail(_usage(error, words))
        return 2


def _invoke(words: list[str]) -> int:
    command: Any = typer.main.get_command(app)
    for one in command.commands.values():
        one.help = unwrap(one.help or "")
    verb = (
        Verb.of(command.commands[words[0]]) if words[:1] and words[0] in command.commands else None
    )
    try:
        given = words if verb is None else [words[0], *alike(words[1:], verb)]
        with command.make_context("attnlab", given) as context:
            command.invoke(context)
    except typer.Exit as ending:
        return ending.exit_code
    except ConfigError as error:
        raise error if verb is None else hint(error, words, verb) from None
    return 0


def unwrap(text: str) -> str:
    """A paragraph as one line: a terminal breaks it where it is full."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _is_output_lost() -> bool:
    """Whether what was printed cannot be written, as where a disk is full."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        return True
    return False


def _usage(error: Any, words: list[str]) -> str:
    """What is wrong with the words of a command, and where to read how they go."""
    verbs: Any = typer.main.get_command(app)
    verb = [word for word in words[:1] if word in verbs.commands]
    path = " ".join(["attnlab", *verb])
    said = error.format_message().rstrip(".")
    see = " See" if said.endswith("?") else "; see"
    return escape(f"{said[:1].lower()}{said[1:]}{see} {path} --help")


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Where in our code it was found helps nobody: one line."""
    if issubclass(category, OptionWarning | CacheWarning):
        return printable(f"warning: {message}\n")
    return printable(_usual_format(message, category, filename, lineno, line))


def _fail(reason: str) -> NoReturn:
    with suppress(OSError):  # stderr may be full as well
        errors.print(f"[bold red]error:[/] {reason}", highlight=False, soft_wrap=True)
    sys.exit(2)


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


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on the terminal that says what is being done; nothing when it is not a terminal.

    Whoever stops it is told how far it was.
    """
    last = ""

    def tick(text: str) -> None:
        nonlocal last
        last = text
        status.update(escape(text))

    try:
        with errors.status("starting") as status:
            yield tick
    except KeyboardInterrupt as stopped:
        if last:
            stopped.add_note(f"it was at: {printable(last, keep='')}")
        raise


def print_json(value: object) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, allow_nan=False)
    shown = json_safe(text)
    try:
        print(shown, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise failed_write(Path("the output"), len(shown) + 1, error) from None
