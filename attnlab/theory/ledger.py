"""A ledger of operations: the tensors they make, how many live at once, and the multiply-adds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import flop_registry

from attnlab.compat import OpOverload, TorchDispatchMode, tree_leaves
from attnlab.theory.draw import cached

Program = Callable[[Tensor, Tensor, Tensor, int], Tensor]  # of q, k, v and w


class Ledger(TorchDispatchMode):
    """Records every new tensor that PyTorch operations make, and how many are alive at once.

    Operations inside a compiled kernel are not recorded.
    """

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        # held to the end: a live reference keeps the address of a storage from being reused
        self._given = {ref.cdata: ref for ref in map(_memory, given)}
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.operations: list[tuple[str, torch.Size]] = []
        self.held = 0  # numbers alive at once, at the worst moment
        self.multiply_adds = 0  # of matrix products, by PyTorch's own formulas

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        results = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:  # PyTorch counts a multiply-add as two operations
            self.multiply_adds += formula(*args, **(kwargs or {}), out_val=results) // 2
        for result in [results] if isinstance(results, Tensor) else tree_leaves(results):
            if isinstance(result, Tensor):
                self._record(func.overloadpacket.__name__, result)
        return results

    def _record(self, operation: str, result: Tensor) -> None:
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
        """Numbers in the largest intermediate tensor: neither given nor the result."""
        own = _memory(result).cdata
        return max((n for key, (_, n) in self._made.items() if key != own), default=0)


def _memory(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


@dataclass(frozen=True)
class Cost:
    multiply_adds: int  # of matrix products
    largest: int  # numbers in the largest tensor that is neither given nor the result
    held: int  # numbers alive at once, with the result and without what was given


@cached
def cost_of(program: Program, length: int, width: int, head_width: int) -> Cost:
    """The cost of a program for one shape. The inputs are all 1: their values do not matter."""
    q, k, v = (torch.ones(length, head_width, dtype=torch.float64) for _ in "qkv")
    with Ledger(q, k, v) as ledger:
        out = program(q, k, v, width)
    return Cost(ledger.multiply_adds, ledger.largest_beside(out), ledger.held)
