"""A report refuses what it could not show, and shows numbers as a person reads them."""

import math

import numpy as np
import pytest
from reports.samples import line, plot

from attnlab.reports.report import (
    Picture,
    Report,
    Section,
    Series,
    Table,
    format_cell,
    paragraphs,
    plain,
)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Table(title="t", columns=[], rows=[]), "'t' has no columns"),
        (lambda: Table(title="t", columns=["a", "b"], rows=[[1, 2], [1]]), "row 2 has 1 cells"),
        (lambda: Table(title="t", columns=["a"], rows=[[math.nan]]), "column 'a' holds nan"),
        (lambda: line("s", y=[1.0, 2.0]), "'s': y has 2 values for 4 of x"),
        (lambda: line("s", low=[1.0], high=[2.0] * 4), "'s': low has 1 values"),
        (lambda: line("s", low=[1.0] * 4), "one end of an interval"),
        (lambda: line("s", low=[None] * 4, high=[2.0] * 4), "half interval"),
        (lambda: line("s", low=[3.0] * 4, high=[2.0] * 4), "from 3.0 to 2.0; low comes first"),
        (lambda: line("s", y=[1.0, 2.0, 3.0, math.inf]), "y holds inf; give a finite number"),
        (lambda: line("s", y=[1.0, 2.0, 3.0, 1e101]), "goes up to 1e\\+100"),
        (lambda: plot(line(), line("b", x=["1", "2", "3", "4"])), "names in one series"),
        (lambda: plot(line(x=list("abcd")), log_x=True), "log_x needs numbers"),
        (lambda: plot(line(), log_x=True, kind="bars"), "log_x needs numbers"),
        (lambda: plot(line("s"), log_x=True), "log_x, and series 's' holds 0"),
        (lambda: plot(line("s", y=[1, 2, 0.0, 3]), log_y=True), "log_y, and series 's' holds 0.0"),
        (lambda: plot(line(low=[0.0] * 4, high=[9.0] * 4), log_y=True), "numbers above 0"),
        (lambda: plot(line(x=[1, 1, 2, 3]), kind="bars"), "two bars at one x"),
        (lambda: plot(line(x=range(201), y=[1] * 201), kind="bars"), "201 bars; up to 200"),
        (lambda: Picture(title="p", rows=[], x="", y=""), "'p' is empty"),
        (lambda: Picture(title="p", rows=[[1.0], []], x="", y=""), "row 2 has 0 numbers"),
        (lambda: Picture(title="p", rows=[[math.nan]], x="", y=""), "row 1 holds nan"),
        (lambda: Section(heading=" "), "no heading"),
        (lambda: Report(title="", question="q", answer="a"), "title is empty"),
        (lambda: Report(title="t", question="q", answer="a", seconds=-1.0), "below 0"),
        (lambda: Report(title="t", question="q", answer="a", seconds=math.nan), "seconds holds"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_rule(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Series(name="s", x=[1, "a"], y=[1, 2]), "all numbers or all names"),
        (lambda: Series(name="s", x=[1, None], y=[1, 2]), "all numbers or all names"),
        (lambda: Series(name="s", x=[1, 2], y=[1, "a"]), "y holds 'a'; give a number"),
        (lambda: Table(title="t", columns=["a"], rows=[[[1]]]), "holds \\[1\\]"),
        (lambda: plot(line(), kind="pie"), "'pie'; use lines, points or bars"),
    ],
)
def test_what_is_of_another_type_is_refused_with_the_rule(make, rule, unchecked_shapes):
    with pytest.raises(ValueError, match=rule):
        make()


def test_nothing_is_a_number_that_is_not_there():
    series = line(y=[1.0, None, 2.0, None], low=[None] * 4, high=[None] * 4)
    assert plot(series, log_y=True).series == [series]
    assert not line(x=[], y=[]).categories, "and no points go with names as with numbers"
    assert plot(line(x=[], y=[]), line(x=list("abcd")))


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"),
        ("0.123456", "0.123456"),
        (1234567, "1,234,567"),
        (10**400, f"{10**400:,}"),
        (True, "yes"),
        (0.0, "0"),
        (-0.0, "0"),
        (0.123456, "0.1235"),
        (1.5, "1.500"),
        (-12.3456, "-12.35"),
        (999.96, "1,000"),
        (1234.5, "1,234"),
        (9999.7, "10,000"),
        (1234567.8, "1,234,568"),
        (0.00001234, "1.234e-05"),
        (1.5e15, "1.500e+15"),
    ],
)
def test_a_cell_has_four_digits_and_never_a_rounded_whole_part(cell, text):
    assert format_cell(cell) == text


def test_numbers_of_numpy_are_numbers(unchecked_shapes):
    table = Table(title="t", columns=["a", "b"], rows=[[np.int64(1234), np.float32(0.5)]])
    assert [format_cell(cell) for cell in table.rows[0]] == ["1,234", "0.5000"]
    with pytest.raises(ValueError, match="holds inf"):
        Table(title="t", columns=["a"], rows=[[np.float32("inf")]])


def test_a_column_is_numeric_when_each_of_its_cells_is():
    table = Table(
        title="t",
        columns=["names", "numbers", "mixed", "empty"],
        rows=[["a", 1, 1, None], ["b", None, "–", None]],
    )
    assert [table.numeric(column) for column in range(4)] == [False, True, False, False]


def test_any_generated_text_becomes_one_that_a_page_can_hold():
    assert plain("a\x00\x07\x1b\ud800\uffff\x9fb\tc\r\nd\re中") == "a␀␇␛���b\tc\nd\ne中"


def test_a_blank_line_parts_paragraphs():
    assert paragraphs("\none\ntwo\n \nthree\n\n\n\n") == ["one two", "three"]
    assert paragraphs("") == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.25, "0.2 s"),
        (59.96, "1 min 0 s"),
        (754.2, "12 min 34 s"),
        (3600 * 2 + 301, "2 h 5 min"),
    ],
)
def test_the_time_is_told_in_words(seconds, text):
    assert Report(title="t", question="q", answer="a", seconds=seconds).took == text
