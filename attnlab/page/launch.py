"""Trainings and comparisons that the page starts: child processes that outlive it.

    runs/.started/
      lock              names the newest record; held by its process for as long as that lives
      <date>-<id>/      started.json: its command and its process; output.txt: what it prints

A child has a session of its own: neither Ctrl-C nor the end of the page reaches it. It inherits the
lock from the page, so a page that is started again finds it, and two pages on one folder see the
same. It is stopped as from a terminal: by a signal, after which it saves and says so.
"""

import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from attnlab import files, json_files
from attnlab.page.guard import Refused
from attnlab.page.runs import MOST_FILE, plain_content
from attnlab.printable import distinct, printable
from attnlab.training.lock import Lock, held_by_another

PLACE = ".started"  # in the folder of runs
KEPT = 12  # records
PART = 6_000  # bytes at an end of the output that are read
LINES = 14
NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
STARTED = {"words": [str], "pid": (int, None), "began": float}
FOUND = re.compile(r"^(?:run|compare in) (.+)$", re.MULTILINE)  # as both verbs say it first
OFF = "this page starts nothing: it was opened with --no-start"
ANOTHER = (
    "something that a page has started runs already; wait for it or stop it. A second at the same "
    "time would slow the first, and falsify the times that it measures"
)


class Launcher:
    """One child at a time, with what the ones before it have said."""

    def __init__(
        self,
        root: Path,
        enabled: bool = True,
        program: Sequence[str] = (sys.executable, "-m", "attnlab"),
    ) -> None:
        self.root, self.enabled, self.program = root, enabled, program
        self._stopping: set[str] = set()
        self._codes: dict[str, int] = {}  # exit codes of the children of this very page

    @property
    def _place(self) -> Path:
        return self.root / PLACE

    def start(self, words: Sequence[str]) -> str:
        """Start `attnlab WORDS` and return the name of its record."""
        if not self.enabled:
            raise Refused(409, OFF)
        try:
            files.make_folder(self._place)
            with files.open_lock(self._place / "lock") as lock:
                if not Lock(self._place, lock).taken():
                    raise Refused(409, ANOTHER)
                return self._start(words, lock)  # the child keeps the lock when we close it
        except OSError as error:
            raise ValueError(f"nothing was started: {error.strerror or error}") from None

    def _start(self, words: Sequence[str], lock: IO[bytes]) -> str:
        now = datetime.now()
        made = self._place / f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        record = {"words": list(words), "pid": None, "began": now.timestamp()}
        files.make_folder(made)
        files.write_whole(made / "started.json", json_files.as_json(record))
        lock.truncate()
        lock.write(made.name.encode())
        lock.flush()
        with files.open_log(made / "output.txt") as output:
            child = subprocess.Popen(
                [*self.program, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock.fileno()],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        threading.Thread(target=self._wait, args=(made.name, child), daemon=True).start()
        try:
            content = json_files.as_json({**record, "pid": child.pid})
            files.write_whole(made / "started.json", content)
        except OSError:
            child.terminate()  # nobody could stop it later
            raise
        self._forget_old()
        return made.name

    def _wait(self, name: str, child: "subprocess.Popen[bytes]") -> None:
        self._codes[name] = child.wait()

    def list_all(self) -> list[dict[str, Any]]:
        """The newest first."""
        running, found = self._running(), list[dict[str, Any]]()
        for folder in self._folders()[:KEPT]:
            name, record = folder.name, _record(folder)
            if record is None:
                continue
            state = "stopping" if name in self._stopping else "running"
            found.append(
                {
                    "id": name,
                    "kind": record["words"][0] if record["words"] else "",
                    "command": shlex.join(["attnlab", *record["words"]]),
                    "began": record["began"],
                    "state": state if name == running else "ended",
                    "code": self._codes.get(name),
                    "made": self._made(folder / "output.txt"),
                    "log": _last_lines(folder / "output.txt"),
                }
            )
        return found

    def stop(self, name: str) -> None:
        """Ask it to save and end, as `kill` does."""
        if not self.enabled:
            raise Refused(409, OFF)
        folder = {one.name: one for one in self._folders()}.get(name)
        record = None if folder is None else _record(folder)
        if record is None:
            raise Refused(404, f"nothing called {name[:60]!r} was started here")
        pid = record["pid"]
        if name != self._running() or not pid or not _has_open(pid, self._place / "lock"):
            raise Refused(409, "it has ended already")
        self._stopping.add(name)
        os.kill(pid, signal.SIGTERM)

    def _folders(self) -> list[Path]:
        if self._place.is_symlink() or not self._place.is_dir():
            return []
        found = [one for one in self._place.iterdir() if NAME.fullmatch(one.name)]
        return sorted((one for one in found if not one.is_symlink()), reverse=True)

    def _running(self) -> str | None:
        """The name of the record whose process has the lock."""
        try:
            with files.open_plain(self._place / "lock") as lock:
                ours = os.fstat(lock.fileno()).st_nlink == 1  # no second name of a run's lock
                name = lock.read(100).decode(errors="replace")
                return name if ours and held_by_another(lock) else None
        except OSError:
            return None

    def _forget_old(self) -> None:
        for folder in self._folders()[KEPT:]:
            files.remove_folder(folder)

    def _made(self, output: Path) -> str | None:
        """The run or the comparison that it has made, by its name in the list."""
        found = FOUND.search(_part(output, whence=os.SEEK_SET))
        if found is None:
            return None
        name = Path(found[1]).name
        return distinct(name) if (self.root / name).is_dir() else None


def _record(folder: Path) -> dict[str, Any] | None:
    path = folder / "started.json"
    try:
        content = plain_content(path, MOST_FILE) or b""
        found: dict[str, Any] = json_files.in_shape(
            json_files.parse_json(content, path), STARTED, path
        )
    except ValueError:
        return None
    return found


def _part(path: Path, whence: int) -> str:
    """The beginning of a file, or its end."""
    try:
        with files.open_plain(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0 if whence == os.SEEK_SET else max(0, size - PART))
            return file.read(PART).decode(errors="replace")
    except OSError:
        return ""


def _last_lines(path: Path) -> list[str]:
    return [printable(one) for one in _part(path, os.SEEK_END).splitlines()][-LINES:]


def _has_open(pid: int, lock: Path) -> bool:
    """Whether the process has the lock; where the system does not tell, the record is believed."""
    if not Path("/proc/self/fd").is_dir():
        return True
    try:
        there, opened = lock.lstat(), list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    return any(_same(one, there) for one in opened)


def _same(path: Path, there: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), there)
    except OSError:  # closed meanwhile
        return False
