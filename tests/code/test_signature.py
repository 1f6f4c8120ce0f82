"""What a person's code takes, read and not run."""

import pytest

from attnlab.code.signature import Taken, taken

CODE = """
raise SystemExit("run")
from elsewhere import Imported
class Mine:
    class Inner:
        def __init__(self, width, *, slope=0.1, kind="a"): pass
    def __init__(self, heads, /, slope=1 / 8): pass
class Inherits(Mine): pass
def scores(q, k, v, *, slope=0.5, on=True): pass
"""


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("Mine", [Taken("heads", ""), Taken("slope", "1 / 8")]),
        ("Mine.Inner", [Taken("width", ""), Taken("slope", "0.1"), Taken("kind", "'a'")]),
        ("scores", [Taken("slope", "0.5"), Taken("on", "True")]),
        ("Inherits", []),
        ("Imported", []),
        ("Absent", []),
    ],
)
def test_parameters_are_read_in_the_source(tmp_path, name, names):
    (tmp_path / "mine.py").write_text(CODE)
    assert taken(f"{tmp_path / 'mine.py'}:{name}") == names


def test_what_cannot_be_read_shows_nothing(tmp_path):
    (tmp_path / "mine.py").write_text("class Mine(:")
    assert taken(f"{tmp_path / 'mine.py'}:Mine") == []
    assert taken("absent.py:Mine") == [] and taken("torch.nn:Linear") == []
