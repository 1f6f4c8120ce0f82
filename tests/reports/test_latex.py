"""LaTeX that sets text as it is: no command, no formula, no comment out of a name."""

import re

import pytest

from attnlab.reports.latex import as_latex
from attnlab.reports.report import Table


def row(cell, column="a"):
    text = as_latex(Table(title="t", columns=[column], rows=[[cell]]), "x")
    return text.split("\\midrule\n")[1].split("\\bottomrule")[0].strip().removesuffix(r" \\")


@pytest.mark.parametrize(
    ("text", "set_as"),
    [
        ("100% & #1 a_b $x$", r"100\% \& \#1 a\_b \$x\$"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("a~b^c", r"a\textasciitilde{}b\textasciicircum{}c"),
        ("<b>|", r"\textless{}b\textgreater{}\textbar{}"),
        ("[1] *", "{[}1{]} {*}"),
        ("a--b", "a-{}-b"),
        ("1 − 2 × 3 → –", r"1 $-$ 2 $\times$ 3 $\rightarrow$ --"),
        ("one\n\ntwo % three", r"one two \% three"),
        (-0.5, "$-$0.5000"),
        (1e-5, r"$1.000 \times 10^{-5}$"),
        (1234567, "1,234,567"),
        (None, "--"),
    ],
)
def test_text_is_set_as_it_is_written(text, set_as):
    assert row(text) == set_as


def test_a_table_is_booktabs_with_caption_label_and_aligned_numbers():
    table = Table(
        title="A & B",
        columns=["variant", "million operations a token", "why"],
        rows=[["a", 1.5, "w" * 60], ["b", None, ""]],
        note="50 %",
    )
    text = as_latex(table, "01-a-b")
    assert r"\usepackage{booktabs}" in text.splitlines()[0]
    for part in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption{A \& B}", r"50 \%"):
        assert text.count(part) == 1
    assert r"\label{tab:01-a-b}" in text and r"{lrp{0.3\linewidth}}" in text
    assert r"\begin{tabular}[b]{@{}r@{}}million \\ operations a \\ token\end{tabular}" in text
    assert text.count(r"\begin{") == text.count(r"\end{")


def test_every_row_has_as_many_cells_as_the_table_columns():
    names = ["&", "a & b", r"\\ & x"]
    text = as_latex(Table(title="t", columns=names, rows=[names, names]), "x")
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
    lines = [line for line in body.splitlines() if line.endswith(r" \\")]
    assert len(lines) == 3
    assert all(len(re.findall(r"(?<!\\)&", line)) == 2 for line in lines)
