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
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlab import registry
from attnlab.kernels import banded, flex, hardware, reference, sdpa
from attnlab.kernels.mask import Align, Reach, Segments
from attnlab.kernels.request import Bias, Request
from attnlab.kernels.rotary import Rotation, check_rotation

# The kernels in Triton are right in its interpreter and have not been run on a GPU yet: until then
# they are asked for by name. Afterwards they come first.
ON_CUDA = ["flex"]
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
    # It turns queries and keys itself, and reads no padding that nobody has cleared.
    takes_all: bool = False


PATHS = {
    "reference": Path(reference.attend, reference.refusal),
    "sdpa": Path(sdpa.attend, sdpa.refusal),
    "native": Path(
        partial(banded.attend, engine="native"), partial(banded.refusal, engine="native")
    ),
    "tiled": Path(partial(banded.attend, engine="tiled"), partial(banded.refusal, engine="tiled")),
    "flex": Path(flex.attend, flex.refusal),
    "triton": Path(
        partial(banded.attend, engine="triton"),
        partial(banded.refusal, engine="triton"),
        takes_all=True,
    ),
}


class Options(TypedDict, total=False):
    """The keywords of `attention` that both of its forms have."""

    causal: bool
    window: int | Reach | None
    align: Align
    chunk: int | None
    prefix: int | Tensor | None
    segments: Tensor | Segments | None
    key_lengths: Tensor | None
    scale: float | None
    soft_cap: float | None
    sinks: float | Tensor | None
    rotary: Rotation | None
    bias: Bias | Tensor | None
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
    window: int | Reach | None = None,
    align: Align = "end",
    chunk: int | None = None,
    prefix: int | Int[Tensor, " b"] | None = None,
    segments: Int[Tensor, "#b k"] | Segments | None = None,
    key_lengths: Int[Tensor, " b"] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    sinks: float | Float[Tensor, " h"] | None = None,
    rotary: Rotation | None = None,
    bias: Bias | Tensor | None = None,
    key_padding: Bool[Tensor, "b k"] | None = None,
    dropout: float = 0.0,
    path: str = "auto",
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · q kᵀ + bias) v over the keys each query attends to.

    k and v may have fewer heads: head i of q reads head i // (h // g). A query without keys gives
    0. Which keys a query attends to:

    - `window` counts keys, including the query's own; without `causal` it reaches as far ahead as
      back. `Reach(before=, after=)` counts those beside it, to either side.
    - With fewer queries than keys, the queries are the last ones; with `align="start"` the first.
    - `chunk`: those of its own chunk of so many positions, counted from a row's first token.
    - `prefix`: the first keys of a row, counted from its first token, which every query attends
      to, and what else it would.
    - `segments`: those of its own document; numbers [b, k] that never fall along a row.
    - `key_lengths`: the first so many of a row, and the queries are the last of them.
    - `key_padding`: not those where it is True; what stands there is never read.

    `soft_cap` bounds scores: cap · tanh(score / cap). `sinks` are one more score for each head,
    which takes weight and gives nothing; 0.0 is softmax "off by one". `rotary` holds the angles of
    the keys. `dropout` leaves out weights at random, for training. `return_weights=True` gives
    (output, weights) by the reference.
    """
    request = request_of(
        q,
        k,
        v,
        causal=causal,
        window=window,
        align=align,
        chunk=chunk,
        prefix=prefix,
        segments=segments,
        key_lengths=key_lengths,
        scale=scale,
        soft_cap=soft_cap,
        sinks=sinks,
        bias=bias,
        key_padding=key_padding,
        rotary=rotary,
        dropout=dropout,
    )
    request.check()
    _check_places(request)
    if not return_weights:
        return attend(request, path)
    if path not in ("auto", "reference"):
        raise ValueError(f"path {path!r} keeps no weights; use path='reference' or 'auto'")
    return attend_with_weights(request)


def _check_places(request: Request) -> None:
    """Every query must stand where there is an angle."""
    if request.rotary is None:
        return
    check_rotation(request.rotary, request.k.shape[0], request.keys, request.k.shape[3])
    if torch.compiler.is_compiling() or (request.is_band and request.queries <= request.keys):
        return
    at = request.mask.positions()
    outside = (at < 0) | (at >= request.keys)
    if outside.any():
        raise ValueError(
            f"a query stands at position {at[outside][0].item()} of {request.keys} keys, for which "
            "rotary has no angles; rotate q and k before the call"
        )


def request_of(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Request:
    """What is given once for all rows or heads becomes one for each."""
    prefix, sinks = options.get("prefix"), options.get("sinks")
    if isinstance(prefix, int):
        prefix = torch.full((k.shape[0],), prefix, device=k.device)
    if isinstance(sinks, int | float):
        sinks = q.new_full((q.shape[1],), sinks)
    segments = _segments(options.get("segments"), q.shape[2], options.get("align", "end"))
    window, chunk = options.get("window"), _whole(options.get("chunk"))
    if isinstance(window, Reach):
        window = Reach(before=_whole(window.before), after=_whole(window.after))
    else:
        window = _whole(window)
    made = {"prefix": prefix, "sinks": sinks, "segments": segments}
    given = {**options, **made, "window": window, "chunk": chunk}
    return Request(q=q, k=k, v=v, **given)  # type: ignore[arg-type]


def _whole(count: int | None) -> int | None:
    """A float that is a whole number, as of 512 / 2, becomes one; others are refused later."""
    if isinstance(count, float) and count.is_integer():
        return int(count)
    return count


def _segments(given: Tensor | Segments | None, queries: int, align: Align) -> Segments | None:
    """Of keys alone, the queries are the last of them, or the first."""
    if given is None:
        return None
    if isinstance(given, Tensor):
        first = given.shape[-1] - queries if align == "end" else 0
        ours = given[:, first : first + queries] if given.dim() == 2 and first >= 0 else given
        given = Segments(ours, given)
    ours, theirs = given.queries, given.keys
    if ours.dim() == theirs.dim() == 2 and 1 in (len(ours), len(theirs)):
        rows = max(len(ours), len(theirs))
        ours, theirs = ours.expand(rows, -1), theirs.expand(rows, -1)
    return Segments(ours.contiguous(), theirs.contiguous())


def attend(request: Request, path: str = "auto") -> Float[Tensor, "b h q e"]:
    """The output, by the path that serves the request."""
    choice = choose(request, path)
    _note(choice)
    if choice.path not in ("native", "triton"):  # which compute half precisions their own way
        hardware.require(request.q.dtype, request.q.device)
    if choice is DECODING:
        return sdpa.decode(request.turn())
    path_taken = PATHS[choice.path]
    if not path_taken.takes_all:
        request = request.turn().clear_padding()
    if choice.path != "reference":
        request = request.trim_keys()
    return path_taken.attend(request)


def attend_with_weights(
    request: Request,
) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q k"]]:
    """The output and the weights behind it, by the reference."""
    hardware.require(request.q.dtype, request.q.device)
    return reference.attend_with_weights(request.turn().clear_padding())


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
    plain = request.is_plain_softmax
    if isinstance(request.bias, Tensor):
        dense = request.needs_grad or not plain
        return Choice("reference" if dense else "sdpa", "the bias is a dense tensor")
    if request.dropout:
        learned = request.needs_grad and request.bias is not None
        dense = learned or not plain
        return Choice("reference" if dense else "sdpa", "weights are left out at random")
    if plain and not sdpa.needs_mask(request):
        return _full_choice(request)
    if request.queries <= FEW_QUERIES and not _is_for_kernels(request):
        few = f"{request.queries} queries need only a small mask"
        return Choice("sdpa" if plain else "reference", few)
    return _banded_choice(request)


def _is_for_kernels(request: Request) -> bool:
    """On CUDA few queries share out their keys, and no mask is made."""
    cuda = request.q.device.type == "cuda" and "triton" in ON_CUDA
    return cuda and PATHS["triton"].refusal(request) is None


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
    what = "a mask that PyTorch has no flag for"
    if not request.is_plain_softmax:
        what = "scores that PyTorch has no flag for"
    elif not request.covers_all_keys:
        what = "a window"
    ranking = ON_CUDA if request.q.device.type == "cuda" else ["native", "tiled"]
    refusals: list[str] = []
    for path in ranking:
        reason = PATHS[path].refusal(request)
        if reason is None:
            but = "".join(f"; {other}" for other in refusals)
            return Choice(path, f"{what} on {request.q.device.type}{but}")
        refusals.append(f"not {path}: {reason}")
    dense = not request.is_plain_softmax or (request.needs_grad and request.bias is not None)
    last = "reference" if dense else "sdpa"
    return Choice(last, f"{what}, through a dense mask; " + "; ".join(refusals))
