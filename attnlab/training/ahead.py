"""Batches made ahead of their step, in a thread: reading them costs a step no time.

A batch is a function of its step, so nothing is remembered and nothing has to be saved: one that
was made and not used, as after a signal, is made again. On CUDA it lies in pinned memory, from
which it is copied while the GPU computes.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from attnlab.data.batches import Batch

AHEAD = 2  # steps; one would do if all took equally long


class Ahead:
    """`make(step)` for one step after the other, each begun before it is asked for."""

    def __init__(self, make: Callable[[int], list[Batch]], last: int, device: torch.device) -> None:
        self._make, self._last, self._pinned = make, last, device.type == "cuda"
        begin = (lambda: torch.cuda.set_device(device)) if self._pinned else None
        self._thread = ThreadPoolExecutor(1, "batches", begin)
        self._coming: dict[int, Future[list[Batch]]] = {}

    def batch(self, step: int) -> list[Batch]:
        """An error of making it is raised here."""
        wanted = range(step, max(step + 1, min(step + 1 + AHEAD, self._last)))
        for other in [one for one in self._coming if one not in wanted]:
            self._coming.pop(other).cancel()
        for one in wanted:
            if one not in self._coming:
                self._coming[one] = self._thread.submit(self._made, one)
        return self._coming.pop(step).result()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _made(self, step: int) -> list[Batch]:
        parts = self._make(step)
        return [part.changed(Tensor.pin_memory) for part in parts] if self._pinned else parts
