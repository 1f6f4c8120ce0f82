"""The verb that opens the laboratory in a browser: attnlab page."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from attnlab import stop
from attnlab.cli.app import Runs, app, progress, screen

if TYPE_CHECKING:
    from attnlab.page.guard import Pass
    from attnlab.page.server import Server

NO_BROWSER = "no browser could be opened; open the address"


@app.command(epilog="Example: attnlab page · attnlab page --no-open --port 8000 --runs runs")
def page(
    port: Annotated[int, typer.Option(help="The next free one is taken; 0: any.")] = 8765,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = True,
    start: Annotated[
        bool,
        typer.Option("--start/--no-start", help="Let the page start trainings and comparisons."),
    ] = True,
    texts: Annotated[
        list[Path] | None,
        typer.Option("--text", help="A text to train on that the page offers; may be repeated."),
    ] = None,
    root: Runs = Path("runs"),
) -> None:
    """Look at the laboratory and touch it in a browser: claims, attention, runs, texts, audits.

    Models are those of runs; of a folder of transformers, attnlab import FOLDER makes one.

    It answers on this machine only, and only to who has the printed address. Ctrl-C ends it. On
    another machine, use --no-open there, forward the port (ssh -L 8765:127.0.0.1:8765 HOST) and
    open the printed address here.
    """
    with progress() as tick:
        tick("starting")
        from attnlab.page.server import ServerSettings, serve

    @contextmanager
    def say(server: "Server") -> Iterator[None]:
        taken = server.known.port
        if port not in (0, taken):
            screen.print(f"port {port} is in use; this is {taken}", highlight=False)
        address = server.known.address
        screen.print(f"the page: {escape(address)}", highlight=False, soft_wrap=True)
        with ExitStack() as kept:
            hint = "Ctrl-C ends it"
            if browser:
                opened = _open_browser(server.known, kept)
                hint = f"{hint}; if no page opens, open the address" if opened else NO_BROWSER
            screen.print(hint, highlight=False)
            yield

    try:
        settings = ServerSettings(root=root, port=port, start=start, texts=tuple(texts or ()))
        serve(settings, say)
    except KeyboardInterrupt:  # not raised where SIGINT was ignored, as under nohup
        if stop.received() != signal.SIGINT:
            raise
    screen.print("closed")


def _open_browser(known: "Pass", kept: ExitStack) -> bool:
    """On a file, kept until it was used: anybody can read the command line of a browser."""
    import webbrowser

    from attnlab.page.redirect import redirect_file

    try:
        return webbrowser.open(kept.enter_context(redirect_file(known)).as_uri())
    except (webbrowser.Error, OSError):
        return False
