"""A certificate as a notebook shows it: a few lines of HTML that follow the notebook's colours.

Text and squares are drawn in the colour of the text around them, so they can be read on a light
page and on a dark one; nothing is loaded, and no library draws.
"""

from html import escape

from attnlab.audit.certificate import FAINT, powers
from attnlab.audit.contract import Certificate
from attnlab.audit.table import rows

# on white and on black the contrast is 4.5 or more
COLOURS = {"pass": "#198754", "fail": "#e03131", "not applicable": "inherit"}
UNCLEAR = "#aa6500"
SQUARE = 8  # pixels
SHADES = 3  # powers of ten that look alike


def html(certificate: Certificate) -> str:
    verdict = _coloured(certificate.verdict)
    parts = [f"<strong>{escape(certificate.target)}</strong>: {verdict}"]
    declared = ", ".join(map(certificate.written, certificate.contract.declared()))
    parts.append(f" <span style='opacity:.7'>declared: {escape(declared) or 'nothing'}</span>")
    if certificate.shortfall:
        parts.append(f"<div>{escape(certificate.shortfall)}</div>")
    lines = []
    for row in sorted(rows(certificate.findings), key=lambda row: row.verdict != "fail"):
        dim = " style='opacity:.6'" if row.verdict == "not applicable" else ""
        cell = "<td style='text-align:left;vertical-align:top;padding:.1em .8em .1em 0'>"
        lines.append(
            f"<tr{dim}>{cell}{escape(row.names)}</td>{cell}{_coloured(row.verdict)}</td>"
            f"{cell}{escape(row.detail)}</td></tr>"
        )
    table = f"<table style='border:0;color:inherit;background:none'>{''.join(lines)}</table>"
    return (
        f"<div class='attnlab-certificate'>{''.join(parts)}{table}{_influence(certificate)}</div>"
    )


def _coloured(verdict: str) -> str:
    colour = COLOURS.get(verdict, UNCLEAR)
    return f"<span style='color:{colour};white-space:nowrap'>{verdict}</span>"


def _influence(certificate: Certificate) -> str:
    """Squares [t, t]: the darker, the more output i moves with input j; red where it must not."""
    if not certificate.influence:
        return ""
    allowed, side = certificate.allowed(), len(certificate.influence)
    paths: dict[tuple[bool, int], list[str]] = {}
    for i, row in enumerate(powers(certificate.influence)):
        for j, size in enumerate(row):
            if size > FAINT:
                wrong = allowed is not None and not allowed[i][j]
                shade = int(-size) // SHADES
                paths.setdefault((wrong, shade), []).append(f"M{j} {i}h1v1h-1z")
    shapes = "".join(
        f"<path d='{''.join(squares)}' fill='{COLOURS['fail'] if wrong else 'currentColor'}' "
        f"fill-opacity='{0.85 if wrong else 0.8 - 0.25 * shade:.2f}'/>"
        for (wrong, shade), squares in sorted(paths.items())
    )
    label = "influence: row i is output i, column j is input j; red: moves and must not"
    return (
        f"<figure style='margin:.5em 0'><svg role='img' aria-label='{label}' "
        f"width='{side * SQUARE}' height='{side * SQUARE}' viewBox='0 0 {side} {side}' "
        f"style='outline:1px solid currentColor'>{shapes}</svg>"
        f"<figcaption style='opacity:.7'>{label}</figcaption></figure>"
    )
