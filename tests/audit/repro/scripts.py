"""What tests of scripts share: to run one, and to see whether it tells broken code from mended."""

import runpy
import sys

import pytest
import torch


def ends(script, file, monkeypatch):
    """The exit code of a script, run in this process on a file."""
    monkeypatch.setattr(sys, "argv", [str(script), *([str(file)] if file else [])])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with torch.random.fork_rng(), pytest.raises(SystemExit) as stop:
        runpy.run_path(str(script), run_name="__main__")
    monkeypatch.undo()
    return stop.value.code
