"""Tables as LaTeX, for a paper: booktabs, captions, labels; text stays text."""

import re
import textwrap

from attnlab.reports.report import Table, format_cell, plain, plain_line

LONG = 40  # letters of a cell, which is then set in lines
HEAD = 14  # letters of a line in the head of a table
LETTERS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': "''",
    "[": "{[}",  # after the end of a row it would begin an option, as a star would
    "]": "{]}",
    "*": "{*}",
    "\u00a0": "~",
    "–": "--",
    "—": "---",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≠": r"$\neq$",
    "≈": r"$\approx$",
    "→": r"$\rightarrow$",
    "∞": r"$\infty$",
    "…": r"\dots{}",
    "²": r"$^2$",
    "³": r"$^3$",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
}


def as_latex(table: Table, label: str) -> str:
    """A floating table for `\\input`; the label is one of ours, of letters, digits and hyphens."""
    kinds = [_kind(table, column) for column in range(len(table.columns))]
    heads = [_head(name, kind) for name, kind in zip(table.columns, kinds, strict=True)]
    rows = [[_text(format_cell(cell)) for cell in row] for row in table.rows]
    lines = [" & ".join(row) + r" \\" for row in [heads, *rows]]
    lines.insert(1, r"\midrule")
    inside = "\n".join(f"    {line}" for line in lines)
    note = f"  \\par\\smallskip{{\\footnotesize {_text(table.note)}}}\n" if table.note else ""
    return (
        "% in the preamble: \\usepackage{booktabs}\n"
        "\\begin{table}\n  \\centering\n"
        f"  \\caption{{{_text(table.title)}}}\n  \\label{{tab:{label}}}\n"
        f"  \\begin{{tabular}}{{{''.join(kinds)}}}\n    \\toprule\n{inside}\n    \\bottomrule\n"
        f"  \\end{{tabular}}\n{note}\\end{{table}}\n"
    )


def _kind(table: Table, column: int) -> str:
    if table.numeric(column):
        return "r"
    long = any(len(format_cell(row[column])) > LONG for row in table.rows)
    return r"p{0.3\linewidth}" if long else "l"


def _head(name: str, kind: str) -> str:
    """In lines: the name of a column is often longer than what is in it."""
    lines = textwrap.wrap(plain(name), HEAD, break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2 or kind.startswith("p"):
        return _text(name)
    inside = r" \\ ".join(map(_text, lines))
    return rf"\begin{{tabular}}[b]{{@{{}}{kind}@{{}}}}{inside}\end{{tabular}}"


def _text(text: str) -> str:
    """What LaTeX sets as these very letters: no command, no formula, no comment."""
    line = plain_line(text)
    line = re.sub(r"(?<![\w)])-(?=\d)", "−", line)
    return _SPECIAL.sub(_escape, line)


_SPECIAL = re.compile(r"\b(\d+(?:\.\d+)?)e([+-]\d+)\b|-(?=-)|" + "|".join(map(re.escape, LETTERS)))


def _escape(found: re.Match[str]) -> str:
    if found[1]:
        return rf"${found[1]} \times 10^{{{int(found[2])}}}$"
    return LETTERS.get(found[0], "-{}")  # two hyphens would be a dash
