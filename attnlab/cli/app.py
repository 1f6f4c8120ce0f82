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
from attnlab.cli.screen import Screen, discard_output, never_fail_to_encode
from attnlab.files import FULL, CacheWarning, failed_write
from attnlab.printable import json_safe, printable
from attnlab.registry import OptionWarning

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

# `key=value` words, and `--key=value` for those who are used to dashes
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings as key=value.", metavar="KEY=VALUE")
]
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
        except (ValueError, OSError) as error:
            if handler.signal:
                raise
            _fail(one_line(error))
        except (MemoryError, RuntimeError) as error:
            if handler.signal or not _is_about_memory(error):
                raise
            _fail("memory ran out; use a smaller batch, context or model, or a larger accumulate")


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
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer has no name for its errors of usage
            raise
        if type(error).__name__ != "NoArgsIsHelpError":  # which has shown the help
            _fail(_usage(error))
        return 2


def _invoke(words: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("attnlab", words) as context:
            command.invoke(context)
    except typer.Exit as ending:
        return ending.exit_code
    return 0


def _is_output_lost() -> bool:
    """Whether what was printed cannot be written, as where a disk is full."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        return True
    return False


def _usage(error: Any) -> str:
    """What is wrong with the words of a command, and where to read how they go."""
    path = "attnlab" if error.ctx is None else error.ctx.command_path
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


def one_line(error: BaseException) -> str:
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


def print_json(value: Any) -> None:
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
