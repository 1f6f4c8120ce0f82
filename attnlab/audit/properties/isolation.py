"""Isolation: a row depends on nothing but itself, neither its neighbours nor its padding."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.contract import Finding, Verdict
from attnlab.audit.probe.probe import Probe, apart
from attnlab.audit.properties.property import Property, unsteady
from attnlab.audit.subject.base import Subject


@dataclass(frozen=True)
class Batch(Property):
    name = "batch"

    def examine(self, probe: Probe) -> Finding:
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason)
        for length in (2, 7, 23):
            x = probe.draw(3, length)
            together = probe.run(x)
            others = x.clone()
            others[1:] = probe.draw(3, length, 4)[1:]
            found = {
                "its neighbours change": apart(probe.run(others)[:1], together[:1]),
                "it runs alone": apart(probe.run(x[:1]), together[:1]),
                "the rows are in another order": apart(probe.run(x.flip(0)).flip(0), together),
            }
            for what, off in found.items():
                if off > probe.tolerance:
                    detail = f"at length {length} a row moves by {off:.2g} when {what}"
                    example = {"length": length, "what": what, "size": off}
                    return self.finding("fail", detail, measured=off, example=example)
        return self.finding("pass", "rows are the same alone, with others and in any order")


@dataclass(frozen=True)
class Padding(Property):
    name = "padding"
    field = "padding"

    def examine(self, probe: Probe) -> Finding:
        declared = self.declared(probe)
        if not probe.subject.pads:
            verdict: Verdict = "cannot tell" if declared else "not applicable"
            return self.finding(verdict, "it takes no mask for padding", declared=declared)
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason, declared=declared)
        for what, off in self._differences(probe).items():
            if not off <= probe.tolerance:
                detail = f"outputs at real positions move by {off:.2g}: {what}"
                example = {"what": what, "size": off if off < float("inf") else None}
                return self.finding(
                    "fail", detail, measured=off, declared=declared, example=example
                )
        return self.finding("pass", "padding is never read, and none is as good as no mask")

    def _differences(self, probe: Probe) -> dict[str, float]:
        length, real = lengths_of(probe.subject)
        x, other = probe.draw(3, length), probe.draw(3, length, 6)
        nothing = torch.zeros(3, length, dtype=torch.bool)
        none = apart(probe.run(x, padding=nothing), probe.run(x))
        found = {"a mask without padding is not as good as none": none}
        # told from 0 on, here as with padding: what a model takes by itself may begin elsewhere
        whole = probe.run(x, **_told(probe, x))
        places = {"right": slice(0, real), "left": slice(length - real, None)}
        for side, kept in ((side, places[side]) for side in probe.subject.sides):
            padding = nothing.clone()
            padding[0] = True  # one row is shorter than the others
            padding[0, kept] = False
            how: dict[str, Any] = {"padding": padding}
            if probe.subject.placed:
                how["positions"] = (~padding).cumsum(1).sub(1).clamp(min=0)
            padded = probe.run(x, **how)
            lost = float("inf") if padded[:1, kept].isnan().any() > whole.isnan().any() else 0.0
            found[f"padding on the {side} makes them no numbers"] = lost
            elsewhere = torch.where(_fit(padding, x), other, x)
            moved = apart(probe.run(elsewhere, **how)[:1, kept], padded[:1, kept])
            found[f"what stands in padding on the {side} changed"] = moved
            rows = apart(padded[1:], whole[1:])
            found[f"padding on the {side} of another row moved them"] = rows
            if probe.subject.continuous:
                # not a NaN: a weight of 0 times NaN is NaN in plain PyTorch, and nobody's mistake
                large = torch.where(_fit(padding, x), 1e3 * other, x)
                read = apart(probe.run(large, **how)[:1, kept], padded[:1, kept])
                found[f"large numbers in padding on the {side} are read"] = read
            if self._comparable(probe, side):
                alone = probe.run(x[:1, kept], **_told(probe, x[:1, kept]))
                short = apart(padded[:1, kept], alone)
                found[f"the text padded on the {side} is not that without padding"] = short
        return found

    def _comparable(self, probe: Probe, side: str) -> bool:
        """Whether positions are the same with padding and without: on the left they move."""
        if probe.subject.block > 1:  # without padding it is no whole number of blocks
            return False
        known = probe.contract.positions in ("none", "relative", "rotary", "alibi")
        # on the left are texts to be continued; what sees both ways has none
        continued = bool(self.declared(probe)) and probe.contract.causal is not False
        return side == "right" or probe.subject.placed or known or continued


def lengths_of(subject: Subject) -> tuple[int, int]:
    """Of a text with padding: whole blocks, as what fills one up would be seen; and without."""
    block = subject.block
    return (2 * block, 3 * block // 2) if block > 1 else (13, 8)


def _told(probe: Probe, x: Tensor) -> dict[str, Any]:
    """Positions from 0 on, for code that takes them."""
    places = torch.arange(x.shape[1]).expand(x.shape[0], -1)
    return {"positions": places} if probe.subject.placed else {}


def _fit(padding: Tensor, x: Tensor) -> Tensor:
    return padding[..., None] if x.dim() == 3 else padding
