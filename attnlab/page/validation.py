"""Values out of a request, each of its type and within its bounds, or a ValueError that says so."""

import math
from collections.abc import Mapping
from typing import Any


def text(body: Mapping[str, Any], key: str, most: int, least: int = 1) -> str:
    found = body.get(key)
    if not isinstance(found, str):
        raise ValueError(f"{key} is {shorten(found)}; it must be a text")
    if not least <= len(found) <= most:
        raise ValueError(f"{key} has {len(found):,} characters; use {least} to {most:,}")
    return found


def whole(
    body: Mapping[str, Any], key: str, low: int, high: int, default: int | None = None
) -> int:
    found = body.get(key, default)
    if type(found) is not int or not low <= found <= high:
        raise ValueError(f"{key} is {shorten(found)}; use a whole number from {low} to {high}")
    return found


def number(body: Mapping[str, Any], key: str, low: float, high: float, default: float) -> float:
    found = body.get(key, default)
    if type(found) not in (int, float) or not low <= found <= high or not math.isfinite(found):
        raise ValueError(f"{key} is {shorten(found)}; use a number from {low:g} to {high:g}")
    return float(found)


def shorten(value: object) -> str:
    """A value as it is named in an error; of a long one the beginning will do."""
    try:
        shown = repr(value)
    except ValueError:  # a whole number of more digits than Python writes
        shown = "a very large number"
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
