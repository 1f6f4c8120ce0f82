"""A small trained run, and the command line beside the API."""

import json
import sys

import pytest

import attnlab
from attnlab import cli

TEXT = "the quick brown fox jumps over the lazy dog. " * 30
SMALL = ["model.width=16", "model.depth=1", "model.context=16", "model.attention.heads=2"]
SMALL += ["batch=4", "device=cpu"]


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A folder with a text, and the words of a small model of it."""
    folder = tmp_path_factory.mktemp("api")
    (folder / "text.txt").write_text(TEXT)
    return folder, [f"data={folder / 'text.txt'}", *SMALL]


@pytest.fixture(scope="session")
def training(small):
    folder, words = small
    return attnlab.train(
        "shakespeare-cpu", *words, steps=5, evaluate_every=2, save_every=2, runs=folder / "runs"
    )


@pytest.fixture
def command(monkeypatch, capsys):
    """What a command prints as JSON, or the line that it fails with."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["attnlab", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        if stop.value.code == 2:
            return " ".join(err.split()).removeprefix("error: ")
        return json.loads(out) if "--json" in words else out

    return run
