"""The command line, called in this process."""

import sys

import pytest

from attnlab import cli


@pytest.fixture
def attnlab(monkeypatch, capsys, tmp_path):
    """Runs a command in an empty folder: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["attnlab", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run
