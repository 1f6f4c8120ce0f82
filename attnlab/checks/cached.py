"""Caches that are damaged at random: found, said, made again, and never used.

What is kept because it can be made again: the tokens of a text, the results of an experiment's
jobs, the compiled kernel. The control is a reader that does not look at hashes: it uses what is
damaged, or dies of it.
"""

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab import files
from attnlab.checks import Tick
from attnlab.checks.damage import damage
from attnlab.data import shards
from attnlab.experiments.progress import Progress
from attnlab.experiments.workspace import Job, Workspace
from attnlab.kernels import native

TOKENS = np.arange(1009) % 251
RESULT = {"loss": 1.25, "steps": [3, 5, 7], "answer": "the losses are equal"}
LOADED = 10  # damaged libraries that are loaded as they are, each in a process of its own
PATIENCE = 3.0  # seconds for one of them: a jump that was hit may go round in circles
_LOAD = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).attnlab_trial())"


class Shards:
    """The tokens of a text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shards"
        self.use(lambda line: None)

    def use(self, note: Callable[[str], None]) -> bool:
        """As the laboratory does it; whether what came out is right."""
        pieces = iter(np.array_split(TOKENS, 7))
        stream = shards.shards_in(self.folder, pieces, np.dtype(np.uint8), note=note)
        found = stream.take(np.array([0]), min(stream.count, len(TOKENS)))[0]
        return stream.count == len(TOKENS) and bool((found == TOKENS).all())

    def use_unhashed(self, path: Path) -> bool | None:
        """As a naive reader does it; whether it used what is damaged, None if it was not tried."""
        if path.suffix != ".tokens" or not path.exists():
            return None
        found = np.frombuffer(path.read_bytes()[64:], np.uint8)
        return len(found) > 0 and not np.array_equal(found, TOKENS)


class Results:
    """The results of the jobs of an experiment."""

    def __init__(self, folder: Path) -> None:
        self._workspace = Workspace(folder / "study", Notes())
        self.folder = folder / "study" / "parts"
        files.make_folder(self.folder)
        self.use(lambda line: None)

    def use(self, note: Callable[[str], None]) -> bool:
        self._workspace.progress = Notes(note)
        found = self._workspace.run_jobs([Job("one", lambda: RESULT)])
        return bool(found == {"one": RESULT})

    def use_unhashed(self, path: Path) -> bool | None:
        try:
            return bool(json.loads(path.read_bytes())["result"] != RESULT)
        except (OSError, ValueError, KeyError):
            return False


class Kernel:
    """The compiled kernel: it is compiled again once, which is slow, and later copied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "kernel"
        files.make_folder(self.folder)
        self._library = native.build(torch.float32, self.folder)
        self._spare = shutil.copytree(self.folder, folder / "spare kernel")
        self._compiled, self._loaded = False, 0

    def use(self, note: Callable[[str], None]) -> bool:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            whole = native.is_whole(self._library)
        for one in heard:
            note(str(one.message))
        if not whole and self._compiled:
            shutil.rmtree(self.folder)
            shutil.copytree(self._spare, self.folder)
        elif not whole:
            with warnings.catch_warnings(action="ignore"):  # it was said
                native.build(torch.float32, self.folder)
            self._compiled = True
        return native.is_whole(self._library)

    def use_unhashed(self, path: Path) -> bool | None:
        if path.suffix != ".so" or not path.exists() or self._loaded == LOADED:
            return None
        self._loaded += 1
        command = [sys.executable, "-S", "-c", _LOAD, str(path)]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


Cache = Shards | Results | Kernel


class Notes(Progress):
    def __init__(self, hear: Callable[[str], None] = lambda line: None) -> None:
        self._hear = hear

    def note(self, text: str) -> None:
        self._hear(text)


@dataclass
class Count:
    """Of one cache."""

    trials: int = 0
    found: int = 0  # what came out was right, and the damage was said
    made_again: int = 0  # and the next one to use it has nothing to say
    control: int = 0
    control_used_it: int = 0  # a reader without hashes, without a word

    @property
    def passed(self) -> bool:
        return self.found == self.made_again == self.trials

    def plain(self) -> dict[str, Any]:
        used = f"{self.control_used_it} of {self.control}"
        counts = {"trials": self.trials, "found": self.found, "made_again": self.made_again}
        return {**counts, "control_used_without_hashes": used}


def damage_caches(
    folder: Path, trials: int, seed: int, counts: dict[str, Count], tick: Tick
) -> None:
    """So many damages, to one cache after the other; the kernel's if there is a compiler."""
    caches: dict[str, Cache] = {"shards": Shards(folder), "results of jobs": Results(folder)}
    with suppress(native.Unavailable):
        caches["compiled kernel"] = Kernel(folder)
    counts |= {name: Count() for name in caches}
    for trial in range(trials):
        name = list(caches)[trial % len(caches)]
        _try(caches[name], seed, trial, counts[name])
        tick(f"{trial + 1} of {trials} caches damaged: {name}")


def _try(cache: Cache, seed: int, trial: int, count: Count) -> None:
    good = {path: path.read_bytes() for path in cache.folder.iterdir()}
    path = damage(cache.folder, seed, trial)
    gone = not path.exists()  # nobody wonders at that
    used = cache.use_unhashed(path)
    count.control += used is not None
    count.control_used_it += bool(used)
    said, later = list[str](), list[str]()
    right = cache.use(said.append)
    count.found += right and (gone or any(line.endswith("again") for line in said))
    right = cache.use(later.append)
    count.made_again += right and not any(line.endswith("again") for line in later)
    count.trials += 1
    for file, content in good.items():  # whatever became of it, the next damage is the only one
        file.write_bytes(content)
