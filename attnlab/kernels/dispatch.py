"""The one attention function, and the choice of the path that serves it.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypedDict, Unpack, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab import registry
from attnlab.kernels import banded, flex, hardware, reference, sdpa
from attnlab.kernels.request import LinearBias, Request
from attnlab.kernels.rotary import Rotation, check_rotation, rotate

FEW_QUERIES = 8  # up to this a tile is mostly empty, and a dense mask small
# from here on our compiled path beats PyTorch's on the CPU at full causal attention (docs/notes.md)
NATIVE_QUERIES, NATIVE_PAIRS = 32, 1 << 17


@dataclass(frozen=True)
class Choice:
    """A path and why it was taken."""

    path: str
    reason: str


DECODING = Choice("sdpa", "one query without gradient")
_record: ContextVar[set[Choice] | None] = ContextVar("the choices of paths", default=None)


@dataclass(frozen=True)
class Path:
    attend: Callable[[Request], Tensor]
    refusal: Callable[[Request], str | None]


PATHS = {
    "reference": Path(reference.attend, reference.refusal),
    "sdpa": Path(sdpa.attend, sdpa.refusal),
    "native": Path(
        partial(banded.attend, engine="native"), partial(banded.refusal, engine="native")
    ),
    "tiled": Path(partial(banded.attend, engine="tiled"), partial(banded.refusal, engine="tiled")),
    "flex": Path(flex.attend, flex.refusal),
}


class Options(TypedDict, total=False):
    """The keywords of `attention` that both of its forms have."""

    causal: bool
    window: int | None
    scale: float | None
    rotary: Rotation | None
    bias: LinearBias | Tensor | None
    key_padding: Tensor | None
    dropout: float
    path: str


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_weights: Literal[False] = False,
    **options: Unpack[Options],
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_weights: Literal[True], **options: Unpack[Options]
) -> tuple[Tensor, Tensor]: ...
def attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    rotary: Rotation | None = None,
    bias: LinearBias | Tensor | None = None,
    key_padding: Bool[Tensor, "b k"] | None = None,
    dropout: float = 0.0,
    path: str = "auto",
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · q kᵀ + bias) v over the keys each query attends to.

    k and v may have fewer heads: head i of q reads head i // (h // g). `window` counts the keys a
    query attends to, including its own; without `causal` it reaches as far ahead as back. With
    fewer queries than keys, the queries are the last ones. `rotary` holds the angles of the keys.
    `key_padding` is True for keys that no query attends to; what stands there is never read. A
    query without keys gives 0. `dropout` leaves out weights at random, for training.
    `return_weights=True` gives (output, weights) by the reference.
    """
    if rotary is not None:
        check_rotation(rotary, k.shape[0], k.shape[2], k.shape[3])
        q, k = rotate(q, rotary.last(q.shape[2])), rotate(k, rotary)
    request = Request(
        q=q,
        k=k,
        v=v,
        causal=causal,
        window=window,
        scale=scale,
        bias=bias,
        key_padding=key_padding,
        dropout=dropout,
    )
    request.check()
    if not return_weights:
        return attend(request, path)
    if path not in ("auto", "reference"):
        raise ValueError(f"path {path!r} keeps no weights; use path='reference' or 'auto'")
    return attend_with_weights(request)


def attend(request: Request, path: str = "auto") -> Float[Tensor, "b h q e"]:
    """The output, by the path that serves the request."""
    choice = choose(request, path)
    _note(choice)
    if choice.path != "native":  # which computes half precisions in float32
        hardware.require(request.q.dtype, request.q.device)
    if choice is DECODING:
        return sdpa.decode(request)
    request = request.clear_padding()
    if choice.path != "reference":
        request = request.trim_keys()
    return PATHS[choice.path].attend(request)


def attend_with_weights(
    request: Request,
) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q k"]]:
    """The output and the weights behind it, by the reference."""
    hardware.require(request.q.dtype, request.q.device)
    return reference.attend_with_weights(request.clear_padding())


@contextmanager
def record_choices() -> Iterator[set[Choice]]:
    """Collects the choices made meanwhile: which paths a model takes, and why."""
    choices: set[Choice] = set()
    token = _record.set(choices)
    try:
        yield choices
    finally:
        _record.reset(token)


def _note(choice: Choice) -> None:
    if torch.compiler.is_compiling():  # a compiled model makes its choices once, for all calls
        return
    choices = _record.get()
    if choices is not None:
        choices.add(choice)


def choose(request: Request, path: str = "auto") -> Choice:
    """The path that serves a request; asking by name for one that cannot is an error."""
    if path != "auto":
        if path not in PATHS:
            raise ValueError(f"no path called {path!r}; {registry.suggest(path, [*PATHS, 'auto'])}")
        reason = PATHS[path].refusal(request)
        if reason:
            raise ValueError(f"path {path!r} cannot serve this: {reason}; use path='auto'")
        return Choice(path, "asked for by name")
    if sdpa.is_decoding(request):
        return DECODING
    if 0 in (request.queries, request.keys, request.q.shape[0]):
        return Choice("reference", "there is nothing to attend to")
    if isinstance(request.bias, Tensor):
        return Choice("reference" if request.needs_grad else "sdpa", "the bias is a dense tensor")
    if request.dropout:
        learned = request.needs_grad and request.bias is not None
        return Choice("reference" if learned else "sdpa", "weights are left out at random")
    if not sdpa.needs_mask(request):
        return _full_choice(request)
    if request.queries <= FEW_QUERIES:
        return Choice("sdpa", f"{request.queries} queries need only a small mask")
    return _banded_choice(request)


def _full_choice(request: Request) -> Choice:
    pairs = request.q.shape[0] * request.q.shape[1] * request.queries * request.keys
    large = request.queries >= NATIVE_QUERIES and pairs >= NATIVE_PAIRS
    if request.q.device.type == "cpu" and request.causal and large:
        reason = PATHS["native"].refusal(request)
        if reason is None:
            return Choice("native", f"full causal attention, {pairs:,} pairs, on cpu")
        return Choice("sdpa", f"full attention; not native: {reason}")
    return Choice("sdpa", "full attention that PyTorch does best")


def _banded_choice(request: Request) -> Choice:
    what = "a window" if not request.covers_all_keys else "a mask that PyTorch has no flag for"
    ranking = ["flex"] if request.q.device.type == "cuda" else ["native", "tiled"]
    refusals: list[str] = []
    for path in ranking:
        reason = PATHS[path].refusal(request)
        if reason is None:
            but = "".join(f"; {other}" for other in refusals)
            return Choice(path, f"{what} on {request.q.device.type}{but}")
        refusals.append(f"not {path}: {reason}")
    last = "reference" if request.needs_grad and request.bias is not None else "sdpa"
    return Choice(last, f"{what}, through a dense mask; " + "; ".join(refusals))
