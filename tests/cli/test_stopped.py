"""Ctrl-C and `kill`, at several moments: one line, the right exit code, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
# A check with all that can be left behind: a child process, a folder, a half-done count.
SLOW = """
import subprocess, sys, tempfile, time
from attnlab.stop import stoppable
from attnlab.config import setting, settings

@settings
class Slow:
    things: int = setting(7, low=1, about="things to do")

    def run(self, tick):
        with tempfile.TemporaryDirectory(prefix="slow-"), stoppable(self._done, self._found):
            wait = "import time; time.sleep(600)"
            child = subprocess.Popen([sys.executable, "-c", wait], start_new_session=True)
            try:
                tick("thing 4")
                print("ready", child.pid, flush=True)
                time.sleep(600)
            finally:
                child.kill()
                child.wait()

    def _done(self):
        return f"3 of {self.things} things"

    def _found(self):
        return {"things": 3, "passed": True}
"""
# A check that imports something while it has a folder; the import ends when the test says so.
FOLDER = """
import tempfile
from attnlab.config import settings

@settings
class Folder:
    def run(self, tick):
        with tempfile.TemporaryDirectory(prefix="folder-"):
            import waiting
            while True: pass
"""
WAITING = """
import pathlib, time
print("ready", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""
IMPORTED = """
import time
print("ready", flush=True)
time.sleep(600)
"""
MAIN = """
import sys
from attnlab import registry
for name in ("slow:Slow", "folder:Folder", "imported:Check"):
    made = registry.Option("check", name.partition(":")[0], name, "a check of the tests")
    registry.register(made)
sys.argv = ["attnlab", *sys.argv[1:]]
from attnlab.__main__ import main
main()
"""


@pytest.fixture
def begin(tmp_path):
    """Starts a command in a session of its own, as in a terminal; its temporary files are here."""
    modules = {"slow": SLOW, "folder": FOLDER, "waiting": WAITING, "imported": IMPORTED}
    for name, source in modules.items():
        (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / "temporary").mkdir()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path / "temporary")}
    begun = []

    def run(*words):
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tmp_path,
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield run
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def stop(process, number, group):
    (os.killpg if group else os.kill)(process.pid, number)
    return process.communicate(timeout=120)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("group", [True, False], ids=["as a terminal", "as kill"])
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_at_work_a_signal_leaves_no_child_no_folder_and_no_traceback(
    begin, tmp_path, number, group
):
    process = begin("check", "slow", "things=8")
    child = int(process.stdout.readline().split()[1])
    out, err = stop(process, number, group)
    said = "stopped by Ctrl-C" if number == signal.SIGINT else "stopped by SIGTERM"
    assert (process.returncode, err) == (CODES[number], f"{said}; it was at: thing 4\n")
    assert not is_running(child) and not list((tmp_path / "temporary").iterdir())
    assert out.endswith("stopped after 3 of 8 things: no verdict\n") and "passed" not in out


def test_a_check_that_is_stopped_has_not_passed_in_json_either(begin):
    process = begin("check", "slow", "--json")
    process.stdout.readline()
    out, _ = stop(process, signal.SIGINT, True)
    found = json.loads(out)
    assert found == {"stopped_after": "3 of 7 things", "things": 3, "passed": False}


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_during_an_import_too(begin, number):
    process = begin("check", "imported")
    process.stdout.readline()
    out, err = stop(process, number, True)
    said = "stopped by Ctrl-C" if number == signal.SIGINT else "stopped by SIGTERM"
    assert (process.returncode, out, err) == (CODES[number], "", f"{said}\n")


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_during_an_import_a_folder_is_removed_first(begin, tmp_path, number):
    process = begin("check", "folder")
    process.stdout.readline()
    assert list((tmp_path / "temporary").glob("folder-*"))
    os.killpg(process.pid, number)
    (tmp_path / "go").touch()
    _, err = process.communicate(timeout=120)
    assert process.returncode == CODES[number] and err.count("\n") == 1, err
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_the_check_of_kills_leaves_no_folder_and_no_training(begin, tmp_path, number):
    process = begin("check", "kill", "kills=999")
    until, trained = time.monotonic() + 300, "attnlab-kill-*/*/metrics.jsonl"
    while time.monotonic() < until and not list((tmp_path / "temporary").glob(trained)):
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    _, err = stop(process, number, group=True)
    assert process.returncode == CODES[number] and err.count("\n") == 1, err
    assert not any(map(is_running, children))
    assert not list((tmp_path / "temporary").glob("attnlab*"))
