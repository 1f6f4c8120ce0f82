"""Tensors that lie in shards on several processes (FSDP), put together and cut again.

A shard is a DTensor, whose module takes 0.4 s to import: a process without it has no shards.
"""

import sys
from typing import Any

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """All processes must call this together."""
    put_together: Any = tensor
    return put_together.full_tensor() if is_sharded(tensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """The tensor, cut in shards as the other is."""
    if not is_sharded(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    model: Any = other
    return distribute_tensor(tensor.contiguous(), model.device_mesh, model.placements)
