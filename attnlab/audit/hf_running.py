"""How code of `transformers` is run: quietly, and in float64 throughout.

Its norms, softmaxes and routers ask for float32 by name. A float64 model would then have float32
accuracy with float64 tolerances; so the name is answered with float64 while it runs.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

NARROW = (torch.float32, torch.bfloat16, torch.float16)


@contextmanager
def quiet() -> Iterator[None]:
    """The library's advice on how to train and generate is not asked for here."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(50)  # nothing but what is critical
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


class Wide(TorchFunctionMode):
    """Wherever float32 is asked for by name there is float64: norms and softmaxes do so.

    Otherwise a float64 model would be one of float32 accuracy with float64 tolerances.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.float:
            func = Tensor.double
        elif kwargs.get("dtype") is torch.float32:
            kwargs = {**kwargs, "dtype": torch.float64}
        elif any(one is torch.float32 for one in args):
            args = tuple(torch.float64 if one is torch.float32 else one for one in args)
        return func(*args, **kwargs)


@contextmanager
def widened() -> Iterator[None]:
    """In float64 by default too: masks made of integers become float32 otherwise, and overflow."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Wide():
            yield
    finally:
        torch.set_default_dtype(before)


class Narrowing(TorchDispatchMode):
    """Whether float64 numbers were made narrower on the way."""

    seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        narrow = isinstance(found, Tensor) and found.dtype in NARROW
        if narrow and any(isinstance(one, Tensor) and one.dtype is torch.float64 for one in args):
            self.seen = True
        return found
