"""Code of JAX, called from PyTorch: functions of q, k and v, and modules of Flax (nnx and linen).

    torch tensors --dlpack--> arrays --the code--> arrays --dlpack--> torch tensors

The weights of a Flax module become parameters of a PyTorch one, so all that is done to weights
(noise on closed gates, other precisions, changes in their last bits) is done to these too. JAX is
imported by the audited file, and never by us before that.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from attnlab.audit.errors import InputError, calling

# which sizes of a linen module say how wide its inputs are, and how many tokens there are
WIDTHS = ("width", "dim", "d_model", "embed_dim", "hidden_size", "features", "qkv_features")
VOCABULARIES = ("vocabulary", "vocab_size", "num_embeddings")


def from_jax(code: Any) -> Callable[..., Any]:
    """A function of JAX as one of PyTorch: tensors go in, and tensors come out."""
    import jax

    jax.config.update("jax_enable_x64", True)  # else float64 is not what it says

    def to_jax(one: Any) -> object:
        tensor = isinstance(one, Tensor)
        return jax.numpy.from_dlpack(one.detach().contiguous(), copy=True) if tensor else one

    def to_torch(one: object) -> object:
        return from_dlpack(one) if isinstance(one, jax.Array) else one

    @functools.wraps(code)
    def call(*inputs: Any, **more: Any) -> object:
        given = {name: to_jax(one) for name, one in more.items()}
        found = jax.block_until_ready(code(*map(to_jax, inputs), **given))
        return jax.tree.map(to_torch, found)

    call.of_jax = True  # type: ignore[attr-defined]
    return call


def is_from_jax(code: object) -> bool:
    return getattr(code, "of_jax", False) is True


class FlaxModule(nn.Module):
    """A Flax module whose weights are parameters of this one."""

    def __init__(self, weights: list[Any], apply: Callable[..., Any], called: Any) -> None:
        super().__init__()
        import jax

        self._weights: list[Any] = []  # as they are, where they are no floating-point numbers
        for number, one in enumerate(weights):
            array = isinstance(one, jax.Array)
            real = array and jax.numpy.issubdtype(one.dtype, jax.numpy.floating)
            self._weights.append(None if real else one)
            if real:
                tensor = from_dlpack(jax.numpy.array(one, copy=True)).clone()
                self.register_parameter(f"weight_{number}", nn.Parameter(tensor))
        self._apply_flax = apply
        signature = inspect.signature(called)

        def forward(*inputs: Any, **more: Any) -> object:
            return from_jax(self._call)(*inputs, **more)

        forward.__signature__ = signature  # type: ignore[attr-defined]
        self.forward = forward  # type: ignore[method-assign]

    def _call(self, *inputs: Any, **more: Any) -> object:
        import jax

        every = []
        for number, one in enumerate(self._weights):
            if one is None:
                own = getattr(self, f"weight_{number}").detach().contiguous()
                one = jax.numpy.from_dlpack(own, copy=True)
            every.append(one)
        return self._apply_flax(every, *inputs, **more)

    def __deepcopy__(self, memo: Any) -> "FlaxModule":
        other = FlaxModule([], self._apply_flax, self.forward)
        sizes = {name: one for name, one in vars(self).items() if type(one) is int}
        vars(other).update(sizes, _weights=list(self._weights))
        for name, one in self.named_parameters():
            other.register_parameter(name, nn.Parameter(one.detach().clone()))
        return other.train(self.training)


def adopt(code: object, options: Mapping[str, Any]) -> Any:
    """Code as PyTorch can call it; unchanged if it is not of JAX."""
    kinds = {name.partition(".")[0] for one in type(code).__mro__ for name in (one.__module__,)}
    if "flax" in kinds:
        with calling("flax"):
            return _flax_module(code, options)
    if callable(code) and not isinstance(code, nn.Module | type) and _names_jax(code):
        return from_jax(code)
    return code


def _names_jax(code: Any) -> bool:
    """Whether a function is JAX's own, or names something of JAX."""
    if "jax" not in sys.modules:
        return False
    plain = inspect.unwrap(code)
    if str(getattr(plain, "__module__", "")).partition(".")[0] == "jax":
        return True
    text, around = getattr(plain, "__code__", None), getattr(plain, "__globals__", {})
    used = [around[name] for name in getattr(text, "co_names", ()) if name in around]
    homes = [
        one.__name__ if isinstance(one, ModuleType) else str(getattr(one, "__module__", ""))
        for one in used
    ]
    return any(home.partition(".")[0] == "jax" for home in homes)


def _flax_module(code: object, options: Mapping[str, Any]) -> FlaxModule:
    import jax

    jax.config.update("jax_enable_x64", True)
    from flax import linen, nnx

    if isinstance(code, nnx.Module):
        code.eval()
        graph, state = nnx.split(code)
        leaves, tree = jax.tree.flatten(state)

        def merge(weights: list[Any], *inputs: Any, **more: Any) -> object:
            return nnx.merge(graph, jax.tree.unflatten(tree, weights))(*inputs, **more)

        found = FlaxModule(leaves, merge, code.__call__)
    elif isinstance(code, linen.Module):
        x = _example(code, options)
        leaves, tree = jax.tree.flatten(code.init(jax.random.key(0), x))

        def apply(weights: list[Any], *inputs: Any, **more: Any) -> object:
            return code.apply(jax.tree.unflatten(tree, weights), *inputs, **more)

        found = FlaxModule(leaves, apply, code.__call__)
    else:
        raise InputError(f"{type(code).__name__} is of Flax, but no module of nnx or linen")
    for name in {*options, *vars(code)}:  # sizes that the audit reads by name
        value = options.get(name, getattr(code, name, None))
        if type(value) is int and not hasattr(found, name):
            setattr(found, name, value)
    weights = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, leaves))[0]
    tables = (one.shape[0] for path, one in weights if "kernel" in jax.tree_util.keystr(path))
    if not any(hasattr(found, name) for name in WIDTHS):
        vars(found)["width"] = next(tables, 0)  # of what the first table is multiplied with
    return found


def _example(code: object, options: Mapping[str, Any]) -> object:
    """Inputs with which a linen module makes its weights."""
    import jax

    def first(names: tuple[str, ...]) -> int | None:
        values = (options.get(name, getattr(code, name, None)) for name in names)
        return next((value for value in values if type(value) is int), None)

    vocabulary, width = first(VOCABULARIES), first(WIDTHS)
    if vocabulary:
        return jax.numpy.zeros((1, 4), int)
    if width is None:
        raise InputError(f"{type(code).__name__}: no width found; name it, such as width=32")
    return jax.numpy.zeros((1, 4, width))
