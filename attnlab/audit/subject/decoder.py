"""How a module decodes: a protocol, with the names that one module has for what it is given.

    x [b, t, …] --step--> outputs [b, n, e] of the new positions, or of the last one only

A `Protocol` (`audit/subject/protocols.py`) says by what a cache is recognised and who keeps it; a
`Decoder` is one protocol with the parameters of one module; a `Text` is what decoding one text has
left so far. All three work alike for a whole module and for a method that takes one position.

Axes: b batch, t time, n outputs of a step, e width of the outputs.
"""

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attnlab.audit.errors import SubjectError, calling
from attnlab.audit.repro.prelude import kept_in, seeded
from attnlab.audit.subject.calls import evaluate
from attnlab.audit.subject.makers import Place
from attnlab.audit.subject.tensors import first_tensor

ModuleCall = Callable[[nn.Module, Tensor, Mapping[str, Any]], Any]


@dataclass
class Text:
    """What decoding one text has left; made at the first step, since some code counts its rows."""

    kept: Any = None  # the cache, where the caller holds it
    seen: int = 0  # positions so far
    module: nn.Module | None = None
    inputs: Tensor | None = None  # all so far, for code that is given the whole text
    follows: bool = False  # the module has kept another text, and must be told that this begins


@dataclass(frozen=True)
class Protocol(ABC):
    """One way in which code and its caller share a KV cache."""

    name: ClassVar[str]
    copies: ClassVar[bool] = False  # the module keeps the cache: texts have copies of it
    whole: ClassVar[bool] = False  # the code is given the text from its start on
    returns: ClassVar[bool] = False  # what a call gives back is given to the next

    @abstractmethod
    def ways(self, place: Place) -> "Iterator[Decoder]":
        """Every way that the names allow, the likeliest first."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """One way to step a module; names are those of its parameters."""

    protocol: Protocol
    words: tuple[str, ...] = ()  # take the cache, or a part of it each
    make: str = "None"  # a new cache, as an expression of `code`, `x` and `dtype`
    start: str | None = None  # takes where the new positions begin
    counted: bool = False  # the start is a number, not the new positions
    end: str | None = None  # takes how many positions there are then
    places: str | None = None  # takes the new positions, of every row
    flags: tuple[str, ...] = ()  # that are given True
    setup: str = ""  # an expression by which a copy of the module makes room
    method: str = ""  # takes one position; without one the module is called
    flat: bool = False  # that position as [b, …], without an axis of time
    renew: tuple[str, ...] = ()  # expressions by which the module begins another text
    unsure: str = ""  # why it is not known how it does
    doubt: str = ""  # why it may be called wrongly
    needed: bool = False  # what tells it positions may be left out, and then it is wrong

    def __str__(self) -> str:
        """The protocol, and what the code is given by it."""
        told = [one for one in (self.start, self.end, self.places) if one is not None]
        parts = [f"`{', '.join(self.words)}`"] * bool(self.words)
        parts += [f"set up by `{self.setup.partition('(')[0].removeprefix('code.')}`"] * bool(
            self.setup
        )
        parts += [f"`{self.method}`, one position a call"] * bool(self.method)
        parts += ["one position a call after the first"] * self.protocol.whole
        without = ", and wrong without" if self.needed else ""
        parts += [f"told `{', '.join(told)}`{without}"] * bool(told)
        parts += [self._between] * self.protocol.copies
        return f"{self.protocol.name} ({'; '.join(parts)})" if parts else self.protocol.name

    @property
    def _between(self) -> str:
        """What is done between two texts in one module."""
        if self.unsure:
            return "each text in a copy of the module"
        names = [re.findall(r"(?:code|part)\.(\w+)\(", one)[0] for one in self.renew]
        called = f"after {' and '.join(f'`{one}`' for one in names)}" if names else "from 0 on"
        return f"a second text in the same module, {called}"

    def in_dtype(self, dtype: torch.dtype) -> "Decoder":
        """With a dtype written into what it makes."""
        make, setup, *renew = (
            re.sub(r"\bdtype=dtype\b", f"dtype={dtype}", one)
            for one in (self.make, self.setup, *self.renew)
        )
        return replace(self, make=make, setup=setup, renew=tuple(renew))

    def new_cache(self, before: Text | None = None) -> Text:
        """Of a new text; after another one in the same module, where that keeps the cache."""
        if before is None or not self.protocol.copies:
            return Text()
        return Text(module=before.module, follows=True)

    def step(
        self,
        x: Tensor,
        text: Text,
        *,
        module: nn.Module,
        dtype: torch.dtype,
        call: ModuleCall,
        outputs: Callable[[Any], Tensor],
    ) -> Tensor:
        """The outputs of new positions x; `call` calls a module, `outputs` finds them in it."""
        count, single = x.shape[1], self.method or (self.protocol.whole and text.seen)
        if single and count > 1:
            known: dict[str, Any] = {"module": module, "dtype": dtype, "call": call}
            every = [self.step(x[:, [i]], text, outputs=outputs, **known) for i in range(count)]
            if len({one.shape for one in every}) > 1:
                raise SubjectError("single steps gave outputs of more than one width")
            return torch.cat(every, dim=1)
        if text.module is None:
            self.begin(text, x, module, dtype)
            assert text.module is not None
        if text.follows:
            self._begin_another(text, x, text.module, dtype)
        if self.protocol.whole:
            text.inputs = x if text.inputs is None else torch.cat((text.inputs, x), dim=1)
        given = self.given(text, x)
        if self.method:
            with seeded(), calling(self.method, count):
                found = getattr(text.module, self.method)(x[:, 0] if self.flat else x, **given)
            out = first_tensor(found)
            if not out.numel() or out.numel() % len(x):
                raise SubjectError(f"`{self.method}` gave {list(out.shape)} for {len(x)} rows")
            out = out.reshape(len(x), 1, -1)
        else:
            found = call(text.module, x if text.inputs is None else text.inputs, given)
            out = outputs(found)
        self._keep(text, found)
        text.seen += count
        return out

    def begin(self, text: Text, x: Tensor, module: nn.Module, dtype: torch.dtype) -> None:
        """Makes the cache of a new text, or a copy of the module with room for it."""
        if not self.protocol.copies:
            with calling(self.make):
                text.kept = evaluate(self.make, code=module, x=x, dtype=dtype)
            text.module = module
            return
        module = try_copy(module) or module  # there may be only the one
        if self.setup:
            with calling(self.setup):
                evaluate(self.setup, code=module, x=x, dtype=dtype)
                module = module.to(dtype)
        text.module = module

    def _begin_another(self, text: Text, x: Tensor, module: nn.Module, dtype: torch.dtype) -> None:
        """In a module that has kept a text, as a caller does."""
        text.follows = False
        if not self.renew:
            return
        weights = [one.clone() for one in module.parameters()]
        for one in self.renew:
            with calling(one):
                evaluate(one, code=module, x=x, dtype=dtype)
        module.to(dtype)
        if not all(map(torch.equal, weights, module.parameters())):
            raise SubjectError(
                f"`{self.renew[0]}` changed the weights: it forgets more than a text"
            )

    def given(self, text: Text, x: Tensor) -> dict[str, Any]:
        """What the code is given besides x."""
        given: dict[str, Any] = dict.fromkeys(self.flags, True)
        if len(self.words) == 1:
            given[self.words[0]] = text.kept
        elif self.words:
            with calling(self.make):
                given.update(zip(self.words, text.kept, strict=True))
        begun, end = text.seen, text.seen + x.shape[1]
        if self.start is not None:
            given[self.start] = begun if self.counted else torch.arange(begun, end)
        if self.end is not None:
            given[self.end] = end
        if self.places is not None:
            given[self.places] = torch.arange(begun, end).expand(len(x), -1)
        return given

    def _keep(self, text: Text, found: object) -> None:
        if not self.protocol.returns:
            return
        kept = kept_in(found, self.words[0], len(self.words))
        if kept is None:
            raise SubjectError("the code gave no cache back")
        text.kept = kept


def try_copy(module: nn.Module) -> nn.Module | None:
    """A copy, if the module can be copied."""
    try:
        with calling("__deepcopy__"):  # a person's code may hold anything
            return copy.deepcopy(module)
    except SubjectError:
        return None
