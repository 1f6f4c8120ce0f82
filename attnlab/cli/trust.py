"""The verb trust: code that runs may use, though this machine has not trained with it."""

from typing import Annotated

import typer
from rich.markup import escape

from attnlab.cli.app import app, screen


@app.command(epilog="Example: attnlab trust mine.py:Mine")
def trust(
    code: Annotated[str, typer.Argument(help="file.py:Name or package.module:Name.")],
) -> None:
    """Let runs that come from elsewhere use this code, as it is now; read it first.

    Code that you train with, as in model.attention=mine.py:Mine, needs no such word.
    """
    from attnlab.code import consent
    from attnlab.code.fingerprint import source_files
    from attnlab.code.places import place_of

    path, colon, _ = code.rpartition(":")
    if not colon:
        raise ValueError(f"{code} names no code; write file.py:Name or package.module:Name")
    place_of(path)  # says what is wrong with it
    consent.remember(code)
    found = source_files(code)
    where = f", {len(found)} file{'s' if len(found) > 1 else ''}" if found else ""
    screen.print(f"runs may use {escape(code)} as it is now{where}", highlight=False)
