"""A person's own `Subject`, guarded: what its methods raise is a SubjectError."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.errors import calling
from attnlab.audit.repro.prelude import seeded
from attnlab.audit.subject.base import Subject, Vectors
from attnlab.audit.subject.tensors import sequence_in, step_in

MISSING = object()  # of an attribute that is not there


def guard(subject: Subject) -> Subject:
    """The subject, guarded if it is a person's own; ours mark the calls of the code themselves."""
    if isinstance(subject, Vectors | GuardedSubject):
        return subject
    with calling("backends"):
        known = dict(subject.backends)
    return GuardedSubject(subject, {name: GuardedSubject(one, {}) for name, one in known.items()})


class GuardedSubject(Subject):
    def __init__(self, own: Subject, backends: "dict[str, GuardedSubject]") -> None:
        self._own = own
        for name in Subject.__annotations__:
            with calling(name):  # it may be a property
                vars(self)[name] = getattr(own, name)
        self.backends = backends

    def draw(self, batch: int, length: int, seed: int) -> Tensor:
        with calling("draw", length):
            return self._own.draw(batch, length, seed)

    def run(
        self, x: Tensor, *, padding: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        with seeded(), calling("run", x.shape[1]):
            found = self._own.run(x, padding=padding, positions=positions)
        return sequence_in(found, x)

    def new_cache(self) -> object:
        with calling("new_cache"):
            return self._own.new_cache()

    def step(self, x: Tensor, cache: Any) -> Tensor:
        with seeded(), calling("step", x.shape[1]):
            found = self._own.step(x, cache)
        return step_in(found)

    @property
    def continuous(self) -> bool:
        with calling("continuous"):
            return self._own.continuous

    def in_dtype(self, dtype: torch.dtype) -> Subject:
        with calling("in_dtype"):
            other = self._own.in_dtype(dtype)
        return GuardedSubject(other, {})

    def __getattr__(self, name: str) -> object:
        """What a Subject may have besides, such as `packed` or `loss`."""
        if name.startswith("_"):
            raise AttributeError(name)
        with calling(name):
            found = getattr(self._own, name, MISSING)
        if found is MISSING:
            raise AttributeError(name)
        return guard_method(name, found) if callable(found) else found


def guard_method(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose errors are SubjectErrors; its signature can still be read."""

    @functools.wraps(method)
    def call(*positional: Any, **named: Any) -> object:
        with calling(name):
            return method(*positional, **named)

    return call
