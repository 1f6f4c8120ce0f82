"""How code is called: its calling convention, found by probing and fixed from then on.

    x [b, t, …] --call--> what the code gives --outputs--> y [b, t, e]

Probing (`audit/subject/adapters.py`) tries variants of a frozen `Convention`; a Subject is built
from the one that works.

Axes: b batch, t time, c width of the inputs, e of the outputs, h query heads, g key/value heads,
d head width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnlab.audit.errors import SubjectError, calling
from attnlab.audit.repro.prelude import seeded
from attnlab.audit.subject.calls import evaluate
from attnlab.audit.subject.decoder import Decoder
from attnlab.audit.subject.tensors import first_tensor, normal, sequence_in, step_in

Layout = Literal["btc", "tbc", "bhtd", "bthd"]
CONTEXT = 6  # positions of what a decoder attends to besides its own text
FIRST_CONTEXT = 900  # the seed of its first one


@dataclass(frozen=True)
class Form:
    """How padding is given: `text` is what the parameter takes, of `padding` and `x`."""

    text: str
    sides: tuple[str, ...] = ("right", "left")

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
    layout: Layout | None = None  # None: nobody has said
    block: int = 1  # lengths the code takes are multiples of this
    exact: bool = False  # known to compute in its own precision throughout
    parameters: tuple[str, ...] = ()
    copies: int = 1  # x is given so often: as query, key and value
    constants: Mapping[str, Any] = field(default_factory=dict)  # the same in every call
    contexts: tuple[str, ...] = ()  # take something to attend to besides x
    context_width: int = 0
    targets: str | None = None  # with these some code gives all its logits, else the last
    mask: Mask | None = None
    positions: str | None = None
    decoder: Decoder | None = None
    cache_sizes: Mapping[str, int | None] = field(default_factory=dict)  # that makers ask for
    switches: Mapping[str, Any] = field(default_factory=dict)  # other paths to the same outputs

    def call(self, x: Tensor, padding: Tensor | None, positions: Tensor | None) -> Any:
        """What the code gives for x [b, t, …]."""
        given: dict[str, Any] = {}
        if padding is not None and self.mask is not None:
            given[self.mask.name] = self.mask.form.make(padding, x)
        if positions is not None and self.positions is not None:
            given[self.positions] = positions
        return self.ask(self.code, x, given)

    def ask(
        self, code: Callable[..., Any], x: Tensor, given: Mapping[str, Any], decodes: bool = False
    ) -> Any:
        """Calls the code, or a copy of it, with what it takes besides x."""
        inputs, time = self.lay_out(x), 0 if self.layout == "tbc" else 1
        more = {**self.constants, **given}
        for seed, name in enumerate(self.contexts, FIRST_CONTEXT):
            more.setdefault(name, self._context(seed, len(x)))
        found = self._apply(code, inputs, more, x.shape[1])
        if self.targets is None or self.targets in more or x.shape[1] == 1 or decodes:
            return found
        last_only = first_tensor(found).shape[time : time + 1] == (1,)
        if not last_only:
            return found
        more[self.targets] = torch.zeros_like(inputs[0])
        return self._apply(code, inputs, more, x.shape[1])

    def _apply(
        self,
        code: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        more: Mapping[str, Any],
        length: int,
    ) -> Any:
        """The one place where the person's code is called."""
        name = "forward" if isinstance(code, nn.Module) else getattr(code, "__name__", self.name)
        with seeded(), calling(name, length):
            return code(*inputs, **more)

    def _context(self, seed: int, rows: int) -> Tensor:
        drawn = normal(seed, 1, CONTEXT, self.context_width).to(self.dtype)
        drawn = drawn.expand(rows, -1, -1)
        return drawn.transpose(0, 1) if self.layout == "tbc" else drawn

    def expressions(self, padded: bool) -> dict[str, str]:
        """What some parameters are given, as expressions (`audit/subject/calls.py`), by name."""
        turned = ".transpose(0, 1)" if self.layout == "tbc" else ""
        shape = f"(1, {CONTEXT}, {self.context_width}), None"
        given = {
            name: f"sample({shape}, {seed}, {self.dtype}).expand(len(x), -1, -1){turned}"
            for seed, name in enumerate(self.contexts, FIRST_CONTEXT)
        }
        masked = {self.mask.name: self.mask.form.text} if padded and self.mask is not None else {}
        return given | masked

    def lay_out(self, x: Tensor) -> tuple[Tensor, ...]:
        """What the code takes first, with its axes as the code has them."""
        return (x.transpose(0, 1) if self.layout == "tbc" else x,) * self.copies

    def outputs(self, found: Any, x: Tensor) -> Tensor:
        """The outputs [b, t, e] among what the code gave for x."""
        out = first_tensor(found)
        turned = out.transpose(0, 1) if self.layout == "tbc" and out.dim() > 1 else out
        return sequence_in(turned, x)

    def step(self, x: Tensor, cache: list[Any]) -> Any:
        """What the code gives for new positions x [b, t, …], as its decoder steps it."""
        assert self.decoder is not None and self.module is not None

        def call(module: nn.Module, x: Tensor, given: Mapping[str, Any]) -> Any:
            return self.ask(module, x, given, decodes=True)

        return self.decoder.step(x, cache, module=self.module, dtype=self.dtype, call=call)

    def step_outputs(self, found: Any) -> Tensor:
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
    ) -> Any:
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

    def outputs(self, found: Any, x: Tensor) -> Tensor:
        out, time = first_tensor(found), 1 if self.layout == "bthd" else 2
        if out.dim() != 4 or out.shape[time] != x.shape[1]:
            axes = "[b, t, h, d]" if time == 1 else "[b, h, t, d]"
            raise SubjectError(
                f"{self.name} gave {list(out.shape)} for q {axes} of "
                f"{list(self.lay_out(x)[0].shape)}; it must give {axes}"
            )
        return (out if time == 1 else out.transpose(1, 2)).flatten(2)
