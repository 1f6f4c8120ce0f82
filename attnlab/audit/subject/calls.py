"""Calls as text: what code was given while something ran, as Python that gives the same again.

What is evaluated here is what a script says, so both are the same. The texts are our own; of a
person's code there are names of parameters in them, which are identifiers.

Axes: b batch, t time.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.errors import ScriptError
from attnlab.audit.repro.prelude import additive_mask, sample
from attnlab.audit.signature import signature

# What an argument may be. `x` and `padding` are [b, t, …] here, whatever the code's own axes are.
BAND = "torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)"
EXPRESSIONS = (
    *("x", "x.transpose(0, 1)", "q", "k", "v"),
    *("q.transpose(1, 2)", "k.transpose(1, 2)", "v.transpose(1, 2)"),
    *("padding", "~padding", "(~padding).long()", "(~padding).to(x.dtype)"),
    *("padding[:, None, None]", "~padding[:, None, None]"),
    "positions",
    "torch.ones_like(padding)",
    "torch.zeros_like(x)",
    "torch.arange(x.shape[1])",
    "torch.arange(x.shape[1])[None]",
    "torch.arange(x.shape[1]).expand(x.shape[0], -1)",
    *(f"{BAND}.tril()", f"{BAND}.triu(1)", BAND),
)
KNOWN = {"torch": torch, "sys": sys, "sample": sample, "additive_mask": additive_mask}


def evaluate(text: str, **given: Any) -> Any:
    return eval(_compile(text), {**KNOWN, **given})


@lru_cache(maxsize=1024)
def _compile(text: str) -> CodeType:
    return compile(text, "<expression>", "eval")


@dataclass(frozen=True)
class Call:
    """How code is called; every argument is an expression."""

    positional: tuple[str, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)

    def text(self, code: str = "code", more: str = "") -> str:
        named = (f"{name}={text}" for name, text in self.named.items())
        return f"{code}({', '.join([*self.positional, *named, *([more] if more else [])])})"


def record(
    module: nn.Module, run: Callable[[], Any], known: Mapping[str, str], **given: Any
) -> Call:
    """What the module was given last while something ran; `known` says some of it by name."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    depth = 0  # a module may call itself

    def note(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal depth
        if depth == 0:
            calls.append((positional, dict(named)))
        depth += 1

    def leave(*_: Any) -> None:
        nonlocal depth
        depth -= 1

    handles = [
        module.register_forward_pre_hook(note, with_kwargs=True),
        module.register_forward_hook(leave, always_call=True),
    ]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    if not calls:
        raise ScriptError(f"{type(module).__name__} is not called as a module; a script cannot")
    positional, named = calls[-1]
    return Call(
        tuple(expression_of(value, given) for value in positional),
        {name: known.get(name) or expression_of(value, given) for name, value in named.items()},
    )


def expression_of(value: object, given: Mapping[str, Any]) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, bool | int | float | str | None | torch.dtype):
        return repr(value)
    value = value.cpu() if isinstance(value, Tensor) else value
    for text in EXPRESSIONS:
        try:
            wanted = evaluate(text, **given)
        except (NameError, TypeError, IndexError):  # of something that is not given
            continue
        if value is wanted or _same(value, wanted):
            return text
    raise ScriptError(f"it is called with a {type(value).__name__} that a script cannot make")


def _same(one: object, other: object) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def takes_by_name(code: Any) -> bool:
    """Whether the first parameter cannot be given in any other way."""
    first = next(iter(signature(code).parameters.values()))
    return first.kind is first.KEYWORD_ONLY
