"""Code under audit, called in one way whatever its own signature is.

    x [b, t, …] --run--> y [b, t, e]

Axes: b batch, t time, c width of the inputs, e of the outputs, h query heads, g key/value heads,
d head width. Inputs are vectors [b, t, c], tokens [b, t], or for functions of q, k and v all three
side by side, [b, t, (h + 2g) d]; so every probe speaks of "input j" and "output i" and no more.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnlab.audit.errors import calling
from attnlab.audit.repro.prelude import fill_blocks, sample
from attnlab.audit.subject.convention import AttentionConvention, Convention
from attnlab.audit.subject.tensors import first_tensor as first_tensor
from attnlab.audit.subject.tensors import normal as normal
from attnlab.audit.subject.tensors import sequence_in as sequence_in

Kind = TypeVar("Kind", bound="Vectors")


class Subject(ABC):
    """What a person implements (or has implemented for them) to have code audited.

    `padding` is True at positions that hold padding. `new_cache` and `step` are for code that
    decodes: `step(x, cache)` gives the outputs of the new positions x and remembers them.
    """

    name: str = "subject"
    pads: bool = False  # run takes padding
    caches: bool = False  # new_cache and step are there
    placed: bool = False  # run takes positions
    heads: int | None = None
    kv_heads: int | None = None
    layers: int = 1  # how often attention is applied: a window reaches further through each
    module: nn.Module | None = None
    backends: "Mapping[str, Subject]" = MappingProxyType({})  # the same code by other means
    dtype: torch.dtype = torch.float64
    layout: str | None = None  # of a contract: in which order the code has its axes
    block: int = 1  # lengths the code takes are multiples of this
    parts: bool = False  # a block is one thing, such as a picture, and inputs are parts of it
    sides: tuple[str, ...] = ("right", "left")  # on which padding can stand
    exact: bool = False  # known to compute in its own precision throughout
    device: str = ""  # on which the code runs; empty: the CPU
    causal_by: str = ""  # the parameter by which its caller makes it causal

    @abstractmethod
    def draw(self, batch: int, length: int, seed: int) -> Tensor:
        """Inputs that depend on the seed only."""

    @abstractmethod
    def run(
        self, x: Tensor, *, padding: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """The outputs [b, t, e]."""

    def new_cache(self) -> object:
        raise NotImplementedError

    def step(self, x: Tensor, cache: Any) -> Tensor:
        raise NotImplementedError

    @property
    def continuous(self) -> bool:
        """Whether an input can be changed a little, and has a gradient."""
        return True

    def in_dtype(self, dtype: torch.dtype) -> "Subject":
        """The same for inputs of another precision; the weights are the caller's to change."""
        other = copy.copy(self)
        other.dtype = dtype
        return other


class Vectors(Subject):
    """Inputs are vectors; the code is called by a convention, and so are all facts about it."""

    def __init__(self, convention: Convention) -> None:
        self._adopt(convention)

    def _adopt(self, convention: Convention) -> None:
        self.convention, mask = convention, convention.mask
        self.name, self.module, self.width = convention.name, convention.module, convention.width
        self.heads, self.kv_heads = convention.heads, convention.kv_heads
        self.layers, self.dtype, self.exact = convention.layers, convention.dtype, convention.exact
        self.layout, self.block = convention.layout, convention.block
        self.pads, self.placed = mask is not None and mask.hides, convention.positions is not None
        self.sides = Subject.sides if mask is None else mask.form.sides
        self.takes, self.decoder = convention.parameters, convention.decoder
        self.caches = convention.decoder is not None
        self.device = convention.device
        self.causal_by = ", ".join(convention.given)
        self.backends = self._backends()

    def _backends(self) -> Mapping[str, Subject]:
        usual = self.convention
        if not usual.switches:
            return {}
        other = replace(usual, switches={}, decoder=None)
        return {
            "as it is": self,
            **{
                f"{name}={value}": self.with_convention(
                    replace(other, constants={**usual.constants, name: value})
                )
                for name, value in usual.switches.items()
            },
        }

    def with_convention(self: Kind, convention: Convention) -> Kind:
        """The same code, called by another convention."""
        other = copy.copy(self)
        other._adopt(convention)
        return other

    def in_dtype(self, dtype: torch.dtype) -> Subject:
        return self.with_convention(replace(self.convention, dtype=dtype))

    def draw(self, batch: int, length: int, seed: int) -> Tensor:
        return sample((batch, length, self.width), None, seed, self.dtype)

    def run(
        self, x: Tensor, *, padding: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        given = fill_blocks(x, self.block)
        if given.shape[1] > x.shape[1]:
            padding = None if padding is None else fill_blocks(padding, self.block, True)
            positions = (
                None if positions is None else torch.arange(given.shape[1]).expand(len(x), -1)
            )
        found = self.convention.call(given, padding, positions)
        return self.convention.outputs(found, given)[:, : x.shape[1]]

    def named(self, x: Tensor, **given: Any) -> Tensor:
        """The outputs, with more arguments by name; `takes` lists the names."""
        with torch.no_grad():
            return self.convention.outputs(self.convention.ask(self.convention.code, x, given), x)

    def run_on(self, x: Tensor, context: Tensor, padding: Tensor | None = None) -> Tensor:
        """The outputs [b, t, e], with another context [b, s, c] and padding in it."""
        return self.named(x, **self.convention.about(context, padding))

    def draw_context(self, batch: int, length: int, seed: int) -> Tensor:
        width = self.convention.context_width
        tokens = width if self.convention.context_tokens else None
        return sample((batch, length, width), tokens, seed, self.dtype)

    def on_cpu(self: Kind, dtype: torch.dtype) -> Kind:
        """The same code on the CPU, with the same weights, in a precision."""
        usual, module = self.convention, self.module
        if module is not None:
            with calling("__deepcopy__"):
                module = copy.deepcopy(module).cpu().to(dtype)
        changes: dict[str, Any] = {"dtype": dtype, "device": "", "decoder": None, "switches": {}}
        code = usual.code if module is None else module
        return self.with_convention(replace(usual, module=module, code=code, **changes))

    def new_cache(self) -> object:
        assert self.decoder is not None
        return self.decoder.new_cache()

    def step(self, x: Tensor, cache: Any) -> Tensor:
        return self.convention.step(x, cache)

    def expressions(self, padded: bool) -> dict[str, str]:
        """What some parameters are given, as expressions (`audit/subject/calls.py`), by name."""
        return self.convention.expressions(padded)


class Tokens(Vectors):
    """Inputs are tokens; `width` counts them."""

    def draw(self, batch: int, length: int, seed: int) -> Tensor:
        return sample((batch, length), self.width, seed, self.dtype)

    @property
    def continuous(self) -> bool:
        return False


class Attention(Vectors):
    """A function of q [b, h, t, d], k and v [b, g, t, d]."""

    convention: AttentionConvention

    def _adopt(self, convention: Convention) -> None:
        assert isinstance(convention, AttentionConvention)
        super()._adopt(convention)
        self.head_width = convention.head_width

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, [b, h, t, d]."""
        return self.convention.split(x)

    def shaped(self, heads: int, kv_heads: int) -> "Attention":
        """The same function, for another number of heads."""
        width = (heads + 2 * kv_heads) * self.head_width
        return self.with_convention(
            replace(self.convention, heads=heads, kv_heads=kv_heads, width=width)
        )


def build_subject(convention: Convention) -> Vectors:
    """The subject that a convention describes."""
    if isinstance(convention, AttentionConvention):
        return Attention(convention)
    return Tokens(convention) if convention.tokens else Vectors(convention)
