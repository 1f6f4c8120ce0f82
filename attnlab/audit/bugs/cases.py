"""What a case of the development set is, and the list of all of them.

A case is one piece of code in two forms, wrong and right, that differ in the bug and nothing else.
The audit must fail the wrong form for one of the case's reasons, and fail nothing of the right one.
A control has a right form only: unusual code that does what it says.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from attnlab import counter_rng
from attnlab.audit.contract import Contract
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.base import Subject
from attnlab.config import from_dict

FAMILIES = (
    *("causality", "lengths", "caching", "windows", "positions", "heads", "padding", "contexts"),
    *("scores", "rates", "packed", "training", "mutations"),
)
CAUSAL = {"causal": True}  # declared of most


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    bug: str  # in one line
    make: Callable[[bool], Any]  # of "wrong": a module, a function of q, k and v, or a Subject
    reasons: tuple[str, ...]  # properties of which one must fail the wrong form
    declared: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.reasons:
            raise ValueError(f"case {self.name!r} has no reasons; name what must fail it")

    @property
    def contract(self) -> Contract:
        return from_dict(Contract, dict(self.declared))

    def subject(self, wrong: bool) -> Subject:
        """Both forms begin with the same weights."""
        return _build(self.name, lambda: self.make(wrong), self.options)


@dataclass(frozen=True, kw_only=True)
class Control:
    name: str
    why: str  # it is right, in one line
    make: Callable[[], Any]
    declared: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def contract(self) -> Contract:
        return from_dict(Contract, dict(self.declared))

    def subject(self) -> Subject:
        return _build(self.name, self.make, self.options)


def _build(name: str, make: Callable[[], Any], options: Mapping[str, Any]) -> Subject:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(counter_rng.number(0, name))
        code = make()
    return subject_for(code, options, name)


def cases(family: str | None = None) -> dict[str, tuple[Case, ...]]:
    """By family."""
    if family is not None and family not in FAMILIES:
        raise ValueError(f"no family {family!r}; choose from {', '.join(FAMILIES)}")
    chosen = FAMILIES if family is None else (family,)
    place = "attnlab.audit.bugs"
    return {name: importlib.import_module(f"{place}.{name}").CASES for name in chosen}
