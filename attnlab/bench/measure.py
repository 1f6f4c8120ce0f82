"""Measuring fairly: candidates take turns, medians count, the device is waited for."""

import ctypes
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, and the fastest and slowest turn."""

    median: float
    fastest: float
    slowest: float
    turns: int


def take_turns(
    candidates: Mapping[str, Callable[[], object]],
    device: torch.device,
    turns: int,
    patience: float,
    tick: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing]:
    """Time the candidates in turns."""
    spent = seconds_in_turns(candidates, device, turns, patience, tick)
    return {name: _timing(seconds) for name, seconds in spent.items()}


def seconds_in_turns(
    candidates: Mapping[str, Callable[[], object]],
    device: torch.device,
    turns: int,
    patience: float,
    tick: Callable[[str], None] = lambda name: None,
) -> dict[str, list[float]]:
    """The seconds of each turn, which has all candidates, in an order of its own.

    The first run of each (compiling, first memory) is not counted; one that has had `patience`
    seconds drops out early.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for name, run in candidates.items():
        tick(name)
        clock(run, device)
    order = list(candidates)
    for turn in range(turns):
        random.Random(turn).shuffle(order)  # who comes after whom matters: caches, clocks
        for name in order:
            if sum(seconds[name]) < patience:
                tick(name)
                seconds[name].append(clock(candidates[name], device))
    return seconds


def clock(run: Callable[[], object], device: torch.device) -> float:
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - start


def recorded(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The same run as a CUDA graph, whose replay takes no time of Python's; elsewhere itself."""
    if device.type != "cuda":
        return run
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # compiling and the first memory must not be recorded
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(run: Callable[[], object], device: torch.device) -> int | None:
    """Bytes in use at the peak of a run beyond those before it; None where that cannot be read."""
    if device.type == "cuda":
        wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        wait(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        _return_freed_memory()
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present
    except (OSError, AttributeError):
        return None
    before = _status("VmRSS")
    run()
    return max(_status("VmHWM") - before, 0)


def usual_peak(
    run: Callable[[], object], device: torch.device, calls: int
) -> dict[str, float] | None:
    """Of the peaks of some runs; None where one cannot be read."""
    peaks = [peak_memory(run, device) for _ in range(calls)]
    known = [peak for peak in peaks if peak is not None]
    if len(known) < len(peaks):
        return None
    return {"median": statistics.median(known), "least": min(known), "most": max(known)}


def _return_freed_memory() -> None:
    """From now on every large piece is mapped and unmapped by itself: glibc would else reuse what
    was freed, which hides it from the peak. Slows allocation, so measure times first."""
    gc.collect()
    libc = ctypes.CDLL(None)
    threshold_of_mmap = -3
    libc.mallopt(threshold_of_mmap, 1 << 16)
    libc.malloc_trim(0)


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float | None:
    """The slope of log time against log size, by least squares."""
    if len(set(sizes)) < 2:
        return None
    logs = [math.log(size) for size in sizes]
    return statistics.linear_regression(logs, [math.log(t) for t in times]).slope


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _timing(seconds: Sequence[float]) -> Timing:
    times = [1e3 * value for value in seconds]
    return Timing(statistics.median(times), min(times), max(times), len(times))
