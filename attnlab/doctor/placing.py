"""Norms in another place: x + f(norm(x)) run as norm(x + f(x)), or as x + norm(f(x)).

Hooks do it: a norm of a layer lets its input through, and the module that is called with that input
next is f, whose output is changed so that the sum comes out as it would be.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

PLACES = {"sum": "norm(x + f(x))", "output": "x + norm(f(x))"}


@contextmanager
def placed(module: nn.Module | None, norms: Sequence[str], place: str) -> Iterator[None]:
    """The norms of these names in that place, while the model runs; an empty place: as they are."""
    if module is None or not place:
        yield
        return
    chosen = {module.get_submodule(name) for name in norms}
    waiting: list[tuple[nn.Module, Tensor]] = []  # a norm that let its input through
    inside: dict[nn.Module, tuple[nn.Module, Tensor]] = {}  # f, and its norm

    def let_through(one: nn.Module, given: Any, out: Any) -> object:
        waiting[:] = [(one, given[0])]
        return given[0]

    def enter(one: nn.Module, given: Any, named: Any) -> None:
        first = next((x for x in (*given, *named.values()) if isinstance(x, Tensor)), None)
        if waiting and first is waiting[0][1]:
            inside[one] = waiting.pop()

    def leave(one: nn.Module, given: Any, named: Any, out: Any) -> object:
        if one not in inside:
            return out
        norm, x = inside.pop(one)
        forward: Callable[[Tensor], Tensor] = norm.forward
        value = out[0] if isinstance(out, tuple) else out
        value = forward(x + value) - x if place == "sum" else forward(value)
        return (value, *out[1:]) if isinstance(out, tuple) else value

    handles = []
    try:
        for one in module.modules():
            if one in chosen:
                handles.append(one.register_forward_hook(let_through))
            else:
                handles.append(one.register_forward_pre_hook(enter, with_kwargs=True))
                handles.append(one.register_forward_hook(leave, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
