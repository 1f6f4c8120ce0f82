"""Other machines, imitated by environment variables in a child process.

A cap on the instruction set holds for PyTorch's own kernels, for oneDNN or for MKL, each by its own
variable; our compiled path is built for the capped set too. Before a machine is used, a probe asks
the libraries what they will do: one that does what this machine does by itself imitates nothing.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHILD = "attnlab.checks.machines.child"
EMPTY = "an empty folder"  # stands for a folder that is made when the child starts


@dataclass(frozen=True)
class Machine:
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    compile_for: tuple[str, ...] | None = None  # flags for banded.c; None: for this processor
    seed: int = 0  # of the claims

    @property
    def said(self) -> str:
        if self.seed:
            return f"seed={self.seed}"
        return " ".join(f"{name}={value or 'none'}" for name, value in self.environment.items())


BASELINE = Machine("as it is")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
MACHINES = [
    Machine("default", {"ATEN_CPU_CAPABILITY": "default"}, ()),
    Machine("avx2", {"ATEN_CPU_CAPABILITY": "avx2"}, ("-mavx2", "-mfma")),
    Machine("avx512", {"ATEN_CPU_CAPABILITY": "avx512"}),
    Machine("onednn-avx2", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    Machine("onednn-sse41", {"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    Machine("mkl-compatible", {"MKL_CBWR": "COMPATIBLE"}),
    Machine("1-thread", dict.fromkeys(_THREADS, "1")),
    Machine("2-threads", dict.fromkeys(_THREADS, "2")),
    Machine("no-compiler", {"CC": "", "PATH": EMPTY, "ATTNLAB_CACHE": EMPTY}),
]


def with_seed(seed: int) -> Machine:
    return Machine(f"seed-{seed}", seed=seed)


class Failed(Exception):
    """Why a child gave no result."""


def run(
    machine: Machine, request: Mapping[str, Any], patience: float, tick: Callable[[str], None]
) -> dict[str, Any]:
    """What the child found there; lines it prints on the way are handed to `tick`."""
    given = {**request, "seed": machine.seed, "compile_for": machine.compile_for}
    with tempfile.TemporaryDirectory(prefix="attnlab-machine-") as place:
        with (Path(place) / "errors").open("w+") as complaints:
            child = subprocess.Popen(
                [sys.executable, "-m", CHILD, json.dumps(given)],
                env=_environment(machine, Path(place)),
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                start_new_session=True,  # so that it can be ended with what it started
            )
            late = threading.Event()
            timer = threading.Timer(patience, _end, [child, late])
            timer.start()
            try:
                found = _listen(child, tick)
            finally:
                timer.cancel()
                _end(child)
                if child.stdout is not None:
                    child.stdout.close()
            complaints.seek(0)
            last = (complaints.read().strip().splitlines() or ["no message"])[-1]
    if late.is_set():
        raise Failed(f"not done after {patience:g} s")
    if child.returncode < 0:
        raise Failed(f"ended by {signal.Signals(-child.returncode).name}")
    if child.returncode or found is None:
        raise Failed(f"exit {child.returncode}: {last}")
    return found


def probe(machine: Machine) -> dict[str, str]:
    """What the libraries say of themselves there."""
    verbose = {"ONEDNN_VERBOSE": "1", "MKL_VERBOSE": "1"}
    with tempfile.TemporaryDirectory(prefix="attnlab-machine-") as place:
        answer = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env={**_environment(machine, Path(place)), **verbose},
            capture_output=True,
            check=False,
            text=True,
            timeout=120,
        )
    if answer.returncode:
        return {"probe": f"exit {answer.returncode}"}
    patterns = {
        "ATen": r"^ATen (\S+)",
        "oneDNN": r"onednn_verbose.*cpu,isa:(.*)",
        "MKL": r"MKL_VERBOSE.* CNR:(\S+)",
        "threads": r"^threads (\d+)",
        "compiler": r"^compiler (\w+)",
    }
    found = {name: re.search(p, answer.stdout, re.MULTILINE) for name, p in patterns.items()}
    return {name: match[1].strip() if match else "unknown" for name, match in found.items()}


def usable(names: Sequence[str]) -> tuple[list[Machine], dict[str, str]]:
    """Of the machines of these names, those that this one can imitate, and why not the others."""
    found: list[Machine] = []
    left_out: dict[str, str] = {}
    here = probe(BASELINE)
    for machine in MACHINES:
        if machine.name not in names:
            continue
        if probe(machine) == here:
            left_out[machine.name] = "is what this machine does by itself"
        else:
            found.append(machine)
    return found, left_out


def _environment(machine: Machine, place: Path) -> dict[str, str]:
    (place / "empty").mkdir(exist_ok=True)
    changes = {n: str(place / "empty") if v == EMPTY else v for n, v in machine.environment.items()}
    # cli/app.py says why threads should not spin
    return {"GOMP_SPINCOUNT": "1000", **os.environ, **changes}


def _listen(child: "subprocess.Popen[str]", tick: Callable[[str], None]) -> dict[str, Any] | None:
    """Lines of JSON: a text is progress, a mapping the result; others are not ours."""
    found = None
    assert child.stdout is not None
    for line in child.stdout:
        try:
            said = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(said, str):
            tick(said)
        elif isinstance(said, dict):
            found = said
    child.wait()
    return found


def _end(child: "subprocess.Popen[str]", late: threading.Event | None = None) -> None:
    if child.poll() is None:
        if late is not None:
            late.set()
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


# products that MKL and oneDNN serve, since they speak only when they are used
_PROBE = """
import os, shutil, torch
x = torch.randn(64, 64)
x @ x
torch.nn.functional.gelu(x)
print("ATen", torch.backends.cpu.get_cpu_capability())
print("threads", torch.get_num_threads())
print("compiler", "yes" if shutil.which(os.environ.get("CC") or "cc") else "no")
"""
