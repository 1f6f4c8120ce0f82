"""What code attends to besides its own text: a row reads its own context, and no padding in it.

Axes: b batch, t time, s positions of the context, c width.

Which positions of the context an output reads, and whether their order matters, is somebody's
choice, and reported.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import SIZES, Probe, apart
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, amount, movement, replace_inputs
from attnlab.audit.subject.base import Vectors
from attnlab.audit.subject.convention import Context

CHANGES = {
    "finite": "",
    "neighbours": "the contexts of the other rows change",
    "alone": "the row runs alone",
    "order": "the rows are in another order",
    "empty": "a mask without padding is given",
    "content": "what stands in the context's padding changes",
    "large": "large numbers stand in the context's padding",
    "row": "the context of another row has padding",
    "added": "padding is added to the context",
}
ROWS, PADDED = tuple(CHANGES)[:4], tuple(CHANGES)[4:]
SHAPES = ((5, 7), (7, 5), (1, 6), (6, 1), (3, 23), (23, 3), (17, 33))  # of x and of the context


def fails(
    run_on: Tool,
    draw: Tool,
    draw_context: Tool,
    *,
    change: str,
    side: str,
    batch: int,
    length: int,
    context: int,
    kept: int,
    factor: float,
    seed: int,
    tolerance: float,
) -> Result:
    """A row moves with its own context only, and not with padding in it."""
    x = draw(batch, length, seed)
    given, other = (draw_context(batch, context, seed + more) for more in (50, 150))
    if given.is_floating_point():
        given, other = given * factor, other * factor
    nothing = torch.zeros(batch, context, dtype=torch.bool)
    real = slice(context - kept, context) if side == "left" else slice(0, kept)
    mask = nothing.clone()
    mask[0] = True
    mask[0, real] = False
    if change == "finite":
        numbers = torch.isfinite(run_on(x, given)).all(-1)
        off = torch.where(numbers, 0.0, torch.inf)
    elif change == "neighbours":
        off = movement(run_on(x, torch.cat((given[:1], other[1:])))[:1], run_on(x, given)[:1])
    elif change == "alone":
        off = movement(run_on(x[:1], given[:1]), run_on(x, given)[:1])
    elif change == "order":
        off = movement(run_on(x.flip(0), given.flip(0)).flip(0), run_on(x, given))
    elif change == "empty":
        off = movement(run_on(x, given, nothing), run_on(x, given))
    elif change == "row":
        off = movement(run_on(x, given, mask)[1:], run_on(x, given, nothing)[1:])
    elif change == "added":
        alone = run_on(x[:1], given[:1, real], nothing[:1, real])
        off = movement(run_on(x, given, mask)[:1], alone)
    else:
        content = 1e3 * other if change == "large" and other.is_floating_point() else other
        changed = torch.where(mask if given.dim() == 2 else mask[..., None], content, given)
        off = movement(run_on(x, changed, mask)[:1], run_on(x, given, mask)[:1])
    size, at = float(off.max()), int(off.amax(0).argmax())
    where = f"of {length}, with a context of {context}"
    if change == "finite":
        text = f"output {at} is not finite, {where}, which is ×{factor:g}"
        return size > 0, text if size > 0 else f"every output is finite, {where}", size
    text = f"a row's output {at} moves by {amount(size)} when {CHANGES[change]}, {where}"
    text += f" (padding on the {side})" if change in ("content", "large", "row", "added") else ""
    return not size <= tolerance, text, size


class ContextRows(Property):
    """Contexts of 1 to 33 positions, for shorter and longer texts: other rows change, a row alone,
    padding in the context.

    Needs: a parameter such as `memory` or `context`, or queries apart from keys and values.
    Fails: a row that moves with another's context, or with padding; a number that is not finite.
    """

    name = "context"

    def excuse(self, probe: Probe) -> Finding | None:
        if _context(probe) is None:
            return self.finding("not applicable", "it is given nothing but its own text")
        excuse = super().excuse(probe)
        if excuse is not None:
            return excuse
        shapes = self._shapes(probe)
        if not shapes:
            return self.finding("cannot tell", _refusal(probe, *SHAPES[0]))
        if not any(bool(_reads(probe, *shape).any()) for shape in shapes):
            why = "it is not read, or kept from an earlier call"
            return self.finding("cannot tell", f"outputs do not move with {_names(probe)}: {why}")
        return None

    def cases(self, probe: Probe) -> Iterator[Case]:
        known = _context(probe)
        padded = known is not None and known.mask is not None
        for length, context in self._shapes(probe):
            sizes = {"batch": 3, "length": length, "context": context, "kept": context // 2 + 1}
            for factor in SIZES:
                how = {"change": "finite", "side": "right", "factor": factor}
                yield self.case(probe, fails, **sizes, **how)
            for change in ROWS[1:]:
                yield self.case(probe, fails, **sizes, change=change, side="right", factor=1.0)
            if not padded or context < 2:
                continue
            for side in ("right", "left"):
                for change in PADDED:
                    # a context that begins later may stand elsewhere; and where only a part of it
                    # is read (as causally, from its end), which part depends on its length
                    if change == "added" and not bool(_reads(probe, length, context).all()):
                        continue
                    if side == "right" or change in ("content", "large"):
                        yield self.case(probe, fails, **sizes, change=change, side=side, factor=1.0)

    def _shapes(self, probe: Probe) -> list[tuple[int, int]]:
        """Those that the code takes."""
        return [shape for shape in SHAPES if not _refusal(probe, *shape)]

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        context = _context(probe)
        hidden = context is not None and context.mask is not None
        shapes = self._shapes(probe)
        detail = f"rows attend to their own {_names(probe)}, {len(shapes)} shapes"
        detail += ", and never to padding in it" if hidden else "; it takes no mask for its padding"
        reads = _reads(probe, *shapes[0])
        fewest = int(reads.sum(1).min())
        detail += f"; an output attends to {'all' if fewest == reads.shape[1] else fewest} of "
        detail += f"{reads.shape[1]} positions, their order {_order(probe)}"
        refused = [(shape, _refusal(probe, *shape)) for shape in SHAPES if shape not in shapes]
        for (length, positions), why in refused[:1]:
            detail += f"; it refuses a text of {length} with a context of {positions} ({why})"
        return self.finding("pass", detail)


def _context(probe: Probe) -> Context | None:
    return probe.subject.convention.context if isinstance(probe.subject, Vectors) else None


def _names(probe: Probe) -> str:
    context = _context(probe)
    return " and ".join(context.names if context else ())


def _run(probe: Probe, x: Tensor, context: Tensor) -> Tensor:
    assert isinstance(probe.subject, Vectors)
    return probe.subject.run_on(x, context)


def _draw(probe: Probe, batch: int, length: int, seed: int) -> Tensor:
    assert isinstance(probe.subject, Vectors)
    return probe.subject.draw_context(batch, length, seed)


def _refusal(probe: Probe, length: int, context: int) -> str:
    try:
        _run(probe, probe.draw(2, length), _draw(probe, 2, context, 1))
    except SubjectError as error:
        return error.reason[:120]
    return ""


def _reads(probe: Probe, length: int, context: int) -> Tensor:
    """Which output moves with which position of the context, [t, s]."""
    x, given, other = probe.draw(1, length), *(_draw(probe, 1, context, seed) for seed in (1, 2))
    before, found = _run(probe, x, given), torch.zeros(length, context, dtype=torch.bool)
    for at in range(context):
        changed = replace_inputs(given, other, at, at)
        found[:, at] = movement(_run(probe, x, changed), before)[0] > probe.tolerance
    return found


def _order(probe: Probe) -> str:
    x, given = probe.draw(1, 5), _draw(probe, 1, 7, 1)
    off = apart(_run(probe, x, given.flip(1)), _run(probe, x, given))
    return "matters" if off > probe.tolerance else "does not matter"
