"""No text of a stranger reaches a terminal as a command, and no name stops a verb."""

import io
import json
import os
import subprocess
import sys

import pytest
from rich.table import Table
from rich.text import Text

from attnlab.screen import Screen

EVIL = "\x1b]0;evil\x07\x9b2J\u202e"
SHOWN = "\\x1b]0;evil\\x07\\x9b2J\\u202e"


@pytest.fixture
def terminal():
    screen = Screen()
    screen.file, screen._force_terminal, screen._color_system = io.StringIO(), True, None
    return screen


@pytest.mark.parametrize("make", [str, Text, lambda text: f"[bold]{text}[/]"])
def test_text_of_a_stranger_is_written_out(terminal, make):
    terminal.print(make(f"a {EVIL} b"), soft_wrap=True)
    shown = terminal.file.getvalue()
    assert "a \\x1b]0;evil" in shown and "\\x9b2J\\u202e b" in shown  # a Text drops bells itself
    assert not any(letter in shown for letter in "\x1b\x07\x9b\u202e")


def test_a_cell_of_a_table_has_room_for_what_is_written_out(terminal):
    table = Table("run", box=None)
    table.add_row(EVIL)
    terminal.print(table)
    assert SHOWN in terminal.file.getvalue() and "\x1b]" not in terminal.file.getvalue()


def test_a_word_between_colons_is_no_picture(terminal):
    terminal.print("smoke :x: test")
    assert ":x:" in terminal.file.getvalue()


def streamed(to_terminal):
    """What arrives when a model writes to a terminal, or to a file."""
    code = (
        "from attnlab.cli.models import Stream\n"
        f"class Letters:\n    def decode(self, tokens): return ({EVIL!r} + 'é\\n')[:len(tokens)]\n"
        f"stream = Stream(Letters(), [])\nfor n in range({len(EVIL) + 2}): stream(0, n)\n"
        "stream.end()"
    )
    read, write = os.openpty() if to_terminal else os.pipe()
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    subprocess.run([sys.executable, "-c", code], stdout=write, env=environment, check=True)
    os.set_blocking(read, False)
    found = os.read(read, 4096).decode()
    for end in (read, write):
        os.close(end)
    return found


def test_a_model_that_writes_escape_sequences_commands_no_terminal_and_a_file_gets_them_exactly():
    assert streamed(to_terminal=True) == f"{SHOWN}é\r\n\r\n"
    assert streamed(to_terminal=False) == f"{EVIL}é\n\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_runs_of_any_name_are_listed(tmp_path, encoding):
    names = [b"plain", b"esc\x1b]0;evil\x07", b"two\nlines", b"latin-\xe9", "注意".encode()]
    for name in names:
        folder = tmp_path / "runs" / os.fsdecode(name)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    environment = {**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "attnlab", "runs"]
    plain, as_json = (
        subprocess.run(
            [*command, *more], cwd=tmp_path, env=environment, capture_output=True, check=True
        ).stdout
        for more in ([], ["--json"])
    )
    assert {row["run"] for row in json.loads(as_json)} == {os.fsdecode(name) for name in names}
    assert b"esc\\x1b]0;evil\\x07" in plain and b"two\\x0alines" in plain
    assert b"latin-\\xe9" in plain and b"\x1b" not in plain + as_json
