"""The mask that models of `transformers` are given: a plan, and a tensor if somebody looks inside.

Our attention takes the plan; no [b, 1, q, k] is ever made in memory. But a model may do to its mask
what it likes: add a bias, cut it, write into it. Whatever is computed with this tensor is computed
with the dense mask of the library, made then, and what is written stays written: from then on our
attention takes the dense mask too.

Axes: b batch, q queries, k keys.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnlab.compat import PLAIN_FUNCTIONS, tree_map_only
from attnlab.integrations.mask_terms import Plan

_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class _Inside:
    """A plan, and the dense mask once it was made: shared by all tensors of one mask."""

    def __init__(self, plan: Plan, make: Callable[[], Tensor]) -> None:
        self.plan: Plan | None = plan
        self._make = make

    @cached_property
    def dense(self) -> Tensor:
        self.plan = None
        with torch.no_grad():
            return self._make()


class LazyMask(Tensor):
    """A mask [b, 1, q, k] of numbers to add to scores, as the eager attention is given it."""

    inside: _Inside
    __torch_function__ = PLAIN_FUNCTIONS

    @staticmethod
    def __new__(
        cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, inside: _Inside
    ) -> "LazyMask":
        made: LazyMask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made.inside = inside
        return made

    @classmethod
    def of(
        cls,
        plan: Plan,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        make: Callable[[], Tensor],
    ) -> "LazyMask":
        return cls(shape, dtype, device, _Inside(plan, make))

    @property
    def plan(self) -> Plan | None:
        """What it asks for; None once somebody has looked inside."""
        return self.inside.plan

    @property
    def dense(self) -> Tensor:
        return self.inside.dense

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"LazyMask({list(self.shape)}, {self.plan or 'dense'})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.dense.clone()

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        return self.dense.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        if func in _SAME or (func is torch.ops.aten.slice.Tensor and _keeps_all(*args)):
            mask = args[0]
            return cls(tuple(mask.shape), mask.dtype, mask.device, mask.inside)
        args, kwargs = tree_map_only(LazyMask, lambda one: one.dense, (args, kwargs or {}))
        return func(*args, **kwargs)


def _keeps_all(
    x: Tensor, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> bool:
    size = x.shape[axis]
    return not start and (end is None or end >= size) and step == 1
