"""How code of `transformers` is run: quietly, in float64 throughout, and step by step.

Its norms, softmaxes and routers ask for float32 by name. A float64 model would then have float32
accuracy with float64 tolerances; so the name is answered with float64 while it runs.

Axes: b batch, t time, n new positions, v vocabulary.
"""

import inspect
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

SILENT = 50  # nothing but what is critical
NARROW = (torch.float32, torch.bfloat16, torch.float16)
# Where decoding keeps what it has seen: the name in the outputs, and the one to hand it back by.
CACHES = {
    "past_key_values": "past_key_values",
    "cache_params": "cache_params",
    "state": "state",
    "mems": "past_key_values",
    "past_buckets_states": "past_key_values",
}


@contextmanager
def quiet() -> Iterator[None]:
    """The library's advice on how to train and generate is not asked for here."""
    with without_logs(), redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def without_logs() -> Iterator[None]:
    """The part of it that takes long, as every logger forgets what it knows: held by an audit, so
    that there is nothing left to do at every call."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    if before >= SILENT:
        yield
        return
    logging.set_verbosity(SILENT)
    try:
        yield
    finally:
        logging.set_verbosity(before)


# What follows, down to `loop_logits`, is printed into scripts: it knows torch and transformers.


class Float64(TorchFunctionMode):
    """Wherever float32 is asked for by name there is float64: norms and softmaxes do so.

    Otherwise a float64 model would be one of float32 accuracy with float64 tolerances.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        if func is Tensor.float:
            func = Tensor.double
        elif kwargs.get("dtype") is torch.float32:
            kwargs = {**kwargs, "dtype": torch.float64}
        else:
            for one in args:  # of a hundred thousand calls few have one
                if one is torch.float32:
                    args = tuple(torch.float64 if one is torch.float32 else one for one in args)
                    break
        return func(*args, **kwargs)


@contextmanager
def in_float64() -> Iterator[None]:
    """In float64 by default too: masks made of integers become float32 otherwise, and overflow."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def running(model: Any) -> Iterator[None]:
    """In float64 throughout, unless a probe has moved the weights to another precision."""
    wide = next(model.parameters()).dtype is torch.float64
    with in_float64() if wide else nullcontext():
        yield


def positions_behind(padding: Tensor) -> Tensor:
    """Positions count what is not padding; those of padding do not matter, and are 0."""
    return ((~padding).long().cumsum(-1) - 1).masked_fill(padding, 0)


def pixels(x: Tensor, channels: int, patch: int) -> Tensor:
    """Patches x [b, n, c·p·p] as a square picture [b, c, h, w]: input j is patch j."""
    side = round(x.shape[1] ** 0.5)
    parts = x.reshape(len(x), side, side, channels, patch, patch)
    return parts.permute(0, 3, 1, 4, 2, 5).reshape(len(x), channels, side * patch, side * patch)


def dynamic_cache(model: Any) -> object:
    from transformers import DynamicCache, EncoderDecoderCache

    how = {"config": model.config.get_text_config(decoder=True)}
    if model.config.is_encoder_decoder:  # one more for the keys of the encoder's text
        return EncoderDecoderCache(DynamicCache(**how), DynamicCache(**how))
    return DynamicCache(**how)


def first_cache(model: Any, make: Any = dynamic_cache) -> dict[str, Any]:
    """A cache as generation begins with; models that want another kind make their own."""
    takes = inspect.signature(model.forward).parameters
    word = next((one for one in ("cache_params", "past_key_values") if one in takes), "")
    if not word or not model._supports_default_dynamic_cache():
        return {}
    return {word: make(model)}


def encode(model: Any, context: Any) -> dict[str, Any]:
    """What a decoder is given of the encoder's text, made once; nothing without one."""
    if not context:
        return {}
    states = model.get_encoder()(**context, return_dict=True)
    masks = {name: one for name, one in context.items() if name == "attention_mask"}
    return {"encoder_outputs": states, **masks}


def step_logits(
    model: Any,
    x: Tensor,
    cache: dict[str, Any],
    padding: Tensor | None,
    masked: bool,
    prepares: bool,
    context: Any = None,
) -> Tensor:
    """The logits [b, n, v] of new tokens x [b, n]; the model prepares them as for generation, if
    that works. `cache` begins with what `first_cache` gave, and then knows tokens and padding.
    With a context, the encoder's text, the tokens are the decoder's."""
    takes, first = inspect.signature(model.forward).parameters, "tokens" not in cache
    side = "decoder_" if context else ""
    tokens = x if first else torch.cat([cache["tokens"], x], dim=1)
    new = torch.zeros_like(x, dtype=torch.bool) if padding is None else padding
    padded = new if first else torch.cat([cache["padding"], new], dim=1)
    if first:
        cache["encoded"] = encode(model, context)
    kept, size = cache["kept"], x.shape[1]
    given: dict[str, Any] = {**kept, **cache["encoded"]}
    if f"{side}position_ids" in takes:
        given[f"{side}position_ids"] = positions_behind(padded)
    if masked and bool(padded.any()):
        given[f"{side}attention_mask"] = (~padded).long()
    if prepares:
        given["use_cache"], given["is_first_iteration"] = True, first
        new_size = None if first else size
        given = model.prepare_inputs_for_generation(tokens, next_sequence_length=new_size, **given)
    else:
        given |= {f"{side}input_ids": x, "use_cache": True}
        if f"{side}position_ids" in takes:
            given[f"{side}position_ids"] = given[f"{side}position_ids"][:, -size:]
    if "logits_to_keep" in takes:
        given["logits_to_keep"] = 0  # all of them
    found = model(**given, return_dict=True)
    names = {name: word if prepares else name for name, word in CACHES.items()}
    returned = {word: found[name] for name, word in names.items() if name in found}
    stateful = getattr(model, "_is_stateful", False)  # some keep it to themselves
    cache.update(tokens=tokens, padding=padded, kept=returned or (kept if stateful else {}))
    return found.logits[:, -size:]


def loop_logits(model: Any, x: Tensor, first: int, context: Any = None) -> Tensor | None:
    """The logits of a plain loop: a cache is handed back, and no positions; None if none is."""
    found: Any = None
    kept: dict[str, Any] = {}
    pieces = []
    side, encoded = "decoder_" if context else "", encode(model, context)
    for piece in x.split([first] + [1] * (x.shape[1] - first), dim=1):
        if found is not None:
            kept = {name: found[name] for name in CACHES if name in found}
            if not kept:
                return None
        given = {f"{side}input_ids": piece, **encoded, **kept}
        found = model(**given, use_cache=True, return_dict=True)
        pieces.append(found.logits)
    return torch.cat(pieces, dim=1)


class Narrowing(TorchDispatchMode):
    """Whether float64 numbers were made narrower on the way."""

    seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        narrow = isinstance(found, Tensor) and found.dtype in NARROW
        if narrow and any(isinstance(one, Tensor) and one.dtype is torch.float64 for one in args):
            self.seen = True
        return found
