"""A model of `transformers` as a subject: how it is run, found by trying.

    tokens [b, t] -> logits [b, t, v], or states [b, t, c] of an encoder
    tokens [b, t] of a decoder, with a fixed text for the encoder -> logits [b, t, v]
    tokens [b, t] of the encoder, with a fixed text for the decoder -> logits [b, t, v] of it
    patches [b, n, c·p·p] of a picture -> states [b, n, c]

Axes: b batch, t time, v vocabulary. Texts are padded, placed and stepped as the library's own
generation does it.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnlab.audit.errors import LONGEST, InputError, SubjectError, calling
from attnlab.audit.hf.names import files_that_name_it, wide_names
from attnlab.audit.hf.running import (
    Narrowing,
    dynamic_cache,
    first_cache,
    loop_logits,
    pixels,
    positions_behind,
    quiet,
    running,
    step_logits,
)
from attnlab.audit.hf.sizes import POSITIONS, TOKENS
from attnlab.audit.probe.probe import apart
from attnlab.audit.repro.prelude import seeded
from attnlab.audit.signature import signature
from attnlab.audit.subject.adapters import prepare
from attnlab.audit.subject.base import Subject, Tokens, Vectors
from attnlab.audit.subject.calls import evaluate
from attnlab.audit.subject.convention import Convention, Form, Mask
from attnlab.audit.subject.guard import guard_method
from attnlab.audit.subject.tensors import first_tensor, loss_in
from attnlab.kernels.dispatch import record_choices

Kind = TypeVar("Kind", bound="Model")
OURS = "attnlab"
BACKENDS = ("eager", "sdpa", OURS)
SOURCE = "encoder "  # before the name of a property that is of the encoder's text
# These take an attention mask so that they can be called like the others, and say so.
NO_MASK = ("cpmant", "rwkv")
# Of these the library says, in its code or its tests, that padding may stand on the right only:
# what they pool, hash or convolve is cut into blocks from the first slot on, or never masked.
RIGHT_ONLY = ("deepseek_v4", "minimax_m3_vl_text", "recurrent_gemma", "reformer")
# What a decoder attends to, and what is decoded from a text of the encoder: the same in every row.
# The end of the first is padding, which whole texts and steps must both leave out.
_CONTEXT = f"sample((1, 6), {TOKENS}, 900, torch.float32).repeat(len(x), 1)"
_CONTEXT_MASK = "torch.tensor([[1, 1, 1, 1, 0, 0]]).repeat(len(x), 1)"
_DECODED = f"sample((1, {POSITIONS}), {TOKENS}, 901, torch.float32)[:, : x.shape[1]]"
_DECODED += ".repeat(len(x), 1)"


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelConvention(Convention):
    """How a model is run; it was made with `sizes`, or read from a `folder`."""

    code: Any  # the model
    family: str  # its `model_type`
    wide: bool = True  # in float64 throughout
    names: tuple[ModuleType, ...] = ()  # files of the library in which a name is enough for that
    drawn_in: torch.dtype = torch.float32  # the precision in which its weights were made
    backend: str | None = None  # by which attention is computed
    other_backends: tuple[str, ...] = ()  # that it has too
    steps: bool = True  # outputs are logits of a text that can go on
    prepares: bool = True  # its own preparation of inputs works outside generation
    caches: bool = False
    no_cache: str | None = None  # why a cache that it takes cannot be used
    sizes: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""
    auto: str = "AutoModelForCausalLM"  # what reads the folder
    part: str = ""  # the method that gives the part of the model which this is
    role: str = "causal"  # the family that it is examined as
    made_by: str = ""  # the class of the whole model
    # what it is given, as expressions of x (`audit/subject/calls.py`)
    inputs: Mapping[str, str] = field(default_factory=lambda: {"input_ids": "x"})
    encoder_text: Mapping[str, str] = field(default_factory=dict)  # of these, the encoder's text
    skip: int = 0  # outputs before those of the first input, such as that of a class token

    def call(self, x: Tensor, padding: Tensor | None, positions: Tensor | None) -> object:
        # behind padding a text must be told where it begins, as generation does
        if padding is not None and positions is None and bool(padding[:, 0].any()):
            positions = positions_behind(padding)
        if positions is not None:
            positions = positions.expand(x.shape[0], -1)
        return super().call(x, padding, positions)

    def ask(
        self, code: Callable[..., Any], x: Tensor, given: Mapping[str, Any], decodes: bool = False
    ) -> Tensor:
        found = first_tensor(self.forward(x, **self.constants, **given))
        return found[:, self.skip :] if self.skip else found

    def forward(self, x: Tensor, **given: Any) -> object:
        """What the model gives for x."""
        inputs = self.evaluate(self.inputs, x)
        with self.running(), seeded(), calling("forward", x.shape[1]):
            return self.code(**{**inputs, "return_dict": True, **given})

    def evaluate(self, inputs: Mapping[str, str], x: Tensor) -> dict[str, Any]:
        return {name: evaluate(text, x=x, pixels=pixels) for name, text in inputs.items()}

    @contextmanager
    def running(self) -> Iterator[None]:
        with quiet(), self._in_float64() if self.wide else nullcontext():
            if self.backend is not None and _backend(self.code) != self.backend:
                with calling("set_attn_implementation"):
                    self.code.set_attn_implementation(self.backend)
            yield

    def _in_float64(self) -> AbstractContextManager[None]:
        """Unless a probe has moved the weights to another precision."""
        moved = next(self.code.parameters()).dtype is not torch.float64
        return wide_names(self.names) if self.names and not moved else running(self.code)


class GuardedModel:
    """A model whose calls raise SubjectErrors, for functions of ours that call it in between."""

    def __init__(self, model: Any, length: int | None = None) -> None:
        self._model, self._length = model, length

    def __call__(self, **given: Any) -> object:
        with seeded(), calling("forward", self._length):
            return self._model(**given)

    def get_encoder(self) -> "GuardedModel":
        with calling("get_encoder"):
            return GuardedModel(self._model.get_encoder(), self._length)

    def __getattr__(self, name: str) -> object:
        found = getattr(self._model, name)
        return guard_method(name, found) if callable(found) else found


class Model(Vectors):
    """A model of `transformers` as a subject.

    `backends` are the same model, run by each way it has to compute attention.
    """

    convention: ModelConvention

    def _adopt(self, convention: Convention) -> None:
        assert isinstance(convention, ModelConvention)
        super()._adopt(convention)
        self.caches, self.no_cache = convention.caches, convention.no_cache

    def _backends(self) -> Mapping[str, Subject]:
        known = self.convention
        if not known.other_backends:
            return {}
        return {
            known.backend or "usual": self,
            **{name: self.by(name) for name in known.other_backends},
        }

    def by(self: Kind, backend: str) -> Kind:
        """The same model, which computes attention in another way."""
        other = replace(self.convention, backend=backend, other_backends=(), names=())
        return self.with_convention(other)

    def without_cache(self: Kind) -> Kind:
        return self.with_convention(replace(self.convention, caches=False))

    def new_cache(self) -> dict[str, Any]:
        how, make = self.convention, guard_method("DynamicCache", dynamic_cache)
        with how.running():
            return {"kept": first_cache(GuardedModel(how.code), make)}

    def step(self, x: Tensor, cache: dict[str, Any], padding: Tensor | None = None) -> Tensor:
        """The logits of the new tokens; they are prepared as generation prepares them."""
        how = self.convention
        with how.running():
            model = GuardedModel(how.code, x.shape[1])
            context = how.evaluate(how.encoder_text, x)
            found: Tensor = step_logits(model, x, cache, padding, self.pads, how.prepares, context)
        return found

    @property
    def flexible(self) -> bool:
        """Whether its class claims that attention can be computed by flex_attention too."""
        return bool(getattr(self.convention.code, "_supports_flex_attn", False))

    @property
    def labelled(self) -> Callable[[Tensor], Tensor] | None:
        """The loss of a text that is its own label, as training has it."""
        how = self.convention
        if not takes(how.code, "labels"):
            return None

        def loss(tokens: Tensor) -> Tensor:
            return loss_in(how.forward(tokens, labels=tokens, **how.constants))

        return loss

    def begins_elsewhere(self) -> bool:
        """Whether positions from 0 on are not those that it takes when it is given none."""
        x = self.draw(2, 5, 0)
        with torch.no_grad():
            given = self.run(x, positions=torch.arange(5)[None])
            return self.placed and apart(given, self.run(x)) > 1e-3 * float(given.abs().max())

    def loop_logits(self, x: Tensor, first: int) -> Tensor | None:
        """The logits of a plain loop: a cache is handed back, and no positions; None if none is."""
        with self.convention.running(), torch.no_grad():
            model = GuardedModel(self.convention.code, x.shape[1])
            context = self.convention.evaluate(self.convention.encoder_text, x)
            found: Tensor | None = loop_logits(model, x, first, context)
        return found

    def part_for(self, name: str) -> "Model":
        """The subject that a property was examined on: of the encoder's text, or this one."""
        if not name.startswith(SOURCE):
            return self
        return self.with_convention(as_source(self.convention))


class HuggingFace(Model, Tokens):
    """Of a language model, or of an encoder of texts."""

    @classmethod
    def of(
        cls, model: nn.Module, name: str, sizes: Mapping[str, Any] | None = None, folder: str = ""
    ) -> "HuggingFace":
        """Of a causal language model."""
        known = describe(model, name, sizes or {}, folder)
        return cls(find_out(known, cls))


class Patches(Model):
    """Of an encoder of images; inputs are the patches of a square picture, one after another."""

    parts = True


def describe(model: nn.Module, name: str, sizes: Mapping[str, Any], folder: str) -> ModelConvention:
    """What its class and its configuration say of a model, before anything was tried."""
    whole: Any = model.config
    with calling("get_text_config"):
        config = whole.get_text_config(decoder=True)
    family = str(whole.model_type)
    heads = _number(config, "num_attention_heads")
    return ModelConvention(
        name=name,
        code=model,
        family=family,
        made_by=type(model).__name__,
        drawn_in=next(model.parameters()).dtype,
        width=min(_number(config, "vocab_size") or TOKENS, TOKENS),
        tokens=True,
        heads=heads,
        kv_heads=_number(config, "num_key_value_heads") or heads,
        layers=_number(config, "num_hidden_layers") or 1,
        parameters=tuple(one for one in ("attention_mask", "position_ids") if takes(model, one)),
        # a text is computed as a whole
        constants={"use_cache": False} if takes(model, "use_cache") else {},
        mask=_mask(model, "attention_mask", family),
        positions="position_ids" if takes(model, "position_ids") else None,
        backend=_backend(model),
        sizes=sizes,
        folder=folder,
    )


def _mask(model: nn.Module, name: str, family: str) -> Mask | None:
    if not takes(model, name):
        return None
    sides = ("right",) if family in RIGHT_ONLY else ("right", "left")
    form = Form("(~padding).long()", sides)
    return Mask(name=name, form=form, hides=family not in NO_MASK)


def as_decoder(known: ModelConvention) -> ModelConvention:
    """x is the decoder's text; that of the encoder is always the same, and ends in padding."""
    model, context = known.code, {"input_ids": _CONTEXT}
    if takes(model, "attention_mask"):
        context["attention_mask"] = _CONTEXT_MASK
    places = "decoder_position_ids"
    return replace(
        known,
        inputs={"decoder_input_ids": "x", **context},
        encoder_text=context,
        mask=_mask(model, "decoder_attention_mask", known.family),
        positions=places if takes(model, places) else None,
        parameters=(),
    )


def as_encoder(known: ModelConvention) -> ModelConvention:
    """x is a text, and outputs are states: there is nothing to go on with."""
    return replace(known, steps=False)


def as_source(known: ModelConvention) -> ModelConvention:
    """x is the encoder's text, and output i the decoder's at place i of a text of its own."""
    return replace(
        known,
        steps=False,
        caches=False,
        no_cache=None,
        encoder_text={},
        inputs={"input_ids": "x", "decoder_input_ids": _DECODED},
        mask=_mask(known.code, "attention_mask", known.family),
        positions=None,
        parameters=(),
    )


def as_patches(known: ModelConvention, sizes: Mapping[str, int]) -> ModelConvention:
    """x are the patches of a picture; it always has all of them, those not drawn are 0."""
    channels, patch, count = sizes["channels"], sizes["patch"], sizes["count"]
    return replace(
        known,
        steps=False,
        inputs={"pixel_values": f"pixels(x, {channels}, {patch})"},
        tokens=False,
        width=channels * patch * patch,
        block=count,
        mask=None,
        positions=None,
        parameters=(),
    )


def find_out(known: ModelConvention, made: "type[Model]") -> ModelConvention:
    """In float64 if the whole of the computation goes along, whichever way it is done."""
    # whose weights have not been changed for float64
    with calling("__deepcopy__"):
        models = {torch.float64: known.code, torch.float32: copy.deepcopy(known.code)}
    for dtype, model in models.items():
        ready(model, dtype, known.folder)
        tried = replace(known, code=model, module=model, dtype=dtype, wide=dtype is torch.float64)
        try:
            with torch.no_grad(), Narrowing() as narrowing:
                tried = _with_skip(tried, made)
                subject = made(tried)
                out = subject.run(subject.draw(2, 5, 0))
                tried = _with_cache(tried, made)
                tried = replace(tried, other_backends=_other_backends(tried, made))
        except SubjectError as error:
            if dtype is torch.float64:
                continue
            shape = [2, 5] if known.tokens else [2, known.block, known.width]
            what = f"tokens {shape}" if known.tokens else f"patches {shape}"
            raise InputError(
                f"{known.name} cannot be called with {what}: {error.reason[:LONGEST]}"
            ) from error
        if out.dtype is dtype and not narrowing.seen:  # it was watched: nothing narrows
            exact = dtype is torch.float64
            return _by_names(replace(tried, exact=exact), made) if exact else tried
    return tried


def _by_names(known: ModelConvention, made: "type[Model]") -> ModelConvention:
    """The same in less time, if nothing narrows and nothing changes by it."""
    named = replace(known, names=files_that_name_it())
    one, other = made(known), made(named)
    x = one.draw(2, 5, 0)
    try:
        with torch.no_grad(), Narrowing() as narrowing:
            same = torch.equal(one.run(x), other.run(x))
            if known.caches:
                cache = other.new_cache()
                other.step(x[:, :1], cache)
                other.step(x[:, 1:2], cache)
    except SubjectError:
        return known
    return named if same and not narrowing.seen else known


def ready(model: nn.Module, dtype: torch.dtype, folder: str) -> nn.Module:
    """Weights of a folder stay as they are; those of a new model are none at 0."""
    if not folder:
        return prepare(model, dtype)
    with calling("to"):
        return model.eval().to(dtype)


def _with_skip(known: ModelConvention, made: "type[Model]") -> ModelConvention:
    """How many outputs come before those of the patches: a class token, registers."""
    if known.tokens:
        return known
    x = made(known).draw(2, known.block, 0)
    rows = first_tensor(known.forward(x, **known.constants))
    more = rows.shape[1] - known.block if rows.dim() == 3 else -1
    if more < 0:
        raise SubjectError(
            f"it gives {list(rows.shape)} for {known.block} patches, not an output for each"
        )
    return replace(known, skip=more)


def _with_cache(known: ModelConvention, made: "type[Model]") -> ModelConvention:
    """Whether it can be stepped, and whether its own preparation of inputs works for that."""
    if not known.steps:
        return known
    reason: str | None = None
    for first, prepares in itertools.product((4, 1), (True, False)):  # some take single steps only
        tried = replace(known, prepares=prepares)
        subject = made(tried)
        try:
            cache, x = subject.new_cache(), subject.draw(2, first + 1, 0)
            subject.step(x[:, :first], cache)
            if not cache["kept"]:
                return tried
            subject.step(x[:, first:], cache)
            return replace(tried, caches=True)
        except SubjectError as error:
            reason = reason or error.reason[:LONGEST]
    return replace(tried, no_cache=reason)


def _other_backends(known: ModelConvention, made: "type[Model]") -> tuple[str, ...]:
    found = []
    usual = made(known)
    x = usual.draw(2, 5, 0)
    for backend in BACKENDS:
        if backend == known.backend or not getattr(known.code, f"_supports_{backend}", True):
            continue
        other = usual.by(backend)
        if backend == OURS:  # importing it makes it known to the library
            import attnlab.integrations.transformers  # noqa: F401
        try:
            with record_choices() as calls:
                other.run(x)
            if backend == OURS and not calls:  # its attention does not come by the interface
                continue
            if other.caches:
                other.step(x, other.new_cache())
        except SubjectError:  # it does not have this one
            continue
        if _backend(known.code) == backend:  # some only say that they cannot
            found.append(backend)
    usual.run(x)  # back to its own
    return tuple(found)


def takes(model: nn.Module, name: str) -> bool:
    return name in signature(model.forward).parameters


def _backend(model: Any) -> str | None:
    return getattr(model.config, "_attn_implementation", None)


def _number(config: Any, name: str) -> int | None:
    try:
        with calling(name):
            value = getattr(config, name, None)
    except SubjectError:  # one that differs from layer to layer may refuse to be read
        return None
    return value if type(value) is int and value > 0 else None
