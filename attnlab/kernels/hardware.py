"""This machine: what it is, and what it can run.

What it can run is tried in a child process, since a wrong guess ends the process: some CPUs
announce bfloat16 matrix instructions that their virtual machine traps, and the first bfloat16
product dies with "Illegal instruction".
"""

import functools
import hashlib
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import torch

from attnlab import __version__, files

# under such a cap products may work that end the process without it, so each has its own answer
CAPS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")

HALVES = (torch.bfloat16, torch.float16)

_PROBE = """
import torch
q = torch.randn(1, 2, 64, 64, dtype=torch.{dtype}, requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
torch.nn.functional.linear(q, torch.randn(64, 64, dtype=q.dtype)).sum().backward()
"""


def require(dtype: torch.dtype, device: torch.device) -> None:
    """A ValueError when products of this dtype would end the process or cannot run at all."""
    if dtype in HALVES and device.type == "cpu":
        name = str(dtype).removeprefix("torch.")
        if not cpu_multiplies(name):
            raise ValueError(
                f"{name} products do not run on this CPU (a trial in a child process failed); "
                "use float32"
            )


@functools.cache
def cpu_multiplies(dtype: str) -> bool:
    """Whether a forward and backward pass in the dtype survives here; asked once a machine."""
    try:
        capped = "".join("-" + re.sub(r"\W", "", os.environ.get(cap, "")) for cap in CAPS)
        memory = (
            files.cache_folder() / f"cpu-{dtype}-{machine_id()}-torch{torch.__version__}{capped}"
        )
        known = files.read(memory) if memory.exists() else b""
        if known in (b"works", b"fails"):  # anything else is damage, and asked again
            return known == b"works"
    except OSError:
        memory = None  # no place to remember it: asked once a process
    command = [sys.executable, "-c", _PROBE.format(dtype=dtype)]
    answer = subprocess.run(command, capture_output=True, check=False, timeout=120)
    works = answer.returncode == 0
    if memory is not None:
        files.write_whole(memory, b"works" if works else b"fails")
    return works


@functools.cache
def machine_id() -> str:
    """Changes when the processor's instructions do: folders in a home may be shared by machines."""
    text = platform.machine() + platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        text += "".join(
            sorted({x for x in lines if x.startswith(("flags", "Features", "model n"))})
        )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@functools.cache
def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second in products of large matrices: the fastest of some, asked once a process.

    What a training reaches of it is its model FLOPs utilisation (MFU).
    """
    size = 8192 if device.type == "cuda" else 1024
    one, other = (torch.ones(size, size, device=device, dtype=dtype).uniform_() for _ in range(2))
    out, seconds = torch.mm(one, other), []
    for _ in range(5):
        _wait(device)
        begin = time.perf_counter()
        torch.mm(one, other, out=out)
        _wait(device)
        seconds.append(time.perf_counter() - begin)
    return 2.0 * size**3 / min(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def tag_compiled_code() -> None:
    """To be called before torch.compile: what it keeps on disk is then for these instructions.

    PyTorch finds compiled code again by what was compiled. With code of AVX2 under AVX-512, or the
    other way round, outputs were off by 3, or NaN.
    """
    tag = f"cpu={torch.backends.cpu.get_cpu_capability()};"
    if tag not in torch.compiler.config.cache_key_tag:
        torch.compiler.config.cache_key_tag += tag


def machine(device: torch.device) -> dict[str, str | int]:
    """The machine and the versions on it, to stand beside what was trained or measured there."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    return {
        "attnlab": __version__,
        "python": platform.python_version(),
        "device": f"{device.type} {name}",
        **description(),
    }


def description() -> dict[str, str | int]:
    """The processor in a few words, and how PyTorch uses it."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.*)", info.read_text() if info.exists() else "")
    return {
        "cpu": named[1].strip() if named else platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }
