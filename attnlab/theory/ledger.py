"""A ledger of operations: the tensors they make, how many live at once, and the multiply-adds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import flop_registry

from attnlab.compat import TorchDispatchMode, tree_leaves
from attnlab.theory.draw import kept

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
        self.multiply_adds = 0  # of matrix products, by PyTorch's own formulas

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:  # they count a multiply-add as two
            self.multiply_adds += formula(*args, **(kwargs or {}), out_val=results) // 2
        for result in [results] if isinstance(results, Tensor) else tree_leaves(results):
            if isinstance(result, Tensor):
                self._write(func.overloadpacket.__name__, result)
        return results

    def _write(self, operation: str, result: Tensor) -> None:
        self.operations.append((operation, result.shape))
        memory = _memory(result)
        if memory.cdata in self._given or memory.cdata in self._made:
            return  # a view
        numbers = result.untyped_storage().nbytes() // result.element_size()
        self._made[memory.cdata] = memory, numbers
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        self._alive[memory.cdata] = memory, numbers
        self.held = max(self.held, sum(numbers for _, numbers in self._alive.values()))

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
def counted(program: Program, length: int, width: int, head_width: int) -> Cost:
    """What a program costs for one shape: the numbers in it change nothing, so they are all 1."""
    q, k, v = (torch.ones(length, head_width, dtype=torch.float64) for _ in "qkv")
    with Ledger(q, k, v) as ledger:
        out = program(q, k, v, width)
    return Cost(ledger.multiply_adds, ledger.largest_beside(out), ledger.held)
