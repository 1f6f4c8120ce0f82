"""Help as it is read on a terminal of 80 columns."""

import itertools

import pytest
import typer

from attnlab import cli

VERBS = sorted(typer.main.get_command(cli.app).commands)
WIDTH = 80


@pytest.fixture
def narrow(attnlab, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    return lambda *words: attnlab(*words)[1].splitlines()


def ragged(lines):
    """Lines of text that end though the first word of the next one had room."""
    found = []
    for one, other in itertools.pairwise(line.strip() for line in lines):
        text = one and other and not {one[0], other[0]} & set("╭│╰")
        if text and len(one) + 1 + len(other.split()[0]) <= WIDTH - 2:
            found.append(one)
    return found


def test_ragged_lines_are_seen():
    full = "start=RUN begins with the weights of another run (finetuning). Under torchrun"
    assert ragged([full, "it uses all", "processes. data=PATH trains"]) == ["it uses all"]
    assert ragged([full, "it uses all processes. data=PATH trains on another text", ""]) == []


@pytest.mark.parametrize("name", ["", *VERBS])
def test_no_line_of_help_is_ragged_or_too_long(narrow, name):
    lines = narrow(*([name] if name else []), "--help")
    assert not ragged(lines), ragged(lines)
    assert max(map(len, lines)) <= WIDTH
    assert any(line.strip().startswith(f"Example: attnlab {name or 'list'}") for line in lines)


def test_help_lists_what_continues_a_training_and_what_shows_it(narrow):
    options = [line.split()[1] for line in narrow("train", "--help") if line.startswith("│ --")]
    assert {"--resume", "--dry-run", "--runs", "--config"} <= set(options)
    assert any("--resume" in line for line in narrow("--help"))


def test_brackets_in_help_are_shown(narrow):
    shown = " ".join(" ".join(narrow("compare", "--help")).split())
    assert "[label=]preset[:key=value,…]" in shown.replace("│ │ ", "")
