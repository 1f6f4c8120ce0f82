"""Memory that is used again: what a call of the code frees is kept for the next one.

By default the C library hands large blocks back to the system, and every call gets them anew, page
by page. Code that makes tables of some ten megabytes spends half of its time on that.
"""

import ctypes
import sys

KEPT = 2**30  # bytes that stay with the process when they are free
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt in glibc


def keep_freed_memory() -> bool:
    """For this process, from now on; False where the C library cannot be told so."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is None:
        return False
    # an old glibc refuses so high a threshold, and does without such blocks altogether
    inside = mallopt(_MMAP_THRESHOLD, KEPT) or mallopt(_MMAP_MAX, 0)
    return bool(inside) and bool(mallopt(_TRIM_THRESHOLD, KEPT))
