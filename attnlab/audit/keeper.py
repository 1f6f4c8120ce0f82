"""The process that waits for audited code, and then ends whatever that has started.

    attnlab  ->  keeper  ->  the code  ->  what it starts, in a session of its own or not

On Linux the keeper is a subreaper: a process below it that loses its parent becomes its child, and
cannot get away. Elsewhere only what stayed in the group of processes is ended.
"""

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h


def keep_in_child(*closed: int) -> None:
    """Return in a new child, and be its keeper here, without these files; SIGTERM ends both."""
    _adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    child = os.fork()
    if child:
        for handle in closed:
            os.close(handle)
        _keep(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _keep(child: int) -> NoReturn:
    """Wait for a child, end all others, and end as it did."""

    def end(*_: Any) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    ended, status = 0, 0
    while ended != child:
        ended, status = os.waitpid(-1, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_children()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # by the same signal, without a second dump
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no other
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def _end_children() -> None:
    """Until there is none: those of a child that was killed become children."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _children() -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # pid (name) state parent …
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                yield int(stat.parent.name)
