"""What the heads do: which keys each reads, how scores are scaled, and what the weights add up to.

Axes: b batch, h query heads, g key/value heads, t time, d head width; query i, key j.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.identify import (
    SEEN_LENGTH,
    Applied,
    attend,
    differ,
    draw_qkv,
    floor_of,
    forms_of,
    linear_in_values,
    observe,
    scale_of_function,
    scale_seen,
    weights_of,
)
from attnlab.audit.probe.probe import SAFETY, Probe, replaced
from attnlab.audit.properties.property import Property, unsteady
from attnlab.audit.subject.base import Attention

# query and key/value heads: ratios 2, 4 and 7; 6 : 3 because `head // kv_heads` is right at 4 : 2
SHAPES = ((4, 2), (6, 3), (8, 2), (14, 2), (7, 1))
HALF = 2**-8  # what a sum of weights in a half precision is off by
UNSEEN = "queries and keys are compared where it cannot be seen"


@dataclass(frozen=True)
class Heads(Property):
    """A query head reads one key/value head, its neighbours the same, and its own query."""

    name = "heads"
    field = "kv_heads"

    def examine(self, probe: Probe) -> Finding:
        declared = self.declared(probe)
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason, declared=declared)
        if isinstance(probe.subject, Attention):
            return self._of_function(probe, probe.subject)
        return self._of_module(probe)

    def _of_function(self, probe: Probe, subject: Attention) -> Finding:
        assert subject.heads is not None and subject.kv_heads is not None
        declared = self.declared(probe)
        own = (subject.heads, subject.kv_heads)
        fixed = own[0] != own[1] or _has_weights(probe)
        tried: list[str] = []
        measured: list[int] = []
        count = probe.contract.heads or own[0]
        asked = (count, declared or count)
        if fixed and (probe.contract.heads not in (None, own[0]) or declared not in (None, own[1])):
            detail = (
                f"it was called with {own[0]} heads and {own[1]} key/value heads, not as declared"
            )
            return self.finding("cannot tell", detail, declared=declared)
        for heads, kv_heads in (own,) if fixed else dict.fromkeys((asked, own, *SHAPES)):
            variant = subject if (heads, kv_heads) == own else subject.shaped(heads, kv_heads)
            try:
                found = reading(variant, probe)
            except SubjectError as error:
                if (heads, kv_heads) == own:
                    raise
                if (heads, kv_heads) == asked:
                    said = error.reason[:100]
                    detail = f"{heads} heads and {kv_heads} key/value heads are refused ({said})"
                    return self.finding("fail", detail, declared=declared)
                continue  # it says that it takes no such heads
            if found is None:
                continue
            wrong = found.complaint(talking=_has_weights(probe))
            if wrong:
                detail = f"with {heads} heads and {kv_heads} key/value heads {wrong}"
                example = {"heads": heads, "kv_heads": kv_heads, "length": found.length}
                return self.finding(
                    "fail", detail, measured=found.map, declared=declared, example=example
                )
            if not measured or kv_heads not in (1, heads):
                measured = found.map
            tried.append(f"{heads}:{kv_heads}")
        if not tried:
            detail = "it gives another number of heads than that of its queries"
            return self.finding("cannot tell", detail, declared=declared)
        shared = len(tried) > 1 or own[0] != own[1]
        detail = "each query head depends on its own query and on one key/value head"
        detail += f" (heads {', '.join(tried)}); neighbours share" if shared else f" ({tried[0]})"
        return self.finding("pass", detail, measured=measured, declared=declared)

    def _of_module(self, probe: Probe) -> Finding:
        declared = self.declared(probe)
        x = probe.draw(2, SEEN_LENGTH)
        seen = observe(probe, x)
        wrong = scrambled(probe, x, seen) or bends_with_length(probe)
        if wrong:
            return self.finding("fail", wrong, declared=declared, example={"length": SEEN_LENGTH})
        alone = "which inputs move an output does not depend on the length"
        if not seen and not sighted(probe):
            detail = f"nothing moves by more than {probe.tolerance:.1g}, which rounding explains"
            return self.finding("cannot tell", detail, declared=declared)
        if not seen:
            if declared is not None or probe.contract.heads is not None:
                return self.finding("cannot tell", UNSEEN, declared=declared)
            return self.finding("pass", f"{alone}; the heads themselves are out of sight")
        for one in seen:
            if not one.k.any():  # a gate at 0: all heads would look alike
                continue
            keys, values = groups(one.k), groups(one.v)
            count, heads = len(set(keys)), len(keys)
            # heads of a module have no order but their own, unless weights of others are loaded
            tiled = keys == [head % count for head in range(heads)]
            wrong = ""
            if keys != values and len(set(values)) > 1:  # latent attention shares only one of them
                if count > 1:
                    wrong = f"heads share keys as {keys} and values as {values}"
            elif count > 1 and keys != _repeated(heads, count) and not (tiled and declared is None):
                wrong = f"query heads read key/value heads {keys}, {_named(keys, count)}"
            wanted = declared if declared is not None else self._made_for(probe, count)
            if count != wanted and not wrong:
                wrong = f"{count} different key/value heads are read, and there must be {wanted}"
            if probe.contract.heads not in (None, heads) and not wrong:
                wrong = f"there are {heads} heads, and {probe.contract.heads} are declared"
            if wrong:
                example = {"length": SEEN_LENGTH, "map": keys, "wanted": wanted}
                return self.finding(
                    "fail", wrong, measured=keys, declared=declared, example=example
                )
        keys = groups(seen[0].k)
        count = len(set(keys))
        detail = f"{len(keys)} heads read {count} key/value heads: {keys}; {alone}"
        if keys != _repeated(len(keys), count):
            detail += f"; mind that heads are {_named(keys, count)}: declare kv_heads to have it so"
        return self.finding("pass", detail, measured=keys, declared=declared)

    def _made_for(self, probe: Probe, count: int) -> int:
        """As many as the code says of itself; of many layers each may have its own number."""
        subject = probe.subject
        return subject.kv_heads if subject.layers == 1 and subject.kv_heads else count


def _has_weights(probe: Probe) -> bool:
    module = probe.subject.module
    return module is not None and any(True for _ in module.parameters())


@dataclass(frozen=True)
class Reading:
    """Of each query head: the key/value heads that move it, and where its queries show up."""

    by_key: list[list[int]]
    by_value: list[list[int]]
    stray: tuple[int, int, int, int] | None  # head and token of a query, of an output it moves
    idle: int | None  # a head whose queries move nothing
    length: int
    kv_heads: int

    @property
    def map(self) -> list[int]:
        return [read[0] if len(read) == 1 else -1 for read in self.by_value]

    def complaint(self, talking: bool) -> str:
        """What is wrong; code with weights of its own may mix heads on purpose."""
        heads, kv_heads = len(self.map), self.kv_heads
        if self.stray:
            head, token, other, at = self.stray
            return f"the query of head {head} at {token} moves the output of head {other} at {at}"
        everything = all(len(read) > 1 and read == self.by_value[0] for read in self.by_value)
        if everything and talking:
            return ""
        for what, reads in (("values", self.by_value), ("keys", self.by_key)):
            for head, read in enumerate(reads):
                if len(read) != 1:
                    return f"query head {head} reads the {what} of heads {read}, not of one"
        if self.by_key != self.by_value:
            return f"heads read keys as {self.by_key} and values as {self.by_value}"
        if self.map != _repeated(heads, kv_heads):
            return f"query heads read key/value heads {self.map}, {_named(self.map, kv_heads)}"
        if self.idle is not None:
            return f"the output of head {self.idle} does not depend on its queries"
        return ""


def reading(subject: Attention, probe: Probe) -> Reading | None:
    """By replacing one query, or all keys or values of a head; None for a shape not kept."""
    length = 5
    q, k, v = draw_qkv(subject, 1, length, 1)
    other = draw_qkv(subject, 1, length, 2)
    before = attend(subject, q, k, v)
    if before.shape[1] != q.shape[1]:
        return None
    tolerance = Probe(subject, probe.contract, probe.seed).tolerance

    def moved(part: int, at: tuple[Any, ...]) -> Tensor:
        given = [q.clone(), k.clone(), v.clone()]
        given[part][at] = other[part][at]
        change = attend(subject, *given) - before
        return torch.nan_to_num(change.abs().amax(-1)[0], nan=torch.inf) > tolerance

    heads, kv_heads = q.shape[1], k.shape[1]
    stray, idle = None, None
    for head in range(heads):
        own = False
        for token in range(length):
            places = moved(0, (0, head, token)).nonzero().tolist()
            own |= [head, token] in places
            # another place, and another head: neither other queries that take part in a
            # summary of the text, nor heads that talk to each other
            wrong = [(a, i) for a, i in places if a != head and i != token]
            if wrong and stray is None:
                stray = (head, token, *wrong[0])
        idle = head if not own and idle is None else idle
    reads = []
    for part in (1, 2):
        found = torch.stack([moved(part, (0, n)).any(-1) for n in range(kv_heads)])
        reads.append([found[:, head].nonzero().flatten().tolist() for head in range(heads)])
    return Reading(reads[0], reads[1], stray, idle, length, kv_heads)


def _repeated(heads: int, kv_heads: int) -> list[int]:
    if kv_heads < 1 or heads % kv_heads:
        return []
    return [head // (heads // kv_heads) for head in range(heads)]


def _named(found: list[int], kv_heads: int) -> str:
    heads = len(found)
    wanted = _repeated(heads, kv_heads)
    if found == [head % kv_heads for head in range(heads)]:
        return f"tiled; neighbours share one, as in {wanted}"
    if len({found.count(n) for n in found}) > 1:
        return f"not equally many each, as in {wanted}"
    return f"and neighbours share one, as in {wanted}" if wanted else "in no even groups"


def groups(parts: Tensor) -> list[int]:
    """Heads [b, h, t, d] numbered so that equal ones have the same number."""
    known: list[Tensor] = []
    numbers = []
    for head in parts.unbind(1):
        same = [n for n, one in enumerate(known) if torch.equal(one, head)]
        if not same:
            known.append(head)
        numbers.append(same[0] if same else len(known) - 1)
    return numbers


def scrambled(probe: Probe, x: Tensor, seen: list[Applied]) -> str:
    """Whether an input ends up elsewhere in time in some heads: heads cut across tokens."""
    if not seen:
        return ""
    for at in (1, 4):
        other = probe.draw(2, SEEN_LENGTH, 8)
        changed = observe(probe, replaced(x, other, slice(at, at + 1)))
        if not changed:
            return ""
        for what in ("q", "k", "v"):
            one, two = getattr(seen[0], what), getattr(changed[0], what)
            moved = differ(one, two).any(0)  # [h, t]
            # some code gives a head the token before instead of its own
            lost = ~moved[:, at : at + 3].any(1)
            if moved.any() and lost.all() and bool((moved == moved[:1]).all()):
                lands = moved.any(0).nonzero().flatten().tolist()
                return (
                    f"the {what} of input {at} is not at {at} in any head; it lies at {lands}: "
                    "inputs change their place before they are compared"
                )
            if moved.any() and lost.any():
                head = int(lost.nonzero()[0])
                lands = moved.any(0).nonzero().flatten().tolist()
                return (
                    f"the {what} of input {at} is not at {at} in head {head}; it lies at "
                    f"{lands} of some heads: heads and time are mixed, as by a reshape "
                    "without a transpose"
                )
    return ""


def sighted(probe: Probe) -> bool:
    """Whether inputs move outputs by more than rounding does, so that sight can be told."""
    return bool((probe.influence(3) > probe.tolerance).any())


def bends_with_length(probe: Probe) -> str:
    """Whether who moves whom depends on the length: heads laid across tokens do that.

    Sight that depends on what the inputs are (routing) is left alone.
    """
    short, long = 6, 11

    def seen(length: int, seed: int) -> Tensor:
        return (probe.influence(length, seed) > probe.tolerance)[:short, :short]

    found = [seen(length, 0) for length in (short, long)]
    differ = (found[0] != found[1]).nonzero().tolist()
    if not differ:
        return ""
    if not all(torch.equal(seen(n, 1), one) for n, one in zip((short, long), found, strict=True)):
        return ""
    i, j = differ[0]
    which = (
        f"at length {short} but not at {long}" if found[0][i, j] else f"at {long} but not {short}"
    )
    return (
        f"input {j} moves output {i} {which}: who is seen depends on the length of the text, as "
        "where heads are laid across tokens or a shift goes round its end"
    )


@dataclass(frozen=True)
class Scale(Property):
    """The factor on the product of query and key, 1/√(head width) in most code.

    Other factors are somebody's choice and only reported; 1/√(heads · head width) is nobody's: it
    comes of taking the model's width for the head's, and fails unless a setting asks for it.
    """

    name = "scale"
    field = "scale"

    def examine(self, probe: Probe) -> Finding:
        declared = self.declared(probe)
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason, declared=declared)
        if isinstance(probe.subject, Attention):
            subject = probe.subject
            assert subject.heads is not None
            found: float | str = scale_of_function(subject)
            width, heads = subject.head_width, subject.heads
        else:
            seen = observe(probe, probe.draw(2, SEEN_LENGTH))
            if not seen:
                return self.finding("cannot tell", UNSEEN, declared=declared)
            found = scale_seen(seen[0], floor_of(probe.subject))
            heads, width = seen[0].q.shape[1], seen[0].q.shape[3]
        if isinstance(found, str):
            return self.finding("cannot tell", found, declared=declared)
        # heads may be modules of their own, of which one is seen at a time
        name = _factor(found, max(heads, probe.subject.heads or 1), width)
        detail = f"scores are {found:.4g} times query · key: {name} (head width {width})"
        near = 1e-3 * abs(found)
        if declared is not None:
            wrong = abs(found - declared) > near
            if wrong:
                detail += f", and {declared:.4g} is declared"
        else:
            wrong = name == _MODEL and not _asked_for(probe, found)
            if wrong:
                detail += "; heads are compared over the head width: declare scale=… if it is meant"
        example = {"scale": found, "wanted": declared} if wrong else None
        verdict = "fail" if wrong else "pass"
        return self.finding(verdict, detail, measured=found, declared=declared, example=example)  # type: ignore[arg-type]


_MODEL = "1/√(heads · head width)"


def _factor(found: float, heads: int, width: int) -> str:
    known = {
        "1/√(head width)": width**-0.5,
        _MODEL: (heads * width) ** -0.5,
        "1/(head width)": 1 / width,
        "1": 1.0,
        "√(head width)": width**0.5,
    }
    near = (name for name, value in known.items() if abs(found / value - 1) < 1e-3)
    return next(near, "a factor of its own")


def _asked_for(probe: Probe, found: float) -> bool:
    """Whether a setting has this number, as it is or under a root: then it is a choice."""
    module = probe.subject.module
    for one in [] if module is None else module.modules():
        for holder in (getattr(one, "config", None), getattr(one, "settings", None)):
            for name, value in getattr(holder, "__dict__", {}).items():
                number = type(value) in (int, float) and value > 0
                if number and any(part in name for part in ("scal", "multiplier", "temperature")):
                    factors = (value, 1 / value, value**0.5, value**-0.5)
                    if any(abs(found / factor - 1) < 1e-3 for factor in factors):
                        return True
    return False


@dataclass(frozen=True)
class Weights(Property):
    """Weights add up to 1 over the keys, and are exactly 0 where nothing may be seen.

    Other sums have their uses (a sink, no softmax at all) and are reported; a sum of 1 over
    anything but the keys is a softmax over the wrong axis.
    """

    name = "weights"

    def examine(self, probe: Probe) -> Finding:
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason)
        subject = probe.subject
        if isinstance(subject, Attention):
            if not linear_in_values(subject, probe.tolerance):
                return self.finding("cannot tell", "outputs are no weighted sums of the values")
            q, k, _ = draw_qkv(subject, 2, 23, 1)
            seen = [weights_of(subject, q, k)]
        else:
            seen = [one.weights.double() for one in observe(probe, probe.draw(2, SEEN_LENGTH))]
            if not seen:
                return self.finding("cannot tell", UNSEEN)
        for weights in seen:
            wrong = self._wrong(probe, weights)
            if wrong:
                example = {"length": weights.shape[-1], "future": "must not see" in wrong}
                return self.finding("fail", wrong, measured=_worst(weights), example=example)
        off = max((_worst(weights) for weights in seen), key=lambda sum_: abs(sum_ - 1))
        lowest = min(float(weights.min()) for weights in seen)
        if abs(off - 1) < HALF:
            detail = f"rows add up to 1 over the keys (worst {off:.9g})"
        elif all(float(weights.sum(-1).max()) < 1 + HALF for weights in seen) and lowest >= 0:
            detail = f"rows add up to less than 1 (down to {off:.4g}), as beside a sink"
        else:
            detail = f"rows add up to other than 1 ({off:.4g}), as without a softmax"
        if lowest < -HALF:
            detail += f"; there are weights below 0, down to {lowest:.3g}"
        return self.finding("pass", detail, measured=off)

    def _wrong(self, probe: Probe, weights: Tensor) -> str:
        if not weights.isfinite().all():
            return "there are weights that are no finite numbers"
        future = weights.triu(1).abs()
        if probe.contract.causal and float(future.max()) > SAFETY * _eps(probe):
            _, head, i, j = (future == future.max()).nonzero()[0].tolist()
            return (
                f"query {i} of head {head} gives {float(future.max()):.2g} to key {j}, which it "
                "must not see: a weight that is masked is exactly 0"
            )
        sums = weights.sum(-1)
        if float((sums - 1).abs().max()) < HALF:
            return ""
        shown = weights != 0
        for what, axis in (("queries", -2), ("heads", 1), ("rows of the batch", 0)):
            total = weights.sum(axis)[shown.any(axis)]
            many = weights.shape[axis] > 1 and total.numel() > 0
            if many and float((total - 1).abs().max()) < HALF:
                return f"weights add up to 1 over the {what}, not over the keys"
        worst = _worst(weights)
        if float(sums.max() - sums.min()) < HALF and float(weights.min()) >= 0:
            return f"rows add up to {worst:.4g} everywhere: something multiplies them after softmax"
        subject = probe.subject
        if isinstance(subject, Attention) and not _sunk(subject) and forms_of(subject) is not None:
            return f"weights are exponentials of scores, but rows add up to {worst:.4g}"
        return ""


def _worst(weights: Tensor) -> float:
    sums = weights.sum(-1).flatten()
    return float(sums[(sums - 1).abs().argmax()])


def _eps(probe: Probe) -> float:
    return float(torch.finfo(probe.subject.dtype).eps)


def _sunk(subject: Attention) -> bool:
    """Whether what is missing from 1 goes to a key of constant score: a sink.

    With a first key of 0, what is missing is the same multiple of its weight in any text.
    """
    q, k, _ = draw_qkv(subject, 2, SEEN_LENGTH, 6)
    k = k.clone()
    k[:, :, 0] = 0
    weights = weights_of(subject, q, k)
    missing = (1 - weights.sum(-1)) / weights[..., 0]
    off = (missing[0] - missing[1]).abs() / missing.abs().amax(0)
    off = off[off.isfinite()]
    return bool(off.numel()) and float(off.max()) < 100 * floor_of(subject)
