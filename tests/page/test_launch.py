"""Trainings that the page starts: they outlive it, are found again, and stop as after `kill`."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest
from page.pages import client, end_children, post, serving

from attnlab import files, json_files
from attnlab.page.guard import Refused
from attnlab.page.launch import KEPT, LINES, PLACE, Launcher
from attnlab.training import checkpoint, runs

PATIENCE = 200  # seconds; a machine may be busy
SMALL = {
    "corpus": "biographies",
    "corpus.people": "9",
    "model.width": "8",
    "model.depth": "1",
    "model.context": "17",
    "batch": "3",
    "steps": "100000000",
    "evaluate_every": "none",
    "sample_every": "none",
}


@pytest.fixture(autouse=True)
def _ending(tmp_path):
    yield
    end_children(tmp_path)


def wait_until(found):
    deadline = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def says(root, code, *words):
    """A launcher whose program is a line of Python."""
    return Launcher(root, program=(sys.executable, "-S", "-c", code, *words))


def ended(launcher):
    return wait_until(lambda: [one for one in launcher.list_all() if one["state"] == "ended"])[0]


def test_a_training_survives_its_page_and_the_next_one_stops_it_with_a_checkpoint(tmp_path):
    root = tmp_path / "runs"
    with serving(root) as server, client(server) as opened:
        status, begun = post(opened, "/api/launches", preset="tiny", settings=SMALL)
        assert status == 200
        status, refused = post(opened, "/api/launches", preset="tiny", settings=SMALL)
        assert status == 409 and "wait for it or stop it" in refused["error"]
        wait_until(lambda: any(one["step"] > 0 for one in opened.get("/api/runs").json()))
    with serving(root) as server, client(server) as opened:
        (found,) = opened.get("/api/launches").json()["started"]
        assert (found["id"], found["state"], found["kind"]) == (begun["id"], "running", "train")
        assert found["command"].startswith("attnlab train tiny corpus=biographies")
        (row,) = opened.get("/api/runs").json()
        assert (row["name"], row["state"]) == (found["made"], "running")
        stop = f"/api/launches/{found['id']}/stop"
        assert post(opened, "/api/launches", preset="tiny", settings=SMALL)[0] == 409
        assert post(opened, stop)[0] == 200

        def over():
            (one,) = opened.get("/api/launches").json()["started"]
            assert one["state"] in ("stopping", "ended")
            return one if one["state"] == "ended" else None

        said = wait_until(over)["log"]
        assert "SIGTERM at step" in said[-2] and said[-1].startswith("resume with: attnlab train")
        (row,) = opened.get("/api/runs").json()
        assert row["state"] == "stopped"
        newest, broken = checkpoint.newest_good(runs.Run(root / row["name"]).checkpoints)
        assert checkpoint.step_of(newest) == row["step"] > 0 and broken == []
        status, refused = post(opened, stop)
        assert status == 409 and "ended" in refused["error"]
        assert post(opened, "/api/launches/20200101-000000-abcdef/stop")[0] == 404


def test_a_child_has_a_session_of_its_own_and_nothing_to_read(tmp_path):
    code = "import os, sys; print(os.getsid(0) == os.getpid(), sys.stdin.read() == '', sys.argv)"
    launcher = says(tmp_path / "runs", code)
    launcher.start(["train", "tiny", "steps=3"])
    found = ended(launcher)
    assert found["log"] == ["True True ['-c', 'train', 'tiny', 'steps=3']"]
    assert wait_until(lambda: launcher.list_all()[0]["code"] == 0)


def test_the_lock_goes_with_the_child_whatever_ends_it(tmp_path):
    launcher = says(tmp_path, "import time; print('there', flush=True); time.sleep(1000)")
    name = launcher.start(["train"])
    wait_until(lambda: launcher.list_all()[0]["log"])
    other = Launcher(tmp_path)  # as of another page
    assert other.list_all()[0]["state"] == "running"
    with pytest.raises(Refused, match="wait for it or stop it"):
        other.start(["train"])
    record = json_files.read_json(tmp_path / PLACE / name / "started.json")
    os.kill(record["pid"], signal.SIGKILL)
    assert ended(other)["id"] == name
    assert wait_until(lambda: launcher.list_all()[0]["code"]) == -signal.SIGKILL


def test_a_process_that_does_not_have_the_lock_is_never_stopped(tmp_path):
    launcher = says(tmp_path, "pass")
    name = launcher.start(["train"])
    ended(launcher)
    record = tmp_path / PLACE / name / "started.json"
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as other:
        files.write_whole(
            record, json_files.as_json({**json_files.read_json(record), "pid": other.pid})
        )
        with files.open_lock(tmp_path / PLACE / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert launcher.list_all()[0]["state"] == "running"
            with pytest.raises(Refused, match="ended already"):
                launcher.stop(name)
        assert other.poll() is None
        other.communicate(b"\n")


def test_the_lock_of_a_run_by_a_second_name_is_no_lock_of_ours(tmp_path):
    launcher = says(tmp_path, "pass")
    launcher.start(["train"])
    ended(launcher)
    lock = tmp_path / PLACE / "lock"
    (tmp_path / "second").hardlink_to(lock)
    with files.open_lock(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert launcher.list_all()[0]["state"] == "ended"


def test_what_it_prints_is_shown_at_its_end_and_commands_no_terminal(tmp_path):
    code = r"print('run x'); [print(n) for n in range(5000)]; print('\x1b[31m<b>')"
    launcher = says(tmp_path, code)
    launcher.start(["train"])
    found = ended(launcher)
    assert found["log"][-2:] == ["4999", "\\x1b[31m<b>"] and len(found["log"]) == LINES
    assert found["made"] is None  # there is no run called x here


def test_a_page_that_may_not_start_anything_says_so_and_starts_nothing(tmp_path):
    with serving(tmp_path / "runs", start=False) as server, client(server) as opened:
        assert opened.get("/api/launches").json() == {"enabled": False, "started": []}
        status, refused = post(opened, "/api/launches", preset="tiny")
        assert status == 409 and "--no-start" in refused["error"]
        assert post(opened, "/api/launches/x/stop")[0] == 409
        status, planned = post(opened, "/api/launches/plan", preset="tiny")
        assert status == 200 and planned["command"].startswith("attnlab train tiny")
    assert not (tmp_path / "runs").exists()


def test_records_that_are_old_damaged_or_of_strangers_are_passed_over(tmp_path):
    launcher = says(tmp_path, "pass")
    for _ in range(KEPT + 2):
        launcher.start(["train"])
        wait_until(lambda: all(one["state"] == "ended" for one in launcher.list_all()))
    place = tmp_path / PLACE
    names = sorted(one.name for one in place.iterdir() if one.name != "lock")
    assert len(names) == KEPT == len(launcher.list_all())
    (place / names[0] / "started.json").write_bytes(b'{"words": 3}')
    (place / names[1] / "started.json").unlink()
    (place / names[2] / "output.txt").unlink()
    (place / names[2] / "output.txt").symlink_to("/etc/hostname")
    (place / "99990101-000000-abcdef").symlink_to(tmp_path)
    found = launcher.list_all()
    assert [one["id"] for one in found] == names[:1:-1] and found[-1]["log"] == []


def test_a_link_in_place_of_the_records_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / PLACE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="links are not followed"):
        says(tmp_path, "pass").start(["train"])
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert Launcher(tmp_path).list_all() == []
