"""Code under audit, called in one way whatever its own signature is.

    x [b, t, …] --run--> y [b, t, e]

Axes: b batch, t time, c width of the inputs, e of the outputs, h query heads, g key/value heads,
d head width. Inputs are vectors [b, t, c], tokens [b, t], or for functions of q, k and v all three
side by side, [b, t, (h + 2g) d]; so every probe speaks of "input j" and "output i" and no more.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.repro.prelude import drawn, filled


class Subject(ABC):
    """What a person implements (or has implemented for them) to have code audited.

    `padding` is True at positions that hold padding. `new_cache` and `step` are for code that
    decodes: `step(x, cache)` gives the outputs of the new positions x and remembers them.
    """

    name: str = "subject"
    pads: bool = False  # run takes padding
    masked: bool = False  # it takes a mask, which may be one for padding
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
    sides: tuple[str, ...] = ("right", "left")  # on which padding can be told
    exact: bool = False  # known to compute in its own precision throughout

    @abstractmethod
    def draw(self, batch: int, length: int, seed: int) -> Tensor:
        """Inputs that depend on the seed only."""

    @abstractmethod
    def run(
        self, x: Tensor, *, padding: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """The outputs [b, t, e]."""

    def new_cache(self) -> Any:
        raise NotImplementedError

    def step(self, x: Tensor, cache: Any) -> Tensor:
        raise NotImplementedError

    @property
    def continuous(self) -> bool:
        """Whether an input can be changed a little, and has a gradient."""
        return True


class Vectors(Subject):
    """Inputs are vectors; `call(x, padding, positions)` gives what the code gives."""

    def __init__(self, name: str, call: Callable[..., Any], width: int, **facts: Any) -> None:
        self.name, self._call, self.width = name, call, width
        for fact, value in facts.items():
            setattr(self, fact, value)

    def draw(self, batch: int, length: int, seed: int) -> Tensor:
        return drawn((batch, length, self.width), None, seed, self.dtype)

    def run(
        self, x: Tensor, *, padding: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        given = filled(x, self.block)
        if given.shape[1] > x.shape[1]:
            padding = None if padding is None else filled(padding, self.block, True)
            positions = (
                None if positions is None else torch.arange(given.shape[1]).expand(len(x), -1)
            )
        found = self._call(self.arranged(given), padding, positions)
        return self.outputs(found, given)[:, : x.shape[1]]

    def wording(self, padded: bool) -> dict[str, str]:
        """What some parameters are given, in words (`audit/subject/calls.py`), by name."""
        return {}

    def arranged(self, x: Tensor) -> Tensor:
        """As the code has its axes: [b, t, …], or [t, b, …]."""
        return x.transpose(0, 1) if self.layout == "tbc" else x

    def outputs(self, found: Any, x: Tensor) -> Tensor:
        out = first_tensor(found)
        turned = out.transpose(0, 1) if self.layout == "tbc" and out.dim() > 1 else out
        return sequence_in(turned, x)


class Tokens(Vectors):
    """Inputs are tokens; `width` counts them."""

    def draw(self, batch: int, length: int, seed: int) -> Tensor:
        return drawn((batch, length), self.width, seed, self.dtype)

    @property
    def continuous(self) -> bool:
        return False


class Attention(Vectors):
    """A function of q [b, h, t, d], k and v [b, g, t, d]."""

    def __init__(
        self, name: str, call: Callable[..., Any], *, heads: int, kv_heads: int, head_width: int
    ) -> None:
        super().__init__(name, call, (heads + 2 * kv_heads) * head_width)
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, head_width

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        assert self.heads is not None and self.kv_heads is not None
        q, k, v = parts.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        return q, k, v

    def arranged(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """q, k and v as the code has their axes: [b, h, t, d], or [b, t, h, d]."""
        q, k, v = self.split(x)
        if self.layout == "bthd":
            return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return q, k, v

    def outputs(self, found: Any, x: Tensor) -> Tensor:
        out, time = first_tensor(found), 1 if self.layout == "bthd" else 2
        if out.dim() != 4 or out.shape[time] != x.shape[1]:
            axes = "[b, t, h, d]" if time == 1 else "[b, h, t, d]"
            raise ValueError(
                f"{self.name} gave {list(out.shape)} for q {axes} of "
                f"{list(self.arranged(x)[0].shape)}; it must give {axes}"
            )
        return (out if time == 1 else out.transpose(1, 2)).flatten(2)

    def run(
        self, x: Tensor, *, padding: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        given = filled(x, self.block)
        return self.outputs(self._call(*self.arranged(given)), given)[:, : x.shape[1]]


def normal(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers that depend on the seed only."""
    return drawn(shape, None, seed, torch.float64)


def first_tensor(found: Any) -> Tensor:
    """Of a tensor, a tuple or something with logits."""
    if isinstance(found, Tensor):
        return found
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(found, name, None), Tensor):
            return getattr(found, name)  # type: ignore[no-any-return]
    values = found.values() if isinstance(found, dict) else found
    if isinstance(values, list | tuple) or isinstance(found, dict):
        for value in values:
            if isinstance(value, Tensor):
                return value
    raise ValueError(f"the code gave {type(found).__name__}, not a tensor or a tuple of them")


def sequence_in(found: Any, x: Tensor) -> Tensor:
    """The outputs, with batch and time where they belong."""
    out = first_tensor(found)
    if out.dim() < 3 or out.shape[:2] != x.shape[:2]:
        raise ValueError(
            f"the code gave {list(out.shape)} for inputs {list(x.shape)}; "
            "outputs must be [batch, time, width]"
        )
    return out.flatten(2)
