"""beartype as the checker of the tests; like Python itself, it lets an int be a float.

jaxtyping binds the axes of every call, which costs more than most of our functions do. Where no
shape is in a signature there is nothing to bind: beartype alone checks the same there.
"""

import dataclasses
import functools
import inspect
import typing

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
with_shapes = jaxtyping.jaxtyped
# Triton reads the source of these, and calls them with what is no tensor of PyTorch
TRITON = tuple(f"attnlab.kernels.triton.{name}" for name in ("parts", "forward", "backward"))


def jaxtyped(*, typechecker):
    """What the import hook puts above every function and class, in place of jaxtyping's own."""

    def decorate(fn):
        if fn.__module__.startswith(TRITON):
            return fn
        if inspect.isclass(fn):
            if dataclasses.is_dataclass(fn) and _has_no_shapes(fn.__init__):
                if not hasattr(fn.__init__, "__wrapped__"):  # inherited, and checked already
                    fn.__init__ = _plain(fn.__init__)
                return fn
        elif inspect.isfunction(fn) and _has_no_shapes(fn):
            return _plain(fn)
        return with_shapes(fn, typechecker=typechecker)

    return decorate


def _plain(fn):
    checked = check(fn)
    if checked is fn:  # nothing is annotated
        return fn

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        __tracebackhide__ = True
        return (fn if jaxtyping.config.jaxtyping_disable else checked)(*args, **kwargs)

    return wrapped


def _has_no_shapes(fn):
    return all(map(_is_plain, getattr(fn, "__annotations__", {}).values()))


def _is_plain(hint):
    """Names in quotes may be of anything, so jaxtyping looks at them."""
    if isinstance(hint, str | typing.ForwardRef):
        return False
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return False
    inner = hint.__bound__ if isinstance(hint, typing.TypeVar) else None
    return _is_plain(inner) if inner is not None else all(map(_is_plain, _parts(hint)))


def _parts(hint):
    for part in typing.get_args(hint):
        yield from part if isinstance(part, list) else [part]
