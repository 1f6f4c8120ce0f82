"""Tables on the terminal: nothing is cut, numbers stand to the right."""

import io

import pytest
from rich.console import Console

from attnlab.reports.report import Table
from attnlab.reports.terminal import grid

WORDS = ["由于协方差矩阵对称", "a-name-that-is-longer-than-its-column", "[bold]as written[/]"]


def shown(table, width):
    screen = Console(width=width, file=io.StringIO())
    screen.print(grid(table))
    return screen.file.getvalue()


@pytest.mark.parametrize("width", [30, 80, 200])
def test_no_letter_is_lost_however_narrow_the_screen(width):
    text = shown(Table(title="", columns=["one", "two", "three"], rows=[WORDS]), width)
    assert "…" not in text
    for word in WORDS:
        assert all(text.count(letter) >= word.count(letter) for letter in set(word) - {" "})


def test_numbers_stand_to_the_right():
    text = shown(Table(title="sizes", columns=["what", "size"], rows=[["a", 5], ["b", 12345]]), 40)
    assert [line.rstrip()[-1] for line in text.splitlines() if line.strip()][-2:] == ["5", "5"]
    ends = [len(line.rstrip()) for line in text.splitlines()[-2:]]
    assert ends[0] == ends[1]
