"""In float64 by name: while a model runs, `torch.float32` in the library's files is float64.

`Float64` (running.py) looks at every call of a tensor's function, a hundred thousand in an audit
and a fifth of its time. Most code names the dtype where it asks for it, `x.to(torch.float32)` or
`x.float()`, and then it is enough that the name means another one. Whether it is enough for a
model is watched (`find_out`); where it is not, every call is looked at.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor

LIBRARY = "transformers"


class _Torch(ModuleType):
    """`torch` as files of the library see it meanwhile."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> object:
        found = getattr(torch, name)
        setattr(self, name, found)  # looked up once
        return found


_WIDE = _Torch("torch")


def files_that_name_it() -> tuple[ModuleType, ...]:
    """Files of the library that are loaded and know `torch` by its name."""
    every = [one for name, one in sys.modules.items() if name.partition(".")[0] == LIBRARY]
    return tuple(one for one in every if vars(one).get("torch") is torch)


@contextmanager
def wide_names(files: Sequence[ModuleType]) -> Iterator[None]:
    default, narrow = torch.get_default_dtype(), Tensor.float
    torch.set_default_dtype(torch.float64)
    Tensor.float = Tensor.double  # type: ignore[method-assign]
    for one in files:
        one.torch = _WIDE  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for one in files:
            one.torch = torch  # type: ignore[attr-defined]
        Tensor.float = narrow  # type: ignore[method-assign]
        torch.set_default_dtype(default)
