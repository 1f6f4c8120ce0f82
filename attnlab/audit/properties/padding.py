"""Padding masks: padding is never read, and a mask without padding is as good as none.

Axes: b batch, t time.

Row 0 has padding on one side, the others have none. Outputs at padding are nobody's business.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnlab.audit.contract import Finding, Verdict
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, amount, movement, positions_in
from attnlab.audit.subject.base import Vectors

EMPTY = "a mask without padding"
UNNAMED = (
    " that is known by its name, as `key_padding_mask`, `attention_mask` or `mask` are; rename it, "
    "or give a Subject with pads"
)
CHANGES = {
    "empty": "a mask without padding is given",
    "nan": "it has padding",
    "content": "what stands in the padding changes",
    "row": "another row has padding",
    "large": "large numbers stand in the padding",
    "added": "padding is added",
}


def fails(
    run: Tool,
    draw: Tool,
    *,
    change: str,
    side: str,
    placed: bool,
    batch: int,
    length: int,
    real: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Row 0 has so many real inputs, and padding on a side: its real outputs do not know of it."""
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    nothing = torch.zeros(batch, length, dtype=torch.bool)
    kept = slice(length - real, length) if side == "left" else slice(0, real)
    mask = nothing.clone()
    mask[0] = True
    mask[0, kept] = False

    def run_masked(text: Tensor, padding: Tensor) -> Tensor:
        """With positions from 0 on, where they can be told: by itself it may begin elsewhere."""
        return run(text, padding, positions_in(padding) if placed else None)

    if change == "empty":
        off = movement(run(x, nothing), run(x))
    elif change == "row":
        off = movement(run_masked(x, mask)[1:], run_masked(x, nothing)[1:])
    elif change == "added":
        off = movement(run_masked(x, mask)[:1, kept], run_masked(x[:1, kept], nothing[:1, kept]))
    elif change == "nan":
        lost, numbers = (
            run_masked(x, mask)[:1, kept].isnan().any(-1),
            not bool(run(x).isnan().any()),
        )
        off = torch.where(lost & numbers, torch.inf, 0.0)
    else:
        # not NaN: a weight of 0 times NaN is NaN in plain PyTorch, and nobody's mistake
        if change == "large" and x.is_floating_point():  # large scores beat a mask of −10⁴
            x, content, tolerance = 1e3 * x, 1e3 * other, 1e3 * tolerance
        else:
            content = other
        changed = torch.where(mask if x.dim() == 2 else mask[..., None], content, x)
        off = movement(run_masked(changed, mask)[:1, kept], run_masked(x, mask)[:1, kept])
    size, at = float(off.max()), int(off.amax(0).argmax())
    text = f"real output {at} moves by {amount(size)} when {CHANGES[change]}"
    text += "" if change == "empty" else f" (padding on the {side})"
    return not size <= tolerance, text, size


class Padding(Property):
    """What stands in padding is changed, also to × 1,000; no mask against an empty one; with
    against without.

    Needs: a padding mask.
    Fails: a real position that moves, or is no number. A mask without padding, padding on the right
      and on the left are findings of their own, the last where the right side passes the same.
    """

    name = "padding"
    field = "padding"

    def excuse(self, probe: Probe) -> Finding | None:
        if not probe.subject.pads:
            told = bool(self.declared(probe))
            verdict: Verdict = "cannot tell" if told else "not applicable"
            mask = probe.subject.convention.mask if isinstance(probe.subject, Vectors) else None
            if mask is not None and mask.unequal:
                detail = f"in no usual form is a `{mask.name}` that hides nothing as good as none"
                more = "; declare padding=true if it is for padding"
                return self.finding("cannot tell", detail + more)
            return self.finding(verdict, "it takes no mask for padding" + UNNAMED * told)
        return super().excuse(probe)

    def cases(self, probe: Probe) -> Iterator[Case]:
        block = probe.subject.block
        # whole blocks, as what fills one up would be read
        length, real = (2 * block, 3 * block // 2) if block > 1 else (13, 8)
        sizes = {"batch": 3, "length": length, "real": real, "placed": probe.subject.placed}
        yield self.case(probe, fails, EMPTY, change="empty", side="right", **sizes)
        for side in probe.subject.sides:
            changes = ["nan", "content", "row"]
            changes += ["large"] if probe.subject.continuous else []
            changes += ["added"] if self._comparable(probe, side) else []
            for change in changes:
                aspect, alike = f"padding on the {side}", change != "added"
                yield self.case(probe, fails, aspect, alike, change=change, side=side, **sizes)
        for length in (40, 127) if block == 1 and "right" in probe.subject.sides else ():
            long = {**sizes, "batch": 2, "length": length, "real": length - 5}
            aspect = "padding on the right"
            yield self.case(probe, fails, aspect, True, change="content", side="right", **long)

    def distinct(self, probe: Probe, found: Finding, before: Sequence[Finding]) -> bool:
        """Padding on the other side is another failure where the first side passes the same."""
        sides = [one.example for one in before if one.aspect != EMPTY]
        change = found.example.sizes["change"]
        again = (replace(one, sizes={**one.sizes, "change": change}) for one in sides)
        return not any(self.run(probe, one)[0] for one in again)

    def _comparable(self, probe: Probe, side: str) -> bool:
        """Whether positions are the same with padding and without: on the left they move."""
        if probe.subject.block > 1:  # without padding it is no whole number of blocks
            return False
        known = probe.contract.positions in ("none", "relative", "rotary", "alibi")
        # on the left are texts to be continued; bidirectional code has none
        continued = bool(self.declared(probe)) and probe.contract.causal is not False
        return side == "right" or probe.subject.placed or known or continued

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        detail = "padding is never read, and none is as good as no mask"
        mask = probe.subject.convention.mask if isinstance(probe.subject, Vectors) else None
        if mask is not None:
            detail += f" (`{mask.name}` given as {mask.form.text})"
        return self.finding("pass", detail)
