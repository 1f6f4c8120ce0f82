"""One trial in a process of its own, and what it did that it must not.

A detector does not know whether it looks at attnlab or at a control: what finds nothing wrong with
a naive reader proves nothing about ours.
"""

import contextlib
import hashlib
import os
import pty
import re
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnlab.checks.hostile.trial import MEBIBYTE, SECRET, Place, Trial
from attnlab.printable import one_line

LARGEST = 96 * MEBIBYTE  # bytes that a trial may leave on the disk
ROOM = 6 * 1024 * MEBIBYTE  # bytes of memory that a trial can take
OUTPUT = 4 * MEBIBYTE  # bytes of output that are looked at
SECOND_PATIENCE = 3.0  # how much longer a payload may take when it is tried again, alone
MARKER = "ATTNLAB_HOSTILE_TRIAL"  # in the environment of whatever a trial starts
# of all control characters a text may hold tabs and ends of lines
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")


@dataclass
class Observation:
    """What is known of a trial once it is over."""

    trial: Trial
    code: int = 0
    output: str = ""
    seconds: float = 0.0
    mebibytes: float = 0.0
    late: bool = False
    again: bool = False  # whether this is a second try, after one that was late
    problems: dict[str, str] = field(default_factory=dict)  # by detector: what was seen


def observe(
    trials: Sequence[Trial], template: Path, room: Path, workers: int
) -> Iterator[Observation]:
    """Each trial, several at once, as they end.

    A payload that was late and did nothing else is tried again, alone and with more time: on a
    machine with other work a slow answer is no hanging one. A control has one try, as a naive
    reader that hangs is to be found.
    """
    waiting = list(enumerate(trials))[::-1]
    late: list[tuple[int, Trial]] = []
    running: list[_Child] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                number, trial = waiting.pop()
                place = Place(room / f"{number:03}", template)
                running.append(_Child(number, trial, place, trial.patience))
            time.sleep(0.01)
            for child in [one for one in running if one.over()]:
                running.remove(child)
                seen = child.observation()
                if set(seen.problems) == {"hung"} and not seen.trial.is_control:
                    late.append((child.number, seen.trial))
                else:
                    yield seen
        for number, trial in late:
            place = Place(room / f"{number:03}-again", template)
            running.append(_Child(number, trial, place, SECOND_PATIENCE * trial.patience))
            while not running[0].over():
                time.sleep(0.01)
            seen = running.pop().observation()
            seen.again = True
            yield seen
    finally:
        for child in running:
            child.end()


class _Child:
    """The process of a trial."""

    def __init__(self, number: int, trial: Trial, place: Place, patience: float) -> None:
        self.number, self.trial, self.place, self.patience = number, trial, place, patience
        place.folder.mkdir(parents=True)
        place.prepare()
        trial.plant(place)
        self._before = _look_at(place.victims)
        self._began = time.monotonic()
        self._screen, self._said = -1, b""
        self._status: tuple[int, resource.struct_rusage] | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        if trial.terminal:
            self._pid, self._screen = pty.fork()
        else:
            self._pid = os.fork()
        if self._pid == 0:
            _be_attacked(trial, place)

    def over(self) -> bool:
        self._listen()
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if pid:
            self._listen()
            self._status = os.waitstatus_to_exitcode(status), usage
        return bool(pid) or self._late

    @property
    def _late(self) -> bool:
        return time.monotonic() - self._began > self.patience

    def _listen(self) -> None:
        """What it says on its terminal; what goes to a file is read in the end."""
        while self._screen >= 0 and select.select([self._screen], [], [], 0)[0]:
            try:
                piece = os.read(self._screen, 1 << 16)
            except OSError:  # nobody holds the other end any more
                break
            if not piece:
                break
            self._said = (self._said + piece)[-OUTPUT:]

    def observation(self) -> Observation:
        seen = Observation(self.trial, seconds=time.monotonic() - self._began)
        seen.late = self._status is None
        left = [] if seen.late else _wait_for_the_end(self.place, self._pid)
        self.end()
        assert self._status is not None
        seen.code, usage = self._status
        seen.mebibytes = usage.ru_maxrss / 1024
        if self.trial.terminal:
            seen.output = self._said.decode(errors="replace")
        else:
            path = self.place.folder / "output"
            with path.open("rb") as file:
                seen.output = file.read(OUTPUT).decode(errors="replace")
        seen.problems = self._problems(seen, left)
        shutil.rmtree(self.place.folder, ignore_errors=True)
        return seen

    def _problems(self, seen: Observation, left: list[int]) -> dict[str, str]:
        trial, found = self.trial, dict[str, str]()
        if self.place.mark.exists():
            found["executed"] = "a command of the payload was executed"
        if changed := _difference(self._before, _look_at(self.place.victims)):
            found["changed"] = changed
        if SECRET in seen.output:
            found["leaked"] = "what only the victim holds was shown"
        if trial.forbidden and trial.forbidden in seen.output:
            found["forged"] = f"it said {trial.forbidden!r}"
        if trial.terminal and (raw := CONTROL.search(seen.output)):
            found["escaped"] = f"{raw.group()!r} reached the terminal"
        if seen.late:
            found["hung"] = f"no answer within {self.patience:g} s"
        if left:
            found["left"] = f"{len(left)} processes were left running"
        if seen.mebibytes > _own_mebibytes() + trial.memory:
            found["exhausted"] = f"it took {seen.mebibytes:,.0f} MiB"
        if (size := _size(self.place.folder)) > LARGEST:
            found["exhausted"] = f"it left {size / MEBIBYTE:,.0f} MiB on the disk"
        if not seen.late:
            found |= _manners(trial, seen)
        return found

    def end(self) -> None:
        """Nothing that the trial started outlives it."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            _, status, usage = os.wait4(self._pid, 0)
            self._status = os.waitstatus_to_exitcode(status), usage
        for pid in started_in(self.place, self._pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._screen >= 0:
            os.close(self._screen)
            self._screen = -1


def _manners(trial: Trial, seen: Observation) -> dict[str, str]:
    """A refusal is one line and an exit code that says so, not a traceback."""
    found = {}
    if "Traceback (most recent call last)" in seen.output:
        found["traceback"] = seen.output.strip().splitlines()[-1][:200]
    if seen.code not in trial.codes:
        found["exit code"] = f"{seen.code}, not {' or '.join(map(str, trial.codes))}"
    if seen.code == 0 and trial.said not in " ".join(seen.output.split()):
        found["silent"] = f"it went on without {trial.said!r}"
    errors = [line for line in seen.output.splitlines() if line.startswith("error:")]
    if seen.code == 2 and len(errors) != 1 and not trial.verdicts:
        found["lines"] = f"{len(errors)} lines say what is wrong, not 1"
    return found


def _be_attacked(trial: Trial, place: Place) -> None:
    """What the process does; it never returns."""
    code = 1
    try:
        if not trial.terminal:
            os.setsid()
            handle = os.open(place.folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            nowhere = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nowhere, 0)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # whoever has replaced them
        os.chdir(place.folder)
        temporary = str(place.folder / "tmp")
        os.environ |= {MARKER: str(place.folder), "TMPDIR": temporary, "TERM": "dumb"}
        os.environ |= {
            name: value.format(folder=place.folder) for name, value in (trial.environment.items())
        }
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * LARGEST, 2 * LARGEST))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (ROOM, ROOM))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _exit_code(trial, place)
    except BaseException:  # nothing is above this process that would say it
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _exit_code(trial: Trial, place: Place) -> int:
    """As Python and `attnlab` have it: what a person can correct is one line."""
    try:
        trial.act(place)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (ValueError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _own_mebibytes() -> float:
    """What every process of a trial begins with: it is a copy of this one.

    Not `ru_maxrss`: it survives exec, so a process begins with the peak of whoever started it.
    """
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return resident * resource.getpagesize() / MEBIBYTE


def _look_at(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a folder, as it is."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        there = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        digest = hashlib.sha256(content).hexdigest()
        times = there.st_mtime_ns if path.is_file() else 0
        found[str(path.relative_to(folder))] = (there.st_ino, there.st_mode, times, digest)
    return found


def _difference(before: dict[str, tuple[object, ...]], after: dict[str, tuple[object, ...]]) -> str:
    parts = {
        "gone": sorted(before.keys() - after.keys()),
        "new": sorted(after.keys() - before.keys()),
        "changed": sorted(
            name for name in before.keys() & after.keys() if before[name] != after[name]
        ),
    }
    return ", ".join(f"{what}: {' '.join(names)}" for what, names in parts.items() if names)


def _size(folder: Path) -> int:
    """Bytes that files really take: a hole in one costs nothing."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def _wait_for_the_end(place: Place, session: int) -> list[int]:
    """What a trial started and has not ended; what is just ending has a moment."""
    for _ in range(40):
        left = started_in(place, session)
        if not left:
            break
        time.sleep(0.05)
    return left


def started_in(place: Place, session: int) -> list[int]:
    """What has the trial's mark in its environment, or is of its session (on Linux)."""
    wanted = f"{MARKER}={place.folder}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*") if Path("/proc").is_dir() else []:
        with contextlib.suppress(OSError):
            if int(folder.name) == session:
                continue
            marked = wanted in (folder / "environ").read_bytes().split(b"\0")
            # pid (name) state parent group session …
            state, _, _, its_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if (marked or int(its_session) == session) and state != "Z":
                found.append(int(folder.name))
    return found
