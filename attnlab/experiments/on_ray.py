"""Trainings as Ray tasks: `attnlab compare … --on ray` (extra: ray).

A task has one CPU, and a GPU where this machine has one. When a worker or its machine is lost, Ray
gives the task to another, which resumes from the run's checkpoints; so the folder of runs must be
on a filesystem that all machines of the cluster share.
"""

import logging
import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from attnlab import files
from attnlab.experiments import pool, worker
from attnlab.experiments.pool import Ending, Endings, Interrupted, Task, Watch, steps_taken
from attnlab.extras import missing
from attnlab.printable import one_line
from attnlab.stop import stopping
from attnlab.training.parallel import torch_device

RETRIES = 5  # of a task whose worker was lost
STORE = 80 * 2**20  # bytes for objects in a new cluster: tasks exchange short messages


class RayPool:
    """Tasks of a Ray cluster."""

    def __init__(self, address: str | None = None, processes: int | None = None) -> None:
        try:
            import ray  # noqa: F401
        except ImportError:
            raise ValueError(missing("ray", "--on ray")) from None
        self.address, self.processes = address, processes

    def concurrency(self, tasks: int) -> int:
        """A guess: the cluster is not connected yet."""
        return max(min(self.processes or os.cpu_count() or 1, tasks), 1)

    def train(self, tasks: Sequence[Task], log: Path, watch: Watch) -> Endings:
        # Ray reports lost workers on stdout, where results belong
        with files.open_log(log) as file, redirect_stdout(file):
            with connected(self.address, self.processes) as ray:
                refuse_unshared(ray, log.parent)
                return _train(ray, tasks, watch)


def _train(ray: ModuleType, tasks: Sequence[Task], watch: Watch) -> Endings:
    gpus = 1 if torch_device("auto").type == "cuda" else 0
    # cli/app.py sets it and says why; a cluster that was started before us does not have it, and
    # within a task torch is loaded already
    surroundings = {"GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000")}
    options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": RETRIES}
    remote = ray.remote(**options, runtime_env={"env_vars": surroundings})(worker.train)
    endings: Endings = {}
    with stopping() as stop:
        waiting = {remote.remote(task.message()): task for task in tasks}
        while waiting and not stop.signal:
            ready, _ = ray.wait(list(waiting), timeout=pool.POLL)
            for reference in ready:
                endings[waiting.pop(reference).name] = _ending(ray, reference)
            watch(steps_taken(tasks), f"{len(endings)} of {len(tasks)} trainings done")
        if stop.signal:
            _cancel(ray, list(waiting))
            raise Interrupted(signal.Signals(stop.signal).name)
    return endings


def _ending(ray: ModuleType, reference: Any) -> Ending:
    try:
        ending: Ending = ray.get(reference)
        return ending
    except ray.exceptions.RayError as error:
        first = str(error).strip().splitlines()[:1]
        return {"ending": "failed", "why": f"{type(error).__name__}: {''.join(first)[:300]}"}


def _cancel(ray: ModuleType, references: list[Any]) -> None:
    """A running task receives KeyboardInterrupt: it saves and exits."""
    for reference in references:
        ray.cancel(reference, force=False)
    until = time.monotonic() + pool.GRACE
    while references and time.monotonic() < until:
        _, references = ray.wait(references, num_returns=len(references), timeout=pool.POLL)


@contextmanager
def connected(address: str | None, processes: int | None) -> Iterator[ModuleType]:
    """Ray, connected: to the address, to RAY_ADDRESS, to a cluster here, or to a new one.

    The address "local" always starts a new one.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():  # whoever started it also stops it
        yield ray
        return
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    address = address or os.environ.get("RAY_ADDRESS")
    own: dict[str, Any] = {"num_cpus": processes, "object_store_memory": STORE}
    own |= {"include_dashboard": False}
    try:
        mine = own if address == "local" else {}
        ray.init(address=address or "auto", **mine, **quiet)
    except (ConnectionError, ValueError) as error:
        if address:
            why = one_line(str(error).strip().partition("\n")[0])
            raise ValueError(f"no Ray cluster at {address}: {why}") from None
        ray.init(address="local", **own, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


def refuse_unshared(ray: Any, folder: Path) -> None:
    """Every machine of the cluster must read what was written here."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    word = secrets.token_hex(8)
    path = folder.absolute() / "shared.txt"
    files.write_whole(path, word.encode())
    look = ray.remote(num_cpus=0)(_read)
    try:
        for node in ray.nodes():
            if not node["Alive"]:
                continue
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            if ray.get(look.options(scheduling_strategy=there).remote(str(path))) != word:
                raise ValueError(
                    f"{node['NodeManagerHostname']} cannot read {folder}; --runs must name a "
                    "folder on a filesystem that all machines of the cluster share"
                )
    finally:
        path.unlink(missing_ok=True)


def _read(path: str) -> str:
    try:
        return files.read(Path(path)).decode()
    except OSError:
        return ""
