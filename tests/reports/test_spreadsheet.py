"""CSV that a program reads exactly and that a spreadsheet does not compute."""

import csv
import io

import numpy as np
import pytest
from reports.samples import SCRIPT, banded, plot

from attnlab.reports.report import Picture, Table
from attnlab.reports.spreadsheet import as_csv, numbers_of


def rows(table):
    return list(csv.reader(io.StringIO(as_csv(table))))


def one(cell):
    return rows(Table(title="t", columns=["a"], rows=[[cell], ["x"]]))[1][0]


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+cmd", "-cmd|' /C calc'!A0", "@SUM(1)", "  =1", "\t=1", "\r\n=1", "＝1", "+0.1 (x)"],
)
def test_text_that_would_be_computed_is_text(text):
    assert one(text) == "'" + " ".join(text.split())
    assert rows(Table(title="t", columns=[text], rows=[]))[0][0].startswith("'")


def test_a_semicolon_begins_no_formula_either():
    assert one("a;=1+1; @x;b") == "a;'=1+1; '@x;b"


@pytest.mark.parametrize("text", [SCRIPT, 'a "b", c', "-3.5", "+1e-5", "中文", "x=1", "a - b"])
def test_other_text_is_as_it_was(text):
    assert one(text) == text


@pytest.mark.parametrize("number", [-0.5, 1e-300, 1 / 3, 10**30, np.float64(-2.5)])
def test_numbers_keep_every_digit(number):
    assert float(one(number)) == float(number)


def test_nothing_is_empty_and_truth_is_a_word():
    assert rows(Table(title="t", columns=["a", "b"], rows=[[None, True]])) == [
        ["a", "b"],
        ["", "yes"],
    ]


def test_an_interval_becomes_three_columns_of_numbers():
    cells = ["+0.108 (-0.059 to +0.158)", "1,234.5", None, "\u22120.1 (\u22120.2 to 0.3)"]
    found = rows(Table(title="t", columns=["loss"], rows=[[cell] for cell in cells]))
    assert found == [
        ["loss", "loss, low", "loss, high"],
        ["0.108", "-0.059", "0.158"],
        ["1234.5", "", ""],
        ["", "", ""],
        ["-0.1", "-0.2", "0.3"],
    ]


def test_the_numbers_of_a_figure_are_all_of_its_points():
    found = rows(numbers_of(plot(banded("=a"))))
    assert found[0] == ["series", "step", "nats", "low", "high"]
    assert found[1] == ["'=a", "0", "4.0", "3.5", "4.5"] and len(found) == 5
    picture = Picture(title="t", x="key", y="query", rows=[[0.5, None, 1.0]])
    assert rows(numbers_of(picture)) == [["query \\ key", "0", "1", "2"], ["0", "0.5", "", "1.0"]]
