"""The command line as a person meets it: in a process of its own."""

import json
import subprocess
import sys

import pytest

from attnlab import WINDOWS


def run(*words):
    command = [sys.executable, "-m", "attnlab", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["bench", "--help"],
        ["list"],
        ["list", "attention"],
        ["runs"],
        ["runs", "--json"],
    ],
    ids=str,
)
def test_help_lists_and_runs_do_not_import_torch(words, tmp_path):
    """`attnlab runs` answers while torch would still be loading."""
    run = tmp_path / "runs" / "20260101-120000-tiny-abc123"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"steps": 3}))
    (run / "metrics.jsonl").write_text('{"step": 2, "loss": 3.25}\n')
    (run / "eval.jsonl").write_text('{"step": 2, "loss": 3.5}\n')
    code = (
        "import os, sys; from attnlab import cli\n"
        f"os.chdir({str(tmp_path)!r}); sys.argv = ['attnlab', *{words!r}]\n"
        "try: cli.main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if words[0] == "runs":
        assert done.stdout.index("tiny-abc123") < done.stdout.index("stopped")
        assert all(said in done.stdout for said in ("3.25", "3.5"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "windw"], "unknown bench 'windw'; did you mean 'window'?"),
        (["bench", "window", "lenghts=4"], "lenghts: no such setting; did you mean 'lengths'?"),
        (["bench", "window", "lengths=x"], "lengths is 'x'; it must be a whole number"),
        (["bench", "window", "--windows=0"], "windows has 0; use 1 or more"),
        (["bench", "window", "kv_heads=3"], "kv_heads is 3; it must divide heads = 8"),
        (["bench", "window", "--lengths"], "--lengths has no value; write lengths=VALUE"),
        (["bench", "window", "device=cuda"], "PyTorch finds no CUDA device here; use device=cpu"),
    ],
)
def test_a_slip_is_one_line_and_exit_code_2(attnlab, words, message):
    if "device=cuda" in words:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device")
    code, _, said = attnlab(*words)
    assert code == 2
    assert message in said and "Traceback" not in said
    assert len(said.strip().splitlines()) == 1


def test_so_it_is_in_a_process_of_its_own():
    done = run("bench", "window", "lenghts=4")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr == "error: lenghts: no such setting; did you mean 'lengths'?\n"


def test_an_unknown_verb_is_exit_code_2():
    assert run("benhc").returncode == 2


def test_the_version():
    from attnlab import __version__

    assert run("--version").stdout.strip() == f"attnlab {__version__}"


@pytest.mark.parametrize("words", [[], ["--version"], ["train", "tiny"]], ids=str)
def test_on_windows_one_line_says_where_it_runs(words):
    """There is no fcntl there, and no signal of a closed terminal."""
    code = (
        "import signal, sys; sys.platform = 'win32'; sys.modules['fcntl'] = None\n"
        "del signal.SIGHUP\n"
        "from attnlab.__main__ import main\n"
        f"sys.argv = ['attnlab', *{words!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"error: {WINDOWS}\n" and done.stdout == ""


def test_without_fcntl_an_import_says_where_it_runs():
    code = "import sys; sys.modules['fcntl'] = None; import attnlab; import attnlab.training.runs"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == f"ImportError: {WINDOWS}"
