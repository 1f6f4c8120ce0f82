"""The memory of this machine, and whether an error says that it ran out.

Most libraries have no type for such an error, only words.
"""

import os
from contextlib import suppress
from pathlib import Path

from attnlab.printable import raised

WORDS = (
    *("MemoryError", "can't allocate memory", "Cannot allocate memory", "bad_alloc"),
    "CUDA out of memory",
)


def ran_out(error: BaseException) -> bool:
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in raised(error) for words in WORDS)


def machine_memory() -> int:
    """Bytes of this machine, or of the container that the process may not leave."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(there, int(text)) if text.isdigit() else there


def free_memory() -> int:
    """Bytes that a process here can still have; where nobody says, half of the machine's."""
    named = dict[str, int]()
    with suppress(OSError):  # not every machine tells, nor everybody
        named = _numbers(Path("/proc/meminfo"), ":")
    free = named.get("MemAvailable", machine_memory() // 2048) * 1024
    group = Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.current"
    with suppress(OSError):
        if limit.read_text().strip().isdigit():
            cached = _numbers(group / "memory.stat").get("inactive_file", 0)  # files, to be dropped
            free = min(free, int(limit.read_text()) - int(used.read_text()) + cached)
    return max(free, 0)


def _numbers(path: Path, after: str = "") -> dict[str, int]:
    """Lines of a name and a number."""
    rows = [line.split() for line in path.read_text().splitlines()]
    return {
        row[0].removesuffix(after): int(row[1]) for row in rows if row[1:2] and row[1].isdigit()
    }
