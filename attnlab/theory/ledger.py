"""A ledger of the tensors that operations make: how large they are, and how many live at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from attnlab.theory.draw import drawn, kept

Program = Callable[[Tensor, Tensor, Tensor, int], Tensor]  # of q, k, v and w


class Ledger(TorchDispatchMode):
    """Writes down every tensor that operations make, beside those given, and how many live.

    It sees what PyTorch runs, so not the inside of a compiled kernel.
    """

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        # held to the end: a reference keeps the name of a piece of memory from being used again
        self._given = {ref.cdata: ref for ref in map(_memory, given)}
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.operations: list[tuple[str, torch.Size]] = []
        self.held = 0  # numbers alive at once, at the worst moment

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor):
                self._write(func.overloadpacket.__name__, result)
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        self.held = max(self.held, sum(numbers for _, numbers in self._alive.values()))
        return results

    def _write(self, operation: str, result: Tensor) -> None:
        self.operations.append((operation, result.shape))
        memory = _memory(result)
        if memory.cdata not in self._given and memory.cdata not in self._made:  # else it is a view
            numbers = result.untyped_storage().nbytes() // result.element_size()
            self._made[memory.cdata] = self._alive[memory.cdata] = memory, numbers

    def largest_beside(self, result: Tensor) -> int:
        """Numbers in the largest tensor that was made on the way to the result."""
        own = _memory(result).cdata
        return max((n for key, (_, n) in self._made.items() if key != own), default=0)


def _memory(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


@dataclass(frozen=True)
class Cost:
    multiply_adds: int  # of matrix products
    largest: int  # numbers in the largest tensor that is neither given nor the result
    held: int  # numbers alive at once, with the result and without what was given


@kept
def counted(program: Program, seed: int, length: int, width: int, head_width: int) -> Cost:
    inputs = drawn(seed, length, head_width)
    with FlopCounterMode(display=False) as operations, Ledger(*inputs) as ledger:
        out = program(inputs[0], inputs[1], inputs[2], width)
    # it counts a multiply-add as two
    return Cost(operations.get_total_flops() // 2, ledger.largest_beside(out), ledger.held)
