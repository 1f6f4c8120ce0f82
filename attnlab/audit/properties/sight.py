"""Who sees whom: causality, and the width of a window."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.audit.contract import Finding
from attnlab.audit.probe.probe import LENGTHS, SIZES, Probe, movement, replaced, sized
from attnlab.audit.properties.property import Moved, Property, unsteady

LONGEST = 100  # of the texts in which a window is looked for


@dataclass(frozen=True)
class Causality(Property):
    """Changing the inputs from j on must leave the outputs before j as they were."""

    name = "causality"
    field = "causal"

    def tolerance(self, probe: Probe) -> float:
        return probe.fine

    def examine(self, probe: Probe) -> Finding:
        declared = self.declared(probe)
        if declared is False:
            return self.finding("not applicable", "declared to see both ways", declared=False)
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason, declared=declared)
        leak = first_leak(probe)
        if leak is None:
            cases = f"lengths {', '.join(map(str, LENGTHS))}"
            if probe.subject.continuous:
                cases += f", inputs up to ×{SIZES[-1]:g}"
            detail = f"no output before a change moved ({cases})"
            return self.finding("pass", detail, measured=True, declared=declared)
        text = (
            f"output {leak.output} moves by {leak.size:.2g} when inputs from "
            f"{leak.inputs[0]} on change, at length {leak.length}"
        )
        if declared is None and sees_both_ways(probe):
            detail = f"sees both ways: {text}; declare causal=true if it must not"
            return self.finding("pass", detail, measured=False)
        return self.finding("fail", text, measured=False, declared=declared, example=leak.plain())


def first_leak(probe: Probe) -> Moved | None:
    """The leak in the shortest text, if there is one."""
    for length in sorted({*LENGTHS, 3, 5}):
        for seed in range(2):
            for size in SIZES if probe.subject.continuous else SIZES[:1]:
                x = sized(probe.draw(2, length, seed), size)
                before = probe.run(x)
                for cut in cuts(length):
                    other = probe.draw(2, length, seed + 5)
                    moved = probe.run(replaced(x, other, slice(cut, None), size))
                    change = movement(moved[:, :cut], before[:, :cut])
                    if float(change.max()) > probe.fine * size:
                        at = int(change.argmax())
                        return Moved(length, at, (cut, length - 1), float(change.max()))
    return None


def cuts(length: int) -> list[int]:
    """All places to change a short text from; of a long one those where blocks would end."""
    if length <= 23:
        return list(range(1, length))
    near = {1, 2, 3, length - 1, length - 2}
    return sorted(near | {p + d for p in (4, 8, 16, 32, 64) for d in (-1, 0, 1) if p + d < length})


def sees_both_ways(probe: Probe) -> bool:
    """Whether the reach is symmetric, as with two-way attention or a two-sided window."""
    seen = probe.influence(23) > probe.tolerance
    return bool((seen == seen.T).all())


@dataclass(frozen=True)
class Window(Property):
    """The inputs that move an output are the last so many, up to its own."""

    name = "window"
    field = "window"

    def examine(self, probe: Probe) -> Finding:
        declared = self.declared(probe)
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason, declared=declared)
        length = min(max(3 * (declared or 0) + 2, 23), LONGEST)
        seen = support(probe, length)
        counts, gap = keys_seen(seen), first_gap(seen)
        widest = int(counts.max())
        if declared is None:
            if gap is not None:
                detail = (
                    f"no window: inputs up to {max(widest - 1, 0)} before an output move it, but "
                    f"not all of them; input {gap[1]} does not move output {gap[0]}"
                )
                return self.finding("pass", detail, measured=None)
            if widest >= length:
                detail = f"every earlier input is seen, up to {length} of them"
                return self.finding("pass", detail, measured=None)
            keys = "1 key, its own" if widest == 1 else f"{widest} keys, its own included"
            if bool(seen.triu(1).any()):
                detail = f"no window: besides later inputs a query sees {keys}"
                return self.finding("pass", detail, measured=None)
            return self.finding("pass", f"a query sees {keys}; " + named(widest), measured=widest)
        layers = probe.subject.layers
        wanted = declared if layers == 1 else layers * (declared - 1) + 1
        if wanted >= length:
            detail = f"a window of {declared} is no narrower than the {length} inputs tried"
            return self.finding("cannot tell", detail, declared=declared)
        expected = torch.arange(1, length + 1).clamp(max=wanted)
        wrong = (counts != expected).nonzero().flatten().tolist()
        if not wrong and gap is not None:
            detail = f"input {gap[1]} is in the window of output {gap[0]}, and does not move it"
            example = {"length": length, "output": gap[0], "keys": int(counts[gap[0]])}
            return self.finding("fail", detail, measured=None, declared=declared, example=example)
        if not wrong:
            detail = f"exactly the last {wanted} inputs move an output, at all {length} positions"
            return self.finding("pass", detail, measured=widest, declared=declared)
        at = wrong[0]
        detail = (
            f"output {at} is moved by {int(counts[at])} inputs up to its own, and a window of "
            f"{declared} shows {int(expected[at])}"
        )
        if widest == wanted + 1:
            detail += "; one key too many, as where a window of w means w before the query"
        example = {"length": length, "output": at, "keys": int(counts[at])}
        return self.finding("fail", detail, measured=widest, declared=declared, example=example)


def support(probe: Probe, length: int) -> Tensor:
    """Which inputs move which outputs, by any of two replacements or by gradient."""
    seen = probe.influence(length) > probe.tolerance
    slopes = probe.gradient(length)
    if slopes is not None:
        seen |= slopes > probe.tolerance
    return seen


def keys_seen(seen: Tensor) -> Tensor:
    """For each output: from the earliest input that moves it, up to its own."""
    places = torch.arange(len(seen))
    earliest = torch.where(seen, places, len(seen)).min(dim=1).values
    return (places - earliest + 1).clamp(min=0)


def first_gap(seen: Tensor) -> tuple[int, int] | None:
    """An output, and an input from the earliest that moves it to its own that does not."""
    places = torch.arange(len(seen))
    between = (places > places[:, None] - keys_seen(seen)[:, None]) & (places <= places[:, None])
    between |= torch.eye(len(seen), dtype=torch.bool)  # blind to all of them: to its own as well
    missing = (between & ~seen).nonzero().tolist()
    return (missing[0][0], missing[0][1]) if missing else None


def named(keys: int) -> str:
    return f"declared as window={keys} here and in Hugging Face, ({keys - 1}, 0) in FlashAttention"
