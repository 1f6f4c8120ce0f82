"""How a module decodes: by what it is given its KV cache, and where the new positions begin.

A cache is a list: what the code keeps, how many positions it holds, and the module that keeps it.
They are made at the first step, since some code wants to know the number of rows.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.errors import SubjectError, calling
from attnlab.audit.repro.prelude import kept_in, seeded
from attnlab.audit.subject.calls import evaluate
from attnlab.audit.subject.tensors import first_tensor

ModuleCall = Callable[[nn.Module, Tensor, Mapping[str, Any]], Any]


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """One way to step a module; names are those of its parameters."""

    word: str | None = None  # takes the cache
    make: str = "None"  # a new cache, as an expression of `code`, `x` and `dtype`
    start: str | None = None  # takes where the new positions begin
    counted: bool = False  # the start is a number, not the new positions
    flags: tuple[str, ...] = ()  # that are given True
    held: bool = False  # the module keeps the cache: every text has a copy of the module
    setup: str = ""  # an expression by which that copy makes room
    method: str = ""  # takes one position; without one the module is called
    flat: bool = False  # that position as [b, …], without an axis of time

    def new_cache(self) -> list[Any]:
        return [None, 0, None]

    def step(
        self,
        x: Tensor,
        cache: list[Any],
        *,
        module: nn.Module,
        dtype: torch.dtype,
        call: ModuleCall,
    ) -> Any:
        """What the code gives for new positions x [b, t, …]; `call` calls a module with x."""
        if self.method and x.shape[1] > 1:
            every = [
                self.step(one, cache, module=module, dtype=dtype, call=call)
                for one in x.split(1, dim=1)
            ]
            if len({one.shape for one in every}) > 1:
                raise SubjectError(f"`{self.method}` gave outputs of more than one width")
            return torch.cat(every, dim=1)
        if cache[2] is None:
            self._begin(cache, x, module, dtype)
        given: dict[str, Any] = dict.fromkeys(self.flags, True)
        if self.word is not None:
            given[self.word] = cache[0]
        begun, count = cache[1], x.shape[1]
        if self.start is not None:
            given[self.start] = begun if self.counted else torch.arange(begun, begun + count)
        if self.method:
            with seeded(), calling(self.method, count):
                found = getattr(cache[2], self.method)(x[:, 0] if self.flat else x, **given)
        else:
            found = call(cache[2], x, given)
        if self.word is not None:
            kept = kept_in(found, self.word)
            cache[0] = cache[0] if kept is None else kept
        cache[1] = begun + count
        if not self.method:
            return found
        out = first_tensor(found)
        if not out.numel() or out.numel() % len(x):
            raise SubjectError(f"`{self.method}` gave {list(out.shape)} for {len(x)} rows")
        return out.reshape(len(x), 1, -1)

    def _begin(self, cache: list[Any], x: Tensor, module: nn.Module, dtype: torch.dtype) -> None:
        given = {"x": x, "dtype": dtype}
        if not self.held:
            with calling(self.make):
                cache[0] = evaluate(self.make, code=module, **given)
            cache[2] = module
            return
        module = try_copy(module) or module  # there may be only the one
        if self.setup:
            with calling(self.setup):
                evaluate(self.setup, code=module, **given)
                module = module.to(dtype)
        cache[2] = module


def try_copy(module: nn.Module) -> nn.Module | None:
    """A copy, if the module can be copied."""
    try:
        with calling("__deepcopy__"):  # a person's code may hold anything
            return copy.deepcopy(module)
    except SubjectError:
        return None
