"""Which axis is time: what code shows of it when nobody has said.

Axes: b batch, t time, c width; h heads, d head width.

Code that never lets one position move another, but rows (or heads) each other, either mixes what
it must not, or takes its axes in another order: [t, b, c] instead of [b, t, c], [b, t, h, d]
instead of [b, h, t, d]. Both are common, and nothing in the code says which; so nothing is claimed
before the layout is declared. Where the contract leaves no doubt there is none: a declared layout
is kept to, and rows that see later rows are not the time of causal code either.
"""

from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe, apart
from attnlab.audit.repro.prelude import CannotTell, movement
from attnlab.audit.subject.base import Attention, Vectors

LENGTH, ROWS = 5, 3


def unclear(probe: Probe) -> str:
    """Why nothing can be said before a layout is declared; empty if it is clear."""
    subject = probe.subject
    if not isinstance(subject, Vectors) or subject.layout is not None:
        return ""
    try:
        if not probe.steady:
            return ""
        return _heads_for_time(probe, subject) if isinstance(subject, Attention) else _rows(probe)
    except (SubjectError, CannotTell):  # the properties say what happens
        return ""


def _rows(probe: Probe) -> str:
    x, other = probe.draw(ROWS, LENGTH), probe.draw(ROWS, LENGTH, 1)
    before = probe.run(x)
    later = False
    for row, at in ((0, 1), (1, 3), (2, 0)):
        changed = x.clone()
        changed[row, at] = other[row, at]
        moved = movement(probe.run(changed), before) > probe.fine  # [b, t]
        if moved[:, [n for n in range(LENGTH) if n != at]].any():
            return ""  # time is mixed
        later |= bool(moved[:row, at].any())
        rows = bool(moved[[n for n in range(ROWS) if n != row], at].any())
        if row == 0 and not rows:
            return ""  # nothing is mixed at all, or only with rows before
    if probe.contract.causal and later:
        return ""  # in any layout wrong
    return (
        "rows of the batch move each other, and positions never do: declare layout=tbc if its "
        "inputs are [t, b, c], and layout=btc if they are [b, t, c]"
    )


def _heads_for_time(probe: Probe, subject: Attention) -> str:
    x, other = probe.draw(1, LENGTH), probe.draw(1, LENGTH, 1)
    before = probe.run(x)
    for at in (1, 3):
        changed = x.clone()
        changed[:, at] = other[:, at]
        moved = movement(probe.run(changed), before)[0] > probe.fine
        if moved[[n for n in range(LENGTH) if n != at]].any():
            return ""
    width = subject.head_width
    changed = x.clone()
    parts, others = changed.unflatten(-1, (-1, width)), other.unflatten(-1, (-1, width))
    assert subject.heads is not None and subject.kv_heads is not None
    first = [0, subject.heads, subject.heads + subject.kv_heads]  # of q, of k and of v
    parts[:, :, first] = others[:, :, first]
    after, then = (one.unflatten(-1, (-1, width)) for one in (probe.run(changed), before))
    shared = subject.heads // subject.kv_heads  # heads that may read the first key/value head
    if apart(after[:, :, shared:].flatten(2), then[:, :, shared:].flatten(2)) <= probe.fine:
        return ""
    return (
        "heads move each other, and positions never do: declare layout=bthd if q, k and v are "
        "[b, t, h, d], and layout=bhtd if they are [b, h, t, d]"
    )
