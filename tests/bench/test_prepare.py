"""attnlab bench prepare, small: made-up text is a function of its size, kills change nothing."""

import signal

import pytest
from rich.console import Console

from attnlab.bench.made_text import made_text, words
from attnlab.bench.prepare import PrepareBench, _command


def test_made_text_is_the_same_every_time_and_as_large_as_asked():
    for kind in ("jsonl", "text"):
        content = b"".join(made_text(300_000, seed=1, kind=kind))
        assert content == b"".join(made_text(300_000, seed=1, kind=kind))
        assert 300_000 <= len(content) < 302_000 and content.endswith(b"\n")
        assert content != b"".join(made_text(300_000, seed=2, kind=kind))
        long = b"".join(made_text(3_000_000, seed=1, kind=kind))
        assert long.startswith(content[:-10])
    assert len(set(words(0)[:100])) > 50 and len(words(0)[0]) < len(words(0)[-1])


def test_a_small_run_prepares_kills_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    bench = PrepareBench(
        bytes="300KB", killed="3MB", kills=1, sample="50KB", vocabulary=300, training=False
    )
    said = []
    report = bench.run(said.append)
    assert bench.passed(report) and "the package alone" in said
    assert report["killed"]["same_bytes"] and report["killed"]["kills"] <= 1
    assert not bench.passed({**report, "killed": {**report["killed"], "same_bytes": False}})
    assert not bench.passed({**report, "peer": {**report["peer"], "wrong": 1}})
    screen = Console(record=True, width=200)
    bench.show(report, screen)
    assert "the same bytes at the end" in screen.export_text()


def test_a_command_ends_with_what_waits_for_it():
    """Not when it likes to: a page never does."""
    with pytest.raises(ZeroDivisionError), _command("page", "--no-open", "--port", "0") as process:
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGKILL
