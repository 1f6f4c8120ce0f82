"""The verb that opens the laboratory in a browser: attnlab page."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from attnlab.cli.app import Runs, app, progress, screen

if TYPE_CHECKING:
    from attnlab.page.server import Server


@app.command(epilog="Example: attnlab page · attnlab page --no-open --port 8000 --runs runs")
def page(
    port: Annotated[int, typer.Option(help="The next free one is taken; 0: any.")] = 8765,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = True,
    root: Runs = Path("runs"),
) -> None:
    """Look at the laboratory and touch it in a browser: claims, attention, runs, texts, audits.

    It answers on this machine only, and only to who has the printed address. Ctrl-C ends it.
    """
    with progress() as tick:
        tick("starting")
        from attnlab.page.server import ServerSettings, serve

    def say(server: "Server") -> None:
        taken = server.known.port
        if port not in (0, taken):
            screen.print(f"port {port} is in use; this is {taken}", highlight=False)
        address = server.known.address
        screen.print(f"the page: {escape(address)}", highlight=False, soft_wrap=True)
        opened = browser and _open_browser(address)
        hint = "Ctrl-C ends it" if opened or not browser else "no browser found; open the address"
        screen.print(hint, highlight=False)

    with suppress(KeyboardInterrupt):  # not raised where SIGINT was ignored, as under nohup
        serve(ServerSettings(root=root, port=port), say)
    screen.print("closed")


def _open_browser(address: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
