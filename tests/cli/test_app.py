"""The command line as a person meets it: in a process of its own."""

import subprocess
import sys

import pytest


def run(*words):
    command = [sys.executable, "-m", "attnlab", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words", [["--help"], ["bench", "--help"], ["list"], ["list", "attention"]], ids=str
)
def test_help_and_lists_do_not_import_torch(words):
    code = (
        "import sys; from attnlab import cli\n"
        f"sys.argv = ['attnlab', *{words!r}]\n"
        "try: cli.main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_verb_has_help_with_an_example():
    for name in ("list", "bench", "claims", "tour"):
        assert f"Example: attnlab {name}" in run(name, "--help").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "windw"], "unknown bench 'windw'; did you mean 'window'?"),
        (["bench", "window", "lenghts=4"], "lenghts: no such setting; did you mean 'lengths'?"),
        (["bench", "window", "lengths=x"], "lengths is 'x'; it must be a whole number"),
        (["bench", "window", "--windows=0"], "windows has 0; use 1 or more"),
        (["bench", "window", "kv_heads=3"], "kv_heads is 3; it must divide heads = 8"),
        (["bench", "window", "--lengths"], "'--lengths' is not a setting; write lengths=value"),
        (["bench", "window", "device=cuda"], "PyTorch finds no CUDA device here; use device=cpu"),
    ],
)
def test_a_slip_is_one_line_and_exit_code_2(words, message):
    if "device=cuda" in words:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device")
    done = run(*words)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unknown_verb_is_exit_code_2():
    assert run("benhc").returncode == 2


def test_the_version():
    from attnlab import __version__

    assert run("--version").stdout.strip() == f"attnlab {__version__}"
