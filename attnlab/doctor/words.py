"""The answer of the doctor in words."""

from collections.abc import Iterable, Iterator

from attnlab.doctor.case import EQUAL, Change
from attnlab.doctor.diagnosis import Diagnosis

ROUNDING = 1e-5  # below, something may only compute in float32


def sentences(found: Diagnosis) -> Iterator[str]:
    """The verdict first."""
    if found.equal and found.rounded:
        yield f"equal{_given(found)}, but for float32 rounding of {_names(found.rounding)}"
        yield from _has(found.rounding)
        after = f"without the rounding by {found.error_after:.1e}"
        yield f"{_distance(found)}; {after} ({inputs(found)})"
    elif found.equal:
        yield (
            f"equal{_given(found)}: {inputs(found)} give the same outputs "
            f"(float64, within {EQUAL:.0e}; measured {found.error_before:.1e})"
        )
    elif found.sets:
        yield from _explained(found)
    elif found.error_before <= EQUAL:
        side = found.broken
        yield f"different, but only with padding on the left: {side} gives no numbers for it"
        yield f"without padding the outputs are the same ({inputs(found)})"
    else:
        yield "different, and none of the known causes explains it"
        yield f"{_distance(found)} ({inputs(found)}); {found.tried} hypotheses were tried"
        if found.error_before < ROUNDING:
            yield "so small a difference may be rounding: a part of one side in float32"
        if not found.complete:
            yield "not all sets of causes were tried: there are too many"
    yield from _weights(found)
    yield from _places(found)


def _weights(found: Diagnosis) -> Iterator[str]:
    """What B was compared with, in place of its own."""
    own = found.own
    if own is None:
        return
    if not own.replaced:
        yield "no weights of B were replaced: none has a partner in A"
    elif not own.differ:
        yield f"B's own weights were replaced by A's, which are the same ({own.replaced} tensors)"
    else:
        far = f"differ by {own.error:.2g} of the largest" if own.error > EQUAL else "are the same"
        yield (
            f"B's own weights were replaced by A's: {own.differ} of {own.replaced} tensors differ, "
            f"and with its own the outputs {far}"
        )


def _given(found: Diagnosis) -> str:
    return " with the weights of A in both" if found.own and found.own.differ else ""


def inputs(found: Diagnosis) -> str:
    """What was compared."""
    lengths = ", ".join(map(str, found.lengths))
    return f"texts of {lengths}{' and padding on the left' if found.padded else ''}"


def _names(changes: Iterable[Change]) -> str:
    return " and ".join(one.cause for one in changes)


def _has(changes: Iterable[Change]) -> Iterator[str]:
    for one in changes:
        yield f"  {one.cause}: A has {one.a}; B has {one.b}"


def _distance(found: Diagnosis) -> str:
    if found.nan:
        return f"{found.nan} gives NaN where {'B' if found.nan == 'A' else 'A'} gives numbers"
    return f"the outputs differ by {found.error_before:.2g} of the largest"


def _explained(found: Diagnosis) -> Iterator[str]:
    yield f"different: {_names(found.causes)}"
    yield from _has(found.causes)
    if found.rounding:
        yield f"the same but for float32 rounding, which was undone too: {_names(found.rounding)}"
        yield from _has(found.rounding)
    yield f"{_distance(found)}; without it by {found.error_after:.1e} ({inputs(found)})"
    for others in found.sets[1:]:
        listed = " and ".join(f"{one.cause} ({one.a}; {one.b})" for one in others)
        yield f"cannot tell this from {listed}: it makes them equal as well"
    for one in found.causes:
        if one.setting:
            yield (
                f"no weights make up for {one.cause}: change {one.setting}, "
                f"in A to “{one.b}”, or in B to “{one.a}”"
            )


def _places(found: Diagnosis) -> Iterator[str]:
    beside = found.error_before > EQUAL or len(found.broken) == 2
    if found.broken and beside:
        names = " and ".join(found.broken)
        yield f"padding on the left is not compared: {names} gives no numbers for it"
    if found.parting.first is not None:
        yield f"the first place where they part: {found.parting.first}"
    if len(found.parting.growth) > 1:
        grown = ", ".join(f"{name} {error:.1e}" for name, error in found.parting.growth)
        yield f"by layer: {grown}"
    for side, alone in (("A", found.alone_a), ("B", found.alone_b)):
        if alone:
            yield f"parameters of {side} without a partner: {', '.join(alone)}"
    yield from found.notes
