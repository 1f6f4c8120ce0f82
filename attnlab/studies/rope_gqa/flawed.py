"""A flawed timing protocol, carried out as it is, beside the fair one.

Four faults: the clock is read without waiting for the device, the shared variant empties the
allocator's cache in its forward pass, the variants run through different kernels, and memory is
what is left after a pass instead of its peak. Each is measured alone, then all of them together.
"""

import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.scores import ScaledDotScore, Score
from attnlab.bench.measure import peak_memory, take_turns, usual_peak
from attnlab.kernels import Request, dispatch
from attnlab.studies.rope_gqa.sweep import (
    HEADS,
    DifferentKernels,
    Kernel,
    Sweep,
    Work,
    alike,
    attention_call,
    path_of,
)
from attnlab.training.parallel import torch_device

SHARED = 2  # key/value heads of the grouped variant


class CopiedKeys(Score):
    """Keys and values are copied out to every query head, then compared in plain PyTorch."""

    def attend(self, request: Request) -> Tensor:
        k = request.k.repeat_interleave(request.group, dim=1)
        v = request.v.repeat_interleave(request.group, dim=1)
        return dispatch.attend(replace(request, k=k, v=v), path="reference")


class EmptyingCache(Score):
    """Another score, after the allocator has handed its memory back: does nothing on a CPU."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def attend(self, request: Request) -> Tensor:
        torch.cuda.empty_cache()
        return self.score.attend(request)


def flawed_times(sweep: Sweep) -> dict[str, Any]:
    """Milliseconds of a forward pass, by fault and number of key/value heads."""
    device = torch_device("auto")

    def fair(kernel: Kernel, kv_heads: int) -> Work:
        return attention_call(sweep, kernel, kv_heads, device, passes="forward")

    try:
        kernel, path = alike(fair, device)
    except DifferentKernels as error:
        return {"refused": str(error)}

    def grouped(score: Score) -> Work:
        return attention_call(sweep, kernel, SHARED, device, passes="forward", score=score)

    six = fair(Kernel(kernel.dtype), HEADS)
    copied, everything = grouped(CopiedKeys()), grouped(EmptyingCache(CopiedKeys()))
    with kernel.forced():
        fair_works = {"shared": fair(kernel, SHARED), "six": fair(kernel, HEADS)}
        works = {**fair_works, "emptying": grouped(EmptyingCache(ScaledDotScore()))}
        waited = {
            name: timing.median
            for name, timing in take_turns(works, device, sweep.turns, sweep.patience).items()
        }
        unsynchronised = {name: _wall(work, sweep.turns) for name, work in fair_works.items()}
    # PyTorch chooses as it likes from here on: that is the fault
    other = take_turns({"shared": copied, "six": six}, device, sweep.turns, sweep.patience)
    return {
        "device": device.type,
        "kernel": path,
        "fair": {name: waited[name] for name in fair_works},
        "emptying": waited["emptying"],
        "unsynchronised": unsynchronised,
        "kernels": {"shared": path_of(copied), "six": path_of(six)},
        "other_kernels": {name: timing.median for name, timing in other.items()},
        "together": {"shared": _wall(everything, sweep.turns), "six": _wall(six, sweep.turns)},
    }


def flawed_memory(sweep: Sweep) -> dict[str, Any]:
    """Bytes of forward and backward at their peak, and bytes left after a forward pass."""
    device = torch_device("auto")

    def fair(kernel: Kernel, kv_heads: int) -> Work:
        return attention_call(sweep, kernel, kv_heads, device, passes="both")

    try:
        kernel, _ = alike(fair, device)
    except DifferentKernels as error:
        return {"refused": str(error)}
    found: dict[str, dict[str, float | None]] = {"peak": {}, "left": {}, "together": {}}
    for name, kv_heads in (("shared", SHARED), ("six", HEADS)):
        with kernel.forced():
            both = fair(kernel, kv_heads)
            both()
            peak = usual_peak(both, device, sweep.peaks)
            found["peak"][name] = None if peak is None else peak["median"]
            kept = attention_call(sweep, kernel, kv_heads, device, passes="kept")
            found["left"][name] = _left_by(kept, device)
        score = EmptyingCache(CopiedKeys()) if kv_heads == SHARED else None
        flawed = attention_call(sweep, kernel, kv_heads, device, passes="kept", score=score)
        found["together"][name] = _left_by(flawed, device)
    return found


def _wall(work: Work, calls: int) -> float:
    """The mean of the clock around a call; a GPU is not waited for."""
    work()
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return 1e3 * fmean(seconds)


def _left_by(work: Work, device: torch.device) -> int | None:
    """Bytes in use after the call less those before it; what it gave is still held."""
    work()
    # each hands freed memory back: else some is reused unseen, or counts although it is free
    peak_memory(lambda: None, device)
    before = _in_use(device)
    held = work()
    peak_memory(lambda: None, device)
    after = _in_use(device)
    del held
    return None if before is None or after is None else after - before


def _in_use(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))
