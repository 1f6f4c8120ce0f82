"""The audit of many targets: rows as JSON or a table, and one line for every slip."""

import json
from pathlib import Path

import pytest

MODULE = """
from torch import nn

class Tall(nn.Linear):
    def __init__(self, width=4):
        super().__init__(width, width)
"""
LIST = "code.py:Tall\ncode.py:Tall width=5\ncode.py:Missing\n"


@pytest.fixture
def listed(attnlab):
    Path("code.py").write_text(MODULE)
    Path("list.txt").write_text(LIST)
    Path("bytes.txt").write_bytes(b"\xff\xfe")
    return attnlab


def test_rows_come_as_a_table_then_from_the_file_as_json(listed):
    code, out, err = listed("audit", "@list.txt", "--out", "rows.jsonl")
    first, second = out.splitlines()
    assert code == 2 and first.split() == ["code", "2", "pass,", "1", "incomplete"]
    assert second.startswith("code.py:Missing") and "incomplete" in second
    assert len(err.splitlines()) == 3 and "/3 code.py:Tall width=5: pass" in err
    assert "3/3 " in err and "2 pass, 1 incomplete; 0 s left" in err
    code, out, err = listed("audit", "@list.txt", "--out", "rows.jsonl", "--resume", "--json")
    assert code == 2 and len(err.splitlines()) == 1 and "3/3 code.py:Missing: incomplete" in err
    rows = json.loads(out)
    assert [row["line"] for row in rows] == LIST.splitlines()
    assert [row["verdict"] for row in rows] == ["pass", "pass", "incomplete"]
    assert Path("rows.jsonl").read_text().count("\n") == 4  # what was not audited is tried again


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["code.py:Tall", "--out", "rows.jsonl"], "--out and --resume are for many targets"),
        (["@list.txt", "--resume"], "--resume needs the file to go on with; add --out rows.jsonl"),
        (["@list.txt", "--out", "no/such/rows"], "there is no folder no/such; make it first"),
        (["@list.txt", "--out", "/proc/rows"], "--out /proc/rows cannot be written"),
        (["@list.txt", "--html", "x.html"], "--html is for one target; many have --json and"),
        (["@list.txt", "--repro", "x"], "--repro is for one target; many have --json and --out"),
        (["@list.txt", "--sarif", "x"], "--sarif is for one target; many have --json and --out"),
        (["@list.txt", "width=3"], "is for one target; write it into list.txt"),
        (["@none.txt"], "none.txt cannot be read"),
        (["@bytes.txt"], "bytes.txt is no text in UTF-8; write a target a line into it"),
    ],
)
def test_a_slip_is_answered_with_a_line(listed, words, reason):
    code, out, err = listed("audit", *words)
    assert (code, out) == (2, "") and reason in err and err.count("\n") == 1
