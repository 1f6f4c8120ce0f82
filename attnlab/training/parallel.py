"""Processes side by side: one when started plainly, several under torchrun.

A step's samples are the same for any number of processes; each takes its slice of the rows. The
gradient is that of the whole batch, so only rounding depends on how many there are.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from attnlab import command
from attnlab.kernels import hardware
from attnlab.training.heartbeat import Heartbeat, Lost, meet
from attnlab.training.recipe import Recipe
from attnlab.training.shards import Cut

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

TIMEOUT = 600.0  # seconds
REMEMBERED = "attnlab/remembered"


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device
    heart: Heartbeat | None = None
    store: Store | None = (
        None  # of the torchrun that has started this process; it outlives a restart
    )

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

    def gather(self, text: str) -> list[str]:
        """What each process says; as bytes, since objects would be pickled."""
        if self.size == 1:
            return [text]
        content = text.encode()
        sizes = [torch.zeros((), dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor(len(content)))
        longest = max(map(int, sizes)) or 1
        said = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        mine = torch.frombuffer(bytearray(content.ljust(longest)), dtype=torch.uint8)
        dist.all_gather(said, mine)
        return [
            one[: int(size)].numpy().tobytes().decode()
            for one, size in zip(said, sizes, strict=True)
        ]

    def broadcast(self, text: str) -> str:
        """What the first process says, heard by all."""
        return self.gather(text if self.first else "")[0]

    def remember(self, text: str) -> None:
        """What the processes are to know when torchrun starts them again; the first one says it."""
        if self.store is not None and self.first:
            self.store.set(REMEMBERED, text)

    def recall(self) -> str:
        """What was remembered before torchrun started these processes again; else empty."""
        known = ""
        if self.store is not None and self.first and self.store.check([REMEMBERED]):
            known = self.store.get(REMEMBERED).decode()
        return self.broadcast(known)

    def reached(self, step: int) -> None:
        """Tell the others how far this process is, should it be lost."""
        if self.heart is not None:
            self.heart.step = step


def facts(world: World) -> dict[str, str | int]:
    """The machine, the processes and the command of a run."""
    return {
        **hardware.machine(world.device),
        "processes": world.size,
        "pid": os.getpid(),
        "command": command.line(),
    }


def processes() -> int:
    """How many torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def world(device: str = "auto", timeout: float = TIMEOUT) -> Iterator[World]:
    """The processes that torchrun started, or just this one.

    A process that waits for others longer than `timeout` seconds ends with a line that names them.
    """
    size, rank = processes(), int(os.environ.get("RANK", 0))
    kind = torch_device(device).type
    local = int(os.environ.get("LOCAL_RANK", 0))
    here = torch.device(kind, local) if kind == "cuda" else torch.device(kind)
    longest = timedelta(seconds=timeout)
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if size == 1:
        yield World(0, 1, here, store=_store_of_torchrun(longest) if shared else None)
        return
    if kind == "cuda":
        torch.cuda.set_device(here)
    launch = _store_of_torchrun(longest)
    store = meet(launch, rank, size, timeout)
    # what processes say to each other goes over the CPU: no GPU waits for it
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=longest)
    heart = Heartbeat(store, rank, size, timeout)
    heart.start()
    try:
        yield World(rank, size, here, heart, launch if shared else None)
        dist.barrier()  # one that ends early takes its half of the connection with it
    except BaseException as error:
        lost = heart.diagnose() if type(error) in COLLECTIVE else ""
        heart.stop(None if lost else error)
        if not lost:
            raise
        raise Lost(f"{lost}. To go on from the newest checkpoint: --resume") from error
    finally:
        heart.stop()
        gc.collect()  # what uses the group must go before it
        dist.destroy_process_group()


# what a collective operation raises that has failed
COLLECTIVE = (RuntimeError, dist.DistBackendError, dist.DistNetworkError, dist.DistStoreError)


def _store_of_torchrun(timeout: timedelta) -> Store:
    """The first agent keeps it as long as it lives; without agents, the first process does."""
    return next(rendezvous("env://", timeout=timeout))[0]


def torch_device(device: str) -> torch.device:
    """Of "auto", "cpu" or "cuda"."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}; choose from auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, and there is no CUDA device here; use cpu")
    there = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(there if device == "auto" else device)


def local_processes() -> int:
    """Of this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", processes()))


def spread(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """The model as it is called in a step; its own parameters are replaced in place by FSDP."""
    if world.size == 1:
        return model
    if recipe.parallel == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh, policy = mesh_of(recipe, world), precision(recipe, world.device)
        for block in getattr(model, "blocks", []):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        # The outermost would stay whole after a forward pass without a backward one, and an
        # evaluation would leave old weights behind.
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        return model
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model)


def cut_for(recipe: Recipe, world: World) -> Cut | None:
    """How the weights are cut in this training; None: every process has all of them."""
    if world.size == 1 or recipe.parallel != "fsdp":
        return None
    if world.size % recipe.replicas:
        raise ValueError(
            f"replicas is {recipe.replicas}, which does not divide {world.size} processes"
        )
    shards = world.size // recipe.replicas
    return Cut(shards, world.rank % shards, world.rank // shards)


def mesh_of(recipe: Recipe, world: World) -> "DeviceMesh":
    """Processes in a row, or a row of them for each copy of the weights."""
    from torch.distributed.device_mesh import init_device_mesh

    if recipe.replicas == 1:
        return init_device_mesh(world.device.type, (world.size,))
    shape = (recipe.replicas, world.size // recipe.replicas)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("replica", "shard"))


def precision(recipe: Recipe, device: torch.device) -> "MixedPrecisionPolicy":
    """Of what FSDP sends: weights in half precision if products are, gradients in float32.

    On a CPU weights are sent as they are: there half precision saves no time.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if recipe.dtype == "float32" or device.type == "cpu":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, recipe.dtype), reduce_dtype=torch.float32
    )


def sync_after(spread_model: Any, last: bool) -> AbstractContextManager[Any]:
    """Exchange gradients only after the last part of a step."""
    if hasattr(spread_model, "set_requires_gradient_sync"):
        spread_model.set_requires_gradient_sync(last)
    elif not last and hasattr(spread_model, "no_sync"):
        return spread_model.no_sync()
    return nullcontext()
