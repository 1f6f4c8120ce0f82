"""Private interfaces of PyTorch: all that this package uses of them, each with its reason.

When a release of PyTorch moves one, this is the file to change. The audit names its own: scripts
that it prints must run without this package.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

# The type of such an operation, as the dispatcher hands it on.
from torch._ops import OpOverload

# The only way to see every operation as it runs, with the shapes it really has: for counting
# operations, and for asking which of PyTorch's attention kernels was taken.
from torch.utils._python_dispatch import TorchDispatchMode

# The tensors in the arguments of such an operation, however they are nested.
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = [
    "PLAIN_FUNCTIONS",
    "OpOverload",
    "TorchDispatchMode",
    "allow_recompiles",
    "cpp_compiler",
    "lerp",
    "recompile_limit",
    "tree_leaves",
    "tree_map_only",
]

# As the `__torch_function__` of a tensor's class: functions of torch leave it a plain operand, and
# its `__torch_dispatch__` alone is asked.
PLAIN_FUNCTIONS: Any = torch._C._disabled_torch_function_impl


def lerp(tensors: Sequence[Tensor], ends: Sequence[Tensor], part: float) -> None:
    """Move every tensor by a part of the way to its end, in place.

    All of them in one call: one after another, a GPU would wait for Python.
    """
    torch._foreach_lerp_(list(tensors), list(ends), part)


def recompile_limit(shapes: int) -> AbstractContextManager[object]:
    """Within this a compiled function may be compiled again for so many shapes.

    Past its limit PyTorch runs the function uncompiled and says nothing. There is no public setting
    for the limit.
    """
    return torch._dynamo.config.patch(
        recompile_limit=shapes, accumulated_recompile_limit=4 * shapes
    )


def allow_recompiles(count: int) -> None:
    """From now on a compiled function may be compiled again so often, in all of this process.

    Blocks of a model share one function, and each differs by its number.
    """
    settings = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, count)
    settings.accumulated_recompile_limit = max(settings.accumulated_recompile_limit, 4 * count)


def cpp_compiler() -> str | None:
    """The C++ compiler that torch.compile would use on this machine, or None.

    There is no public way to ask: torch.compile only fails when it finds none.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        return get_cpp_compiler()
    except RuntimeError:
        return None
