"""Attention weights as a small SVG in the colour of the text around it, with tokens on its axes.

No library draws: squares of one shade are one path, so a map of 256 tokens stays small.
"""

from collections.abc import Sequence
from html import escape

from attnlab.reports.report import plain

SHADES = 16
MOST_NAMED = 48  # tokens; more names would touch each other
LETTER = 0.62  # of the size of the letters: about their width


def drawing(
    rows: Sequence[Sequence[float]], title: str, *, size: int, tokens: Sequence[str] = ()
) -> str:
    """A figure: row i is how much token i attends to each token, the darker the more."""
    side = len(rows)
    paths: dict[int, list[str]] = {}
    for i, row in enumerate(rows):
        for j, weight in enumerate(row):
            shade = round(SHADES * min(max(weight, 0.0), 1.0))
            if shade:
                paths.setdefault(shade, []).append(f"M{j} {i}h1v1h-1z")
    squares = "".join(
        f'<path d="{"".join(places)}" fill="currentColor" fill-opacity="{shade / SHADES:.3g}"/>'
        for shade, places in sorted(paths.items())
    )
    names = [_shown(token) for token in tokens] if side <= MOST_NAMED else []
    letters = 0.7  # of a square
    room = max((len(name) for name in names), default=0) * LETTER * letters
    room = room + 0.4 if names else 0.0
    labels = "".join(_label(name, place, letters) for place, name in enumerate(names))
    label = escape(plain(f"attention weights, {title}"))
    return (
        f'<figure><figcaption>{escape(plain(title))}</figcaption><svg role="img" '
        f'aria-label="{label}" width="{size}" height="{size}" '
        f'viewBox="{-room:.3g} {-room:.3g} {side + room + 0.1:.4g} {side + room + 0.1:.4g}">'
        f'<rect width="{side}" height="{side}" fill="none" stroke="currentColor" '
        f'stroke-opacity="0.4" stroke-width="{side / size:.3g}"/>{squares}{labels}</svg></figure>'
    )


def _label(name: str, place: int, letters: float) -> str:
    """Of a row, and of the column of the same token."""
    middle = place + 0.5 + letters / 3
    said = f'font-size="{letters}" fill="currentColor" font-family="monospace" xml:space="preserve"'
    text = escape(name)
    return (
        f'<text x="-0.2" y="{middle:.3g}" text-anchor="end" {said}>{text}</text>'
        f'<text transform="translate({middle:.3g} -0.2) rotate(-90)" {said}>{text}</text>'
    )


def _shown(token: str) -> str:
    """A token in one short line; spaces are seen."""
    text = plain(token).replace("\n", "⏎").replace("\t", "→").replace(" ", "␣")
    return text if len(text) <= 12 else f"{text[:11]}…"
