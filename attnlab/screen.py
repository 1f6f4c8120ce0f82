"""The screen: everything that is printed goes through here, and no text on it commands a terminal.

Colours and cursor moves are our own. Text that comes from a model, a file or a folder's name is
shown with its control characters written out, on a terminal and in a log alike.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from attnlab.printable import COMMANDS, printable


class Screen(Console):
    def __init__(self, *, stderr: bool = False, terminal: bool | None = None) -> None:
        """`terminal`: whether it is one; None finds out, but takes a notebook for one."""
        # `:x:` in a text is that, and no picture; a notebook gets lines, not HTML
        super().__init__(stderr=stderr, emoji=False, force_jupyter=False, force_terminal=terminal)

    def render_str(self, text: str, **options: Any) -> Text:
        """Before it is measured, so that tables have room for what is written out."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What was no string but a Text, as the lines of progress are; our own moves stay."""
        for segment in super().render(renderable, options):
            if segment.control is None and COMMANDS.search(segment.text):
                yield Segment(printable(segment.text), segment.style)
            else:
                yield segment


def write_exactly(text: str) -> None:
    """Text of a model: to a file or another program as it is, to a terminal made harmless."""
    shown = printable(text) if sys.stdout.isatty() else text
    print(shown, end="", flush=True)


def discard_output() -> None:
    """Nobody reads any more: neither what is still printed nor what Python flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def never_fail_to_encode() -> None:
    """A letter that the terminal or the locale does not have is written out, as in `\\xe9`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
