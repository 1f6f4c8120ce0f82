"""The training path: a loss of the next token, gradients in parts, and spans that can be put back.

Axes: b batch, t time, v vocabulary.

Code is examined for what it offers, as a method of the module or of its `Subject`:

    loss(tokens, padding=None) -> Tensor            what training minimises, from the text alone
    forward(tokens, labels=…)                       a loss among the outputs, as many models give
    accumulate(tokens, parts, padding=None) -> …    gradients of a batch, worked through in parts
    corrupt(tokens, seed) -> (inputs, targets)      a text as lists, with spans taken out

A bare function loss(logits, labels) is audited as a `LossFunction`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.audit.contract import Finding, Verdict
from attnlab.audit.errors import calling
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import loss_of, method_of
from attnlab.audit.properties.property import Case, Property, unsteady
from attnlab.audit.repro.prelude import CannotTell, Result, Tool
from attnlab.audit.signature import signature
from attnlab.audit.subject.base import Tokens
from attnlab.audit.subject.convention import Convention
from attnlab.audit.subject.tensors import loss_in, normal

SHIFTS = {0: "not shifted", 1: "shifted once", 2: "shifted twice", -1: "shifted backwards"}
TEXTS = 5  # that a loss is measured on
SEEDS = 64  # of corruptions: a position is left out by all of them once in 2^64 if it is even
TEXT = 40  # tokens, all different, that are corrupted
NEAR = 2e-6  # 16 float32 roundings: a loss is often computed in float32, whatever the model is in


def shift_fails(
    run: Tool,
    draw: Tool,
    loss: Tool,
    model: nn.Module | None,
    *,
    labelled: bool,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """The loss is the cross-entropy of the next token, or any one multiple of it.

    A mean and a sum are both fine. With labels, who calls the code may have shifted them.
    """
    if length < 4:
        raise ValueError("a shorter text has no two tokens that are two ahead")
    known: list[tuple[float, Tensor, Tensor]] = []
    for number in range(TEXTS):
        x = draw(batch, length, seed + number).clone()
        x[0, length // 2] = 0  # the token that is left out most often, for padding
        known.append((float(loss(x)), run(x).double(), x))
    middle, spread = fit_shifts(known, None)
    best, without = min(spread, key=lambda shift: spread[shift]), ""
    if not spread[best] <= NEAR:
        for token in sorted(set(torch.cat([x for _, _, x in known]).flatten().tolist())):
            middle, spread = fit_shifts(known, token)
            best = min(spread, key=lambda shift: spread[shift])
            if spread[best] <= NEAR:
                without = left_out(model, token)
                break
        else:
            raise CannotTell("the loss is no cross-entropy of a token near by")
    if sum(one <= NEAR for one in spread.values()) > 1:
        raise CannotTell("all tokens are about equally likely: the loss fits more than one shift")
    factor = float(middle[best])
    size = "" if abs(factor - 1) < 1e-3 else f", times {factor:.4g}"
    size += f"; {without}" if without else ""
    if labelled and best == 0:
        if without.endswith("taught"):
            raise CannotTell(f"who calls it shifts the labels, but {without}")
        text = f"the loss compares output i with label i{size}: who calls it shifts them"
        return False, text, best
    if best == 1 and without.endswith("taught"):
        raise CannotTell(f"labels are shifted once, but {without}")
    place = f"i{best:+d}" if best else "i"
    text = f"labels are {SHIFTS[best]}: the loss compares output i with token {place}{size}"
    return best != 1, text, best


def fit_shifts(
    known: list[tuple[float, Tensor, Tensor]], ignored: int | None
) -> tuple[dict[int, Tensor], dict[int, float]]:
    """By shift: the factor between losses and cross-entropies, and how far it is from one number.

    Labels that are `ignored` do not count. `known` has losses, logits [b, t, v] and tokens [b, t].
    """
    middle, spread = {}, {}
    for shift in SHIFTS:
        factors = []
        for loss, logits, x in known:
            length = x.shape[1]
            rows = logits[:, max(-shift, 0) : length - max(shift, 0)].flatten(0, 1)
            labels = x[:, max(shift, 0) : length - max(-shift, 0)].flatten()
            wanted = F.cross_entropy(
                rows, labels, ignore_index=-100 if ignored is None else ignored
            )
            factors.append(loss / wanted)
        middle[shift] = torch.stack(factors).mean()
        off = (torch.stack(factors) / middle[shift] - 1).abs()
        spread[shift] = float(off.nan_to_num(torch.inf).max())
    return middle, spread


def left_out(model: nn.Module | None, token: int) -> str:
    """What it means that a token does not count, in a sentence."""
    parts = [] if model is None else list(model.modules())
    if any(isinstance(one, nn.Embedding) and one.padding_idx == token for one in parts):
        return f"token {token}, its padding, does not count"
    why = f"token {token} does not count in the loss (as by ignore_index={token})"
    return f"{why}: right if it is padding, and else it is never taught"


def padding_fails(
    draw: Tool, loss: Tool, *, batch: int, length: int, real: int, seed: int, tolerance: float
) -> Result:
    """Tokens behind the end of row 0 change: the loss does not."""
    if real < 2:
        raise ValueError("a text of one token has no loss")
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, real:] = True
    changed = x.clone()
    changed[0, real + 1 :] = other[0, real + 1 :]  # the first may be the mark of the end
    before, after = (float(loss(one, padding=padding)) for one in (x, changed))
    text = f"the loss moves from {before:.6g} to {after:.6g} when tokens that stand in padding move"
    return not abs(after - before) <= NEAR * abs(before), text, abs(after - before)


def parts_fails(
    draw: Tool,
    accumulate: Callable[..., Any],
    model: nn.Module,
    *,
    parts: int,
    ragged: bool,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """The gradient of a batch is the same, worked through in one part or in several."""
    x = draw(batch, length, seed)
    padding = None
    if ragged:
        ends = torch.tensor([length, *range(2, batch + 1)]).clamp(max=length)
        padding = torch.arange(length) >= ends[:, None]
    whole = gradient_of(accumulate, model, x, padding, 1)
    # the same rows in another order: equal but for the order of the sums
    hidden = None if padding is None else padding.flip(0)
    turned = gradient_of(accumulate, model, x.flip(0), hidden, 1)
    found = gradient_of(accumulate, model, x, padding, parts)
    eps = torch.finfo(next(model.parameters()).dtype).eps * float(whole.abs().max())
    allowed = 16 * max(float((turned - whole).abs().max()), eps)
    off = float((found - whole).abs().max())
    rows = "rows of unequal length" if ragged else "rows of one length"
    text = f"the gradient of {rows} in {parts} parts is off by {off:.2g}"
    times = float(found.norm() / whole.norm())
    return not off <= allowed, f"{text} ({times:.3g} times as long as in one)", off


def unlike_loss_fails(
    draw: Tool,
    loss: Tool,
    accumulate: Callable[..., Any],
    model: nn.Module,
    *,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Gradients in one part are those of the loss, up to a factor that is the same for all texts.

    A sum instead of a mean is fine too: then the factor is the number of tokens.
    """
    if length < 5 or batch < 2:
        return False, "rows of so few tokens do not differ in length", None
    factors, counts = [], []
    for number in range(3):
        x = draw(batch, length, seed + number)
        ends = torch.arange(batch) * (number + 1) % (length - 2) + 3
        padding = torch.arange(length) >= ends[:, None]
        found = gradient_of(accumulate, model, x, padding, 1)
        if not float(found.norm()) > 0:
            return True, "the gradient of a batch with padding is 0", None
        slope = slope_along(loss, model, x, padding, found / found.norm())
        factors.append(float(found.norm()) / slope if slope else float("inf"))
        counts.append(float((~padding[:, 1:]).sum()))
    ways = ([1.0] * 3, counts, [1 / one for one in counts])
    steady = any(
        max(factors[n] / way[n] for n in range(3)) - min(factors[n] / way[n] for n in range(3))
        <= 1e-3 * abs(factors[0] / way[0])
        for way in ways
    )
    told = ", ".join(f"{one:.4g}" for one in factors)
    text = f"gradients of rows of unequal length are {told} times those of the loss"
    return not steady, text + ("" if steady else ": one number, or the tokens', is right"), None


def slope_along(
    loss: Tool, model: nn.Module, x: Tensor, padding: Tensor, direction: Tensor
) -> float:
    """How fast the loss grows when the parameters go in a direction; they come back."""
    ends, far = [], 1e-4
    known = [one.detach().clone() for one in model.parameters()]
    for sign in (1, -1):
        with torch.no_grad():
            at = 0
            for one, before in zip(model.parameters(), known, strict=True):
                part = direction[at : at + one.numel()].view_as(one).to(one.dtype)
                one.copy_(before + sign * far * part)
                at += one.numel()
        ends.append(float(loss(x, padding=padding)))
    with torch.no_grad():
        for one, before in zip(model.parameters(), known, strict=True):
            one.copy_(before)
    return (ends[0] - ends[1]) / (2 * far)


def gradient_of(
    accumulate: Callable[..., Any], model: nn.Module, x: Tensor, padding: Tensor | None, parts: int
) -> Tensor:
    """What it leaves in the parameters, as one vector; they are left without any."""
    model.zero_grad(set_to_none=True)
    accumulate(x, parts, **({} if padding is None else {"padding": padding}))
    every = [(one, one.grad) for one in model.parameters()]
    found = [(torch.zeros_like(one) if it is None else it).flatten() for one, it in every]
    model.zero_grad(set_to_none=True)
    return torch.cat(found).double()


def spans_fails(
    corrupt: Callable[..., Any], *, length: int, seeds: int, seed: int, tolerance: float
) -> Result:
    """Inputs and targets hold every token once, in order, and no place is always taken out."""
    if length < 16:
        raise ValueError("of so few tokens some may have to go")
    text, removed = list(range(length)), [0] * length
    for number in range(seed, seed + seeds):
        inputs, targets = corrupt(list(text), number)
        kept, taken = ([int(one) for one in row if int(one) in text] for row in (inputs, targets))
        if sorted(kept + taken) != text:
            lost = sorted(set(text) - {*kept, *taken})
            what = f"tokens {lost[:5]} are lost" if lost else "some tokens stand in both"
            return True, f"seed {number}: {what}, so the text cannot be put back together", None
        if kept != sorted(kept) or taken != sorted(taken):
            return True, f"seed {number}: tokens are no longer in the order of the text", None
        removed = [count + (place in taken) for place, count in enumerate(removed)]
    always = [place for place, count in enumerate(removed) if count == seeds]
    if always:
        return True, f"of {length} positions {always} are taken out whatever the seed", None
    never = [place for place, count in enumerate(removed) if count == 0]
    rest = f"; never taken out: {never}" if never else ""
    return False, f"texts can be put back together{rest}", None


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
        with calling("loss", tokens.shape[1]):
            found = self._loss(self.table(tokens), tokens)
        return loss_in(found)


class Training(Property):
    """The loss against cross-entropies of tokens i − 1 … i + 2; gradients in parts; spans put
    back.

    Needs: labels, `loss`, `accumulate`, `corrupt`.
    Fails: a loss not shifted once, unequal gradients, gradients of another loss, lost tokens.
    """

    name = "training"

    def tolerance(self, probe: Probe) -> float:
        return 0.0  # losses and gradients have tolerances of their own

    def excuse(self, probe: Probe) -> None:
        return None

    def cases(self, probe: Probe) -> Iterator[Case]:
        yield from self._loss_cases(probe)
        yield from self._parts_cases(probe)
        if method_of(probe.subject, "corrupt") is not None:
            yield self.case(probe, spans_fails, length=TEXT, seeds=SEEDS)

    def _loss_cases(self, probe: Probe) -> Iterator[Case]:
        own = method_of(probe.subject, "loss")
        if probe.subject.continuous or loss_of(probe.subject) is None:
            return
        sizes = {"batch": 2, "length": 11}
        yield self.case(probe, shift_fails, labelled=own is None, **sizes)
        if own is not None and "padding" in signature(own).parameters:
            yield self.case(probe, padding_fails, **sizes, real=5)

    def _parts_cases(self, probe: Probe) -> Iterator[Case]:
        accumulate = method_of(probe.subject, "accumulate")
        if accumulate is None or probe.subject.module is None:
            return
        padded = "padding" in signature(accumulate).parameters
        for ragged in (False, True) if padded else (False,):
            for parts in (2, 4):
                how = {"ragged": ragged, "parts": parts}
                yield self.case(probe, parts_fails, batch=8, length=11, **how)
        loss = method_of(probe.subject, "loss")
        both = loss is not None and "padding" in signature(loss).parameters and padded
        if both and probe.subject.dtype is torch.float64:  # it takes differences
            yield self.case(probe, unlike_loss_fails, batch=8, length=11)

    def find(self, probe: Probe) -> Finding:
        """Each that the code offers has its say, and the worst is the verdict."""
        findings: dict[Callable[..., Result], Finding] = {}
        for case in self.cases(probe):
            before = findings.get(case.fails)
            if before is None or before.verdict == "pass":
                findings[case.fails] = self._one(probe, case)
        if not findings:
            detail = "no loss, accumulate or corrupt was found"
            return self.finding("not applicable", detail)
        verdicts = [one.verdict for one in findings.values()]
        every: tuple[Verdict, ...] = ("fail", "cannot tell", "pass")
        worst = next(one for one in every if one in verdicts)
        chosen = [one for one in findings.values() if one.verdict == worst]
        detail = "; ".join(one.detail for one in chosen)
        measured = [one.detail for one in findings.values()]
        return replace(chosen[0], detail=detail, measured=measured)

    def _one(self, probe: Probe, case: Case) -> Finding:
        reason = unsteady(probe) if case.fails is shift_fails else None
        if reason:
            return self.finding("cannot tell", reason)
        try:
            result = self.run(probe, case)
        except CannotTell as why:
            return self.finding("cannot tell", str(why))
        found = self.on_failure(probe, case, result) if result[0] else None
        return found or self.finding("pass", result[1])
