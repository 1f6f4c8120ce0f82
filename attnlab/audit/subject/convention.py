"""How code is called: its calling convention, found by probing and fixed from then on.

    x [b, t, …] --call--> what the code gives --outputs--> y [b, t, e]

Probing (`audit/subject/adapters.py`) tries variants of a frozen `Convention`; a Subject is built
from the one that works.

Axes: b batch, t time, c width of the inputs, e of the outputs, h query heads, g key/value heads,
d head width.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnlab.audit.errors import SubjectError, calling
from attnlab.audit.repro.prelude import call_on, seeded
from attnlab.audit.subject.calls import evaluate
from attnlab.audit.subject.decoder import Decoder, Text
from attnlab.audit.subject.tensors import first_tensor, sequence_in, step_in

Layout = Literal["btc", "tbc", "bhtd", "bthd"]
CONTEXT = 6  # positions of what a decoder attends to besides its own text
FIRST_CONTEXT = 900  # the seed of its first one


@dataclass(frozen=True)
class Form:
    """How padding is given: `text` is what the parameter takes, of `padding` and `x`."""

    text: str
    sides: tuple[str, ...] = ("right", "left")

    @property
    def hiding_nothing(self) -> str:
        """The same of a text without padding."""
        return re.sub(r"\bpadding\b", "torch.zeros(x.shape[:2], dtype=torch.bool)", self.text)

    def make(self, padding: Tensor, x: Tensor) -> Tensor:
        made: Tensor = evaluate(self.text, padding=padding, x=x)
        return made


@dataclass(frozen=True, kw_only=True)
class Mask:
    """A parameter that takes a mask, and in which form."""

    name: str
    form: Form
    taken: bool = True  # the code runs with it
    hides: bool = True  # it is a padding mask: so its name says, or what it does
    unequal: bool = False  # in no form is a mask that hides nothing as good as none


@dataclass(frozen=True, kw_only=True)
class Context:
    """What code attends to besides x, [b, s, c]: the parameters that take it, and its padding."""

    names: tuple[str, ...]  # all are given the same
    mask: Mask | None = None
    also: tuple[str, ...] = ()  # given the same mask: an encoder's beside that of its reader

    def texts(self, turned: str) -> dict[str, str]:
        """What the parameters are given, as expressions of `context`."""
        return dict.fromkeys(self.names, f"context{turned}")

    def mask_texts(self) -> dict[str, str]:
        """Likewise for its padding, of `padding` and `context`."""
        if self.mask is None:
            return {}
        text = re.sub(r"\bx\b", "context", self.mask.form.text)
        return dict.fromkeys((self.mask.name, *self.also), text)


@dataclass(frozen=True, kw_only=True, eq=False)
class Convention:
    """Of a module that takes vectors [b, t, c] or tokens [b, t]; parameters go by their names."""

    name: str
    code: Callable[..., Any]
    width: int  # of the vectors, or how many different tokens there are
    tokens: bool = False
    module: nn.Module | None = None  # the code, if it is one
    heads: int | None = None
    kv_heads: int | None = None
    layers: int = 1
    dtype: torch.dtype = torch.float64
    device: str = ""  # on which the code runs; empty: the CPU
    layout: Layout | None = None  # None: nobody has said
    block: int = 1  # lengths the code takes are multiples of this
    exact: bool = False  # known to compute in its own precision throughout
    parameters: tuple[str, ...] = ()
    copies: int = 1  # x is given so often: as query, key and value
    constants: Mapping[str, Any] = field(default_factory=dict)  # the same in every call
    given: Mapping[str, str] = field(default_factory=dict)  # likewise, expressions of x
    causes: Mapping[str, str] = field(default_factory=dict)  # by which its caller makes it causal
    contexts: tuple[str, ...] = ()  # take something to attend to besides x
    context_width: int = 0
    context_tokens: bool = False  # then the width counts them
    lead: str | None = None  # takes x, where it is not the first parameter
    context: Context | None = None  # what of this can be examined
    targets: str | None = None  # with these some code gives all its logits, else the last
    mask: Mask | None = None
    positions: str | None = None
    decoder: Decoder | None = None
    cache_sizes: Mapping[str, int | None] = field(default_factory=dict)  # that makers ask for
    switches: Mapping[str, Any] = field(default_factory=dict)  # other paths to the same outputs

    def call(self, x: Tensor, padding: Tensor | None, positions: Tensor | None) -> object:
        """What the code gives for x [b, t, …]."""
        given: dict[str, Any] = {}
        if padding is not None and self.mask is not None:
            given[self.mask.name] = self.mask.form.make(padding, x)
        if positions is not None and self.positions is not None:
            given[self.positions] = positions
        return self.ask(self.code, x, given)

    def ask(
        self, code: Callable[..., Any], x: Tensor, given: Mapping[str, Any], decodes: bool = False
    ) -> object:
        """Calls the code, or a copy of it, with what it takes besides x."""
        inputs, time = self.lay_out(x), 0 if self.layout == "tbc" else 1
        copies = dict(zip(self.parameters[1:], inputs[1:], strict=False))  # as key and value
        more, inputs = {**copies, **self.constants, **given}, inputs[:1]
        if self.lead is not None:
            more, inputs = {**more, self.lead: inputs[0]}, ()
        for name, text in {**self._context_texts(), **self.given}.items():
            if name not in given:
                more[name] = evaluate(text, x=x, code=code)
        found = self._apply(code, inputs, more, x.shape[1])
        if self.targets is None or self.targets in more or x.shape[1] == 1 or decodes:
            return found
        last_only = first_tensor(found).shape[time : time + 1] == (1,)
        if not last_only:
            return found
        more[self.targets] = torch.zeros_like(self.lay_out(x)[0])
        return self._apply(code, inputs, more, x.shape[1])

    def _apply(
        self,
        code: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        more: Mapping[str, Any],
        length: int,
    ) -> object:
        """The one place where the person's code is called."""
        name = "forward" if isinstance(code, nn.Module) else getattr(code, "__name__", self.name)
        with seeded(), calling(name, length):
            return call_on(self.device, code, *inputs, **more)

    def _context_texts(self) -> dict[str, str]:
        """The same context in every row, in the precision that the code has at the time."""
        dtype = "next(code.parameters()).dtype" if self.tokens else "x.dtype"
        count = self.context_width if self.context_tokens else None
        shape, axes = f"(1, {CONTEXT}, {self.context_width}), {count}", "-1, -1"
        dtype, axes = ("x.dtype", "-1") if self.context_tokens else (dtype, axes)
        return {
            name: f"sample({shape}, {seed}, {dtype}).expand(len(x), {axes}){self._turned}"
            for seed, name in enumerate(self.contexts, FIRST_CONTEXT)
        }

    @property
    def _turned(self) -> str:
        return ".transpose(0, 1)" if self.layout == "tbc" else ""

    def context_texts(self, padded: bool) -> dict[str, str]:
        """What is given for a context of one's own, as expressions of `context` and `padding`."""
        assert self.context is not None
        masked = self.context.mask_texts() if padded else {}
        # a mask [t, t] over keys is not for keys of a context
        square = dict.fromkeys(self.given if self.copies > 1 else (), "None")
        return square | self.context.texts(self._turned) | masked

    def about(self, context: Tensor, padding: Tensor | None) -> dict[str, Any]:
        """The arguments by which the code is given another context [b, s, c]."""
        texts = self.context_texts(padding is not None)
        known = {"context": context, "padding": padding}
        return {name: evaluate(text, **known) for name, text in texts.items()}

    def expressions(self, padded: bool) -> dict[str, str]:
        """What some parameters are given, as expressions (`audit/subject/calls.py`), by name."""
        masked = {self.mask.name: self.mask.form.text} if padded and self.mask is not None else {}
        return self._context_texts() | dict(self.given) | masked

    def lay_out(self, x: Tensor) -> tuple[Tensor, ...]:
        """What the code takes first, with its axes as the code has them."""
        return (x.transpose(0, 1) if self.layout == "tbc" else x,) * self.copies

    def outputs(self, found: object, x: Tensor) -> Tensor:
        """The outputs [b, t, e] among what the code gave for x."""
        out = first_tensor(found)
        turned = out.transpose(0, 1) if self.layout == "tbc" and out.dim() > 1 else out
        return sequence_in(turned, x)

    def step(self, x: Tensor, cache: Text) -> Tensor:
        """The outputs [b, n, e] for new positions x [b, t, …], as its decoder steps it."""
        assert self.decoder is not None and self.module is not None

        def call(module: nn.Module, x: Tensor, given: Mapping[str, Any]) -> object:
            return self.ask(module, x, given, decodes=True)

        x = x.to(self.device or x.device)  # what makes a cache makes it where x is
        return self.decoder.step(
            x,
            cache,
            module=self.module,
            dtype=self.dtype,
            call=call,
            outputs=self.step_outputs,
        )

    def step_outputs(self, found: object) -> Tensor:
        """The outputs [b, t, e] of a step: of all new positions, or of the last only."""
        out = first_tensor(found)
        turned = out.transpose(0, 1) if self.layout == "tbc" and out.dim() > 1 else out
        return step_in(turned)


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionConvention(Convention):
    """Of a function, or a module, of q [b, h, t, d], k and v [b, g, t, d].

    All three are drawn side by side: x is [b, t, (h + 2g) d].
    """

    heads: int
    kv_heads: int
    head_width: int
    keywords: tuple[str, ...] = ()  # names of q, k and v, if they can be given by name only

    def ask(
        self, code: Callable[..., Any], x: Tensor, given: Mapping[str, Any], decodes: bool = False
    ) -> object:
        inputs, more = self.lay_out(x), {**self.constants, **given}
        if self.keywords:
            inputs, more = (), {**dict(zip(self.keywords, inputs, strict=True)), **more}
        return self._apply(code, inputs, more, x.shape[1])

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, [b, h, t, d]."""
        parts = x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        q, k, v = parts.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        return q, k, v

    def lay_out(self, x: Tensor) -> tuple[Tensor, ...]:
        parts = self.split(x)
        return tuple(one.transpose(1, 2) for one in parts) if self.layout == "bthd" else parts

    def outputs(self, found: object, x: Tensor) -> Tensor:
        out, time = first_tensor(found), 1 if self.layout == "bthd" else 2
        if out.dim() != 4 or out.shape[time] != x.shape[1]:
            axes = "[b, t, h, d]" if time == 1 else "[b, h, t, d]"
            raise SubjectError(
                f"{self.name} gave {list(out.shape)} for q {axes} of "
                f"{list(self.lay_out(x)[0].shape)}; it must give {axes}"
            )
        return (out if time == 1 else out.transpose(1, 2)).flatten(2)
