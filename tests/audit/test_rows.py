"""Rows of a sweep that a stranger wrote are refused in one line."""

import json
import os

import pytest

from attnlab.audit.errors import InputError
from attnlab.audit.rows import RowFile

ROW = {"line": "x.py:X", "family": "code", "verdict": "pass", "checks": [{}], "seconds": 1.5}


@pytest.mark.parametrize(
    "line",
    [
        "[" * 200_000,
        "9" * 100_000,
        '{"line": "x.py:X", "verdict": "pass"}',
        json.dumps({**ROW, "detail": 3}),
        json.dumps({**ROW, "checks": "all"}),
        json.dumps({**ROW, "seconds": float("nan")}),
        "[]",
    ],
    ids=["deep", "digits", "no family", "detail", "checks", "NaN", "list"],
)
def test_what_is_no_row_is_named_by_its_line(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n{line}\n")
    with pytest.raises(InputError, match="line 2 is no row of a sweep; name another file"):
        RowFile(path, True)


def test_rows_behind_a_link_are_read_and_a_fifo_is_not_waited_for(tmp_path):
    real, link, pipe = (tmp_path / name for name in ("real", "link", "pipe"))
    real.write_text(json.dumps(ROW) + "\n")
    link.symlink_to(real)
    assert RowFile(link, True).known == {"x.py:X": ROW}
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=r"cannot be read \(it is no plain file\)"):
        RowFile(pipe, True)
