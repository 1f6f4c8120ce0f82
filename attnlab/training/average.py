"""A moving average of the weights: while the rate is high, it is far better than the weights.

The average follows the weights by a part of the way after each step. It is what is evaluated, and
what is used of a finished run; training itself continues with the weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attnlab import compat
from attnlab.training.checkpoint import Checkpoint
from attnlab.training.shards import like


class Average:
    def __init__(self, model: nn.Module, memory: float) -> None:
        self.memory = memory
        self._named = dict(model.named_parameters())
        self._tensors = [p.detach().clone() for p in self._named.values()]

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """After update number `step` (1, 2, …); at first it forgets faster, being far behind."""
        part = 1 - min(self.memory, step / (step + 9))
        compat.lerp(self._tensors, list(self._named.values()), part)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averaged weights meanwhile."""
        kept = [p.detach().clone() for p in self._named.values()]
        self._put(self._tensors)
        try:
            yield
        finally:
            self._put(kept)

    @torch.no_grad()
    def _put(self, tensors: list[Tensor]) -> None:
        for parameter, tensor in zip(self._named.values(), tensors, strict=True):
            parameter.copy_(tensor)  # one by one: shards (FSDP) know no copy of many

    def state(self) -> dict[str, Tensor]:
        """Under "parameter/average"; of shards, those of this process."""
        return {
            f"{name}/{SLOT}": tensor
            for name, tensor in zip(self._named, self._tensors, strict=True)
        }

    def load(self, saved: dict[str, Tensor]) -> None:
        for name, tensor in zip(self._named, self._tensors, strict=True):
            if name not in saved or saved[name].shape != tensor.shape:
                fault = "has another shape than the weight" if name in saved else "is missing"
                raise ValueError(f"the average of {name} {fault} in the checkpoint")
            with torch.no_grad():
                tensor.copy_(like(saved[name].to(tensor.device), tensor))


SLOT = "average"


def split(saved: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A saved optimiser's state and the averaged weights kept with it, if there are any."""
    ending = f"/{SLOT}"
    averages = {n.removesuffix(ending): t for n, t in saved.items() if n.endswith(ending)}
    return {n: t for n, t in saved.items() if not n.endswith(ending)}, averages


def weights_to_use(kept: Checkpoint) -> dict[str, Tensor]:
    """Of a checkpoint: the averaged weights if it has them, and buffers as they are."""
    averages = split(kept.optimiser)[1]
    return {**kept.model, **averages} if averages else kept.model
