"""The verb trust: code that runs may use, though this machine has not trained with it."""

from typing import Annotated

import typer
from rich.markup import escape

from attnlab import registry
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

    path, colon, name = code.rpartition(":")
    if not colon:
        raise ValueError(f"{code} names no code; write file.py:Name or package.module:Name")
    names = place_of(path).names()  # says what is wrong with the place
    if names is not None and name.partition(".")[0] not in names:
        near = registry.suggest(name, names) if names else "nothing is defined there"
        raise ValueError(f"{path} has no {name}; {near}")
    consent.remember(code)
    found = source_files(code)
    where = f", {len(found)} file{'s' if len(found) > 1 else ''}" if found else ""
    screen.print(f"runs may use {escape(code)} as it is now{where}", highlight=False)
