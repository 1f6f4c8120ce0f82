"""The training path: a loss of the next token, gradients in parts, and spans that can be put back.

Axes: b batch, t time, v vocabulary.

Code is examined for what it offers, as a method of the module or of its `Subject`:

    loss(tokens, padding=None) -> Tensor            what training minimises, from the text alone
    forward(tokens, labels=…)                       a loss among the outputs, as many models give
    accumulate(tokens, parts, padding=None) -> …    gradients of a batch, worked through in parts
    corrupt(tokens, seed) -> (inputs, targets)      a text as lists, with spans taken out

A bare function loss(logits, labels) is audited as a `LossFunction`.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.contract import Finding, Verdict
from attnlab.audit.errors import SubjectError, calling
from attnlab.audit.probe.probe import SAFETY, Probe
from attnlab.audit.properties.property import Property, unsteady
from attnlab.audit.subject.adapters import TOKENS
from attnlab.audit.subject.base import Tokens, normal
from attnlab.audit.subject.convention import Convention

LABELS = ("labels", "targets")
SHIFTS = {0: "not shifted", 1: "shifted once", 2: "shifted twice", -1: "shifted backwards"}
TEXTS = 5  # that a loss is measured on
SEEDS = 64  # of corruptions: a position is left out by all of them once in 2^64 if it is even
TEXT = 40  # tokens, all different, that are corrupted


class LossFunction(Tokens):
    """loss(logits [b, t, v], labels [b, t]) with a model of pairs of tokens, the least there is."""

    def __init__(self, name: str, loss: Callable[..., Any], vocabulary: int = 29) -> None:
        self.table = nn.Embedding(vocabulary, vocabulary)
        with torch.no_grad():
            self.table.weight.copy_(normal(0, vocabulary, vocabulary))
        self.table = self.table.to(self.dtype)
        super().__init__(
            Convention(name=name, code=self.table, module=self.table, width=vocabulary, tokens=True)
        )
        self._loss = loss

    def labelled(self, tokens: Tensor) -> Tensor:
        """The loss of a text that is its own label."""
        return scalar_in(self._loss(self.table(tokens), tokens))


@dataclass(frozen=True)
class Training(Property):
    name = "training"

    def tolerance(self, probe: Probe) -> float:
        return 0.0  # losses and gradients have tolerances of their own

    def examine(self, probe: Probe) -> Finding:
        every = {"loss": self._loss, "parts": self._parts, "spans": self._spans}
        seen = {name: examined(probe) for name, examined in every.items()}
        found = [one for one in seen.values() if one]
        if not found:
            detail = "no loss, accumulate or corrupt was found; see audit/properties"
            return self.finding("not applicable", detail)
        worst: Verdict = "pass"
        for verdict in ("cannot tell", "fail"):
            if any(one[0] == verdict for one in found):
                worst = verdict
        told = "; ".join(one[1] for one in found if worst in ("pass", one[0]))
        example: dict[str, Any] = {
            name: one[1] for name, one in seen.items() if one and one[0] == "fail"
        }
        if "loss" in example and method(probe, "loss") is None:
            example["word"] = label_word(probe)
        return self.finding(
            worst, told, measured=[one[1] for one in found], example=example or None
        )

    def _loss(self, probe: Probe) -> tuple[Verdict, str] | None:
        whole = method(probe, "loss")
        given = whole or _with_labels(probe)
        if given is None or probe.subject.continuous:
            return None
        reason = unsteady(probe)
        if reason:
            return "cannot tell", reason
        shift, factor = shift_of(probe, given)
        if shift is None:
            return "cannot tell", "the loss is no cross-entropy of a token near by"
        name = SHIFTS[shift]
        size = "" if abs(factor - 1) < 1e-3 else f", times {factor:.4g}"
        if whole is None and shift == 0:
            detail = f"the loss compares output i with label i{size}: who calls it shifts them"
            return "pass", detail
        place = f"i{shift:+d}" if shift else "i"
        detail = f"labels are {name}: the loss compares output i with token {place}{size}"
        if shift == 1 and whole is not None and reads_padding(probe, whole):
            return "fail", "the loss moves with tokens that stand in padding"
        return ("pass" if shift == 1 else "fail"), detail

    def _parts(self, probe: Probe) -> tuple[Verdict, str] | None:
        accumulate, module = method(probe, "accumulate"), probe.subject.module
        if accumulate is None or module is None:
            return None
        x = probe.draw(8, 11)
        ragged = torch.arange(11) >= torch.tensor([11, 3, 11, 11, 2, 4, 9, 11])[:, None]
        padded = "padding" in inspect.signature(accumulate).parameters
        for padding in (None, ragged) if padded else (None,):
            how = {} if padding is None else {"padding": padding}
            whole = gradient_of(module, partial(accumulate, x, 1, **how))
            # the same rows in another order: equal but for the order of the sums
            turned = {"padding": padding.flip(0)} if padding is not None else {}
            other = gradient_of(module, partial(accumulate, x.flip(0), 1, **turned))
            eps = torch.finfo(whole.dtype).eps * float(whole.abs().max())
            tolerance = SAFETY * max(float((other - whole).abs().max()), eps)
            for parts in (2, 4):
                found = gradient_of(module, partial(accumulate, x, parts, **how))
                off = float((found - whole).abs().max())
                if not off <= tolerance:
                    times = float(found.norm() / whole.norm())
                    rows = "rows of unequal length" if padding is not None else "rows of one length"
                    detail = (
                        f"the gradient of {rows} in {parts} parts is off by {off:.2g} "
                        f"({times:.3g} times as long as in one)"
                    )
                    return "fail", detail
        return "pass", "gradients in 1, 2 and 4 parts are equal"

    def _spans(self, probe: Probe) -> tuple[Verdict, str] | None:
        corrupt = method(probe, "corrupt")
        if corrupt is None:
            return None
        text = list(range(TEXT))
        removed = [0] * TEXT
        for seed in range(SEEDS):
            with calling("corrupt", TEXT):
                inputs, targets = (_numbers(one) for one in corrupt(list(text), seed))
            kept = [token for token in inputs if token in text]
            taken = [token for token in targets if token in text]
            if sorted(kept + taken) != text:
                lost = sorted(set(text) - {*kept, *taken})
                what = f"tokens {lost[:5]} are lost" if lost else "some tokens stand in both"
                return "fail", f"seed {seed}: {what}, so the text cannot be put back together"
            if kept != sorted(kept) or taken != sorted(taken):
                return "fail", f"seed {seed}: tokens are no longer in the order of the text"
            for token in taken:
                removed[token] += 1
        always = [place for place, count in enumerate(removed) if count == SEEDS]
        never = [place for place, count in enumerate(removed) if count == 0]
        if always:
            return "fail", f"of {TEXT} positions {always} are taken out whatever the seed"
        text_of_never = f"; never taken out: {never}" if never else ""
        return "pass", f"texts can be put back together{text_of_never}"


def method(probe: Probe, name: str) -> Callable[..., Any] | None:
    """Of the subject or its module; one that begins with tokens, not a loss that is a layer."""
    for holder in (probe.subject, probe.subject.module):
        found = getattr(holder, name, None)
        if callable(found):
            takes = list(inspect.signature(found).parameters)
            if takes and takes[0] in (*TOKENS, "text", "x"):
                return found  # type: ignore[no-any-return]
    return None


def _with_labels(probe: Probe) -> Callable[[Tensor], Tensor] | None:
    own: Callable[[Tensor], Tensor] | None = getattr(probe.subject, "labelled", None)
    if own is not None:
        return own
    module = probe.subject.module
    if module is None:
        return None
    word = label_word(probe)
    if not word:
        return None

    def labelled(tokens: Tensor) -> Tensor:
        with calling("forward", tokens.shape[1]):
            return scalar_in(module(tokens, **{word: tokens}))

    return labelled


def label_word(probe: Probe) -> str:
    """What a module calls its labels; empty if it takes none."""
    module = probe.subject.module
    takes = [] if module is None else inspect.signature(module.forward).parameters
    return next((one for one in takes if one in LABELS), "")


def scalar_in(found: Any) -> Tensor:
    """The loss among what a model gave."""
    loss = found.get("loss") if isinstance(found, dict) else getattr(found, "loss", None)
    values = [loss] if loss is not None else found if isinstance(found, tuple) else [found]
    for value in values:
        if isinstance(value, Tensor) and value.numel() == 1:
            return value
    raise SubjectError(
        "the code was given labels and gave no loss; return one, such as (logits, loss)"
    )


def shift_of(probe: Probe, loss: Callable[[Tensor], Tensor]) -> tuple[int | None, float]:
    """How far the labels are from the logits they are compared with, and the loss's factor.

    A mean and a sum are both fine, so a loss may be any one multiple of the cross-entropy.
    """
    losses: list[float] = []
    expected: dict[int, list[float]] = {shift: [] for shift in SHIFTS}
    for seed in range(TEXTS):
        x = probe.draw(2, 11, seed)
        with torch.no_grad(), calling("loss", 11):
            losses.append(float(loss(x)))
        logits = probe.run(x).double()
        for shift in SHIFTS:
            expected[shift].append(float(_cross_entropy(logits, x, shift)))
    factors = {
        shift: torch.tensor(losses).double() / torch.tensor(values).double()
        for shift, values in expected.items()
    }
    spread = {shift: float((one / one.mean() - 1).abs().max()) for shift, one in factors.items()}
    best = min(spread, key=spread.__getitem__)
    # a loss is often computed in float32, whatever the model is in
    if not spread[best] <= SAFETY * torch.finfo(torch.float32).eps:
        return None, 0.0
    return best, float(factors[best].mean())


def reads_padding(probe: Probe, loss: Callable[..., Tensor]) -> bool:
    """Whether tokens behind the end count; the first of them may be the end's own mark."""
    if "padding" not in inspect.signature(loss).parameters:
        return False
    x, other = probe.draw(3, 11), probe.draw(3, 11, 1)
    padding = torch.arange(11) >= torch.tensor([5, 11, 8])[:, None]
    behind = torch.arange(11) > torch.tensor([5, 11, 8])[:, None]
    with torch.no_grad(), calling("loss", 11):
        before = float(loss(x, padding=padding))
        after = float(loss(torch.where(behind, other, x), padding=padding))
    return not abs(after - before) <= SAFETY * torch.finfo(torch.float32).eps * abs(before)


def _cross_entropy(logits: Tensor, x: Tensor, shift: int) -> Tensor:
    length = x.shape[1] - abs(shift)
    first, second = (0, shift) if shift >= 0 else (-shift, 0)
    rows, labels = logits[:, first:][:, :length], x[:, second:][:, :length]
    return F.cross_entropy(rows.flatten(0, 1), labels.flatten())


def gradient_of(module: nn.Module, work: Callable[[], Any]) -> Tensor:
    """What it leaves in the parameters, as one vector; the module is left without any."""
    with _no_gradients(module):
        with calling("accumulate"):
            work()
        found = [
            (torch.zeros_like(one) if one.grad is None else one.grad).flatten()
            for one in module.parameters()
        ]
        return torch.cat(found).double()


@contextmanager
def _no_gradients(module: nn.Module) -> Iterator[None]:
    module.zero_grad(set_to_none=True)
    try:
        yield
    finally:
        module.zero_grad(set_to_none=True)


def _numbers(row: Tensor | Sequence[int]) -> list[int]:
    return [int(one) for one in row]
