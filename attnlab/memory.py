"""The memory of this machine, and whether an error says that it ran out.

Most libraries have no type for such an error, only words.
"""

import os
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
