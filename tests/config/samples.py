"""Settings with a field of every type, for the tests."""

from pathlib import Path
from typing import Any, Literal

from attnlab.config import choice, setting, settings


@settings
class Inner:
    rate: float = setting(0.5, low=0, below=1, about="a rate")
    steps: int = setting(3, about="steps")


@settings
class Outer:
    width: int = setting(8, low=1, about="a width")
    name: str = setting("x", about="a name")
    folder: Path = setting(Path("runs"), about="a folder")
    fast: bool = setting(False, about="a switch")
    mode: Literal["slow", "quick"] = setting("slow", about="a mode")
    limit: int | None = setting(None, high=100, none="no limit", about="a limit")
    window: tuple[int | None, ...] = setting(
        (None,),
        low=1,
        because="it counts the query's own key",
        none="all keys",
        about="keys a query attends to",
    )
    weights: tuple[float, ...] = setting((0.5, 0.5), above=0, high=1, count=2, about="two parts")
    families: tuple[str, ...] = setting((), choices=("cat", "dog"), about="families; empty: all")
    positions: Any = choice("positions", "rotary", about="a position scheme")
    inner: Inner = setting(Inner(), about="a group")
