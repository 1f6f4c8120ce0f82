"""Processes side by side: one when started plainly, several under torchrun.

A step's samples are the same for any number of processes; each takes its slice of the rows. The
gradient is that of the whole batch, so only rounding depends on how many there are.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attnlab.training.shards import whole


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """The process that writes files and speaks."""
        return self.rank == 0

    def total(self, value: int) -> int:
        if self.size == 1:
            return value
        number = torch.tensor(value, device=self.device)
        dist.all_reduce(number)
        return int(number)

    def all_reduce_sum(self, value: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def all_reduce_max(self, number: int) -> int:
        """The largest number that any process says: all must stop at the same step."""
        if self.size > 1:
            largest = torch.tensor(number, device=self.device)
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            return int(largest)
        return number

    def broadcast(self, text: str) -> str:
        """What the first process says, heard by all; as bytes, since objects would be pickled."""
        if self.size == 1:
            return text
        content = list(text.encode()) if self.first else []
        length = self.all_reduce_max(len(content))
        letters = torch.zeros(length, dtype=torch.uint8, device=self.device)
        if self.first:
            letters.copy_(torch.tensor(content, dtype=torch.uint8))
        dist.broadcast(letters, src=0)
        return bytes(letters.tolist()).decode()


@contextmanager
def world(device: str = "auto") -> Iterator[World]:
    """The processes that torchrun started, or just this one."""
    size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    kind = torch_device(device).type
    local = int(os.environ.get("LOCAL_RANK", 0))
    here = torch.device(kind, local) if kind == "cuda" else torch.device(kind)
    if size == 1:
        yield World(0, 1, here)
        return
    if kind == "cuda":
        torch.cuda.set_device(here)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", rank=rank, world_size=size)
    try:
        yield World(rank, size, here)
        dist.barrier()  # one that ends early takes its half of the connection with it
    finally:
        gc.collect()  # what uses the group must go before it
        dist.destroy_process_group()


def torch_device(device: str) -> torch.device:
    """Of "auto", "cpu" or "cuda"."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}; choose from auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, and there is no CUDA device here; use cpu")
    there = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(there if device == "auto" else device)


def spread(model: nn.Module, kind: str, world: World) -> nn.Module:
    """The model as it is called in a step; its own parameters are replaced in place by FSDP."""
    if world.size == 1:
        return model
    if kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(world.device.type, (world.size,))
        for block in getattr(model, "blocks", []):
            fully_shard(block, mesh=mesh)
        # The outermost would stay whole after a forward pass without a backward one, and an
        # evaluation would leave old weights behind.
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        return model
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model)


def sync_after(spread_model: Any, last: bool) -> AbstractContextManager[Any]:
    """Exchange gradients only after the last part of a step."""
    if hasattr(spread_model, "set_requires_gradient_sync"):
        spread_model.set_requires_gradient_sync(last)
    elif not last and hasattr(spread_model, "no_sync"):
        return spread_model.no_sync()
    return nullcontext()


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, put together from its shards; all processes must call this."""
    return {name: whole(p.detach()) for name, p in model.named_parameters()}
