"""The README's examples show what the commands print.

Those that train take minutes: they are there, but are not run.
"""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnlab.cli.app import app

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLE = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)  # a command, and its output

RUN = ("claims", "audit", "diff")  # in seconds
EXAMPLES = [
    (shlex.split(command, comments=True)[1:], shown)
    for language, block in BLOCK.findall(TEXT)
    if not language
    for command, shown in EXAMPLE.findall(block)
]
QUICK = {words[0]: (words, shown) for words, shown in EXAMPLES if words[0] in RUN}


def test_each_of_the_four_uses_has_an_example():
    assert {words[0] for words, shown in EXAMPLES if shown} >= {
        *("claims", "compare", "audit", "train", "generate")
    }


@pytest.mark.parametrize("verb", RUN)
def test_an_example_shows_what_the_command_prints(verb, monkeypatch):
    """Every piece between two "…", in this order; where lines break does not count."""
    monkeypatch.chdir(ROOT)  # examples/leaky.py
    words, shown = QUICK[verb]
    printed = " ".join(CliRunner().invoke(app, words, catch_exceptions=False).output.split())
    for piece in [" ".join(piece.split()) for piece in shown.split("…")]:
        assert piece in printed
        printed = printed[printed.index(piece) + len(piece) :]
