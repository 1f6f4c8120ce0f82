"""What a call frees is kept for the next one, where the C library can be told so."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from attnlab.audit.memory import keep_freed_memory
kept = sys.argv[1] == "keep" and keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(10_000_000)
before = faults()
for _ in range(10):
    torch.ones(10_000_000)
print(int(kept), faults() - before)
"""


def faults(how):
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    kept, count = map(int, found.stdout.split())
    return bool(kept), count


def test_large_blocks_are_not_fetched_from_the_system_again():
    kept, count = faults("keep")
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert count < faults("leave")[1] / 10
