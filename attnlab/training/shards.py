"""Tensors that lie in shards on several processes (FSDP), put together and cut again.

A shard is a DTensor, whose module takes 0.4 s to import: a process without it has no shards. FSDP
cuts a tensor into ranges of rows, its first dimension, as `torch.chunk` does. With several copies
of the weights (hybrid sharding) every copy is cut alike.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # who only looks at what is there need not wait for torch
    from torch import Tensor


@dataclass(frozen=True)
class Cut:
    """How tensors are cut: into how many shards, and which of them this process has."""

    shards: int
    shard: int
    copy: int = 0  # of the weights; those of the first are written

    def rows(self, count: int) -> tuple[int, int]:
        """The rows that this process has of so many."""
        begin, end = bounds(count, self.shards)[self.shard : self.shard + 2]
        return begin, end


def bounds(count: int, shards: int) -> list[int]:
    """Where each shard of so many rows begins, and where the last one ends."""
    each = -(-count // shards)
    return [min(number * each, count) for number in range(shards + 1)]


def is_sharded(tensor: "Tensor") -> bool:
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def cut_of(tensor: "Tensor") -> Cut:
    """Of a tensor in shards."""
    sharded: Any = tensor
    mesh, last = sharded.device_mesh, sharded.device_mesh.ndim - 1
    assert sharded.placements[last].is_shard(0), "FSDP cuts rows"
    copy = mesh.get_local_rank(0) if last else 0
    return Cut(mesh.size(last), mesh.get_local_rank(last), copy)


def own(tensor: "Tensor") -> "Tensor":
    """The rows that this process has; a tensor that is not cut is there whole."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def whole(tensor: "Tensor") -> "Tensor":
    """All processes must call this together."""
    put_together: Any = tensor
    return put_together.full_tensor() if is_sharded(tensor) else tensor


def like(tensor: "Tensor", other: "Tensor") -> "Tensor":
    """The tensor, cut in shards as the other is."""
    if not is_sharded(other) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    model: Any = other
    return distribute_tensor(tensor.contiguous(), model.device_mesh, model.placements)


def join(rows: "Tensor", other: "Tensor") -> "Tensor":
    """A tensor of which every process has its rows, cut as the other is; nothing is sent."""
    import torch
    from torch.distributed.tensor import DTensor

    model: Any = other
    return DTensor.from_local(
        rows,
        model.device_mesh,
        model.placements,
        run_check=False,
        shape=torch.Size(model.shape),
        stride=model.stride(),
    )
