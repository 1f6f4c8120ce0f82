"""Packing: texts that share a row, and are told apart, give what each gives alone.

Axes: b batch (1 here), t time, n length of one text.

How code is told which text a position belongs to: by numbers of texts, by where each begins, or by
a mask of who sees whom, with positions that start anew where it takes them. Positions alone are not
enough: most code counts with them and hides nothing. Code of a `Subject` of one's own has

    packed(x, lengths) -> outputs        x [1, t, …], texts of these lengths one after another
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe, apart
from attnlab.audit.properties.property import Property, unsteady
from attnlab.audit.subject.adapters import POSITIONS

SEGMENTS = (
    *("segment_ids", "sequence_ids", "document_ids", "segment_id", "sequence_id", "document_id"),
    *("doc_ids", "seq_ids", "seq_idx", "segments", "documents", "docs", "doc_id", "seq_id"),
)
STARTS = (
    *("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k"),
    *("cu_seq_lens", "cu_seq_lens_q", "cu_seq_lens_k"),
)
LONGEST = (
    *("max_seqlen", "max_seqlen_q", "max_seqlen_k"),
    *("max_length", "max_length_q", "max_length_k"),
)
MASKS = ("mask", "attn_mask", "attention_mask", "src_mask")
FORMS = ("seen", "hidden", "added")  # what a mask may hold
WORDS = (*SEGMENTS, *STARTS, *LONGEST, *MASKS, *POSITIONS)  # what tells texts apart
KINDS = 16  # a table of so few is one of kinds of tokens, as first and second sentence
ALONE = 23  # positions that a mask must be able to keep apart; blocks are seldom longer here
LENGTHS = ((5, 4), (1, 6), (4, 3, 5))
FAR = ("none", "relative", "rotary", "alibi")  # positions that do not care where a text begins
Way = tuple[str, str, int]  # a name, the form of a mask and its axes; "" and 0 if it is none


def told(
    way: tuple[str, str, int],
    lengths: tuple[int, ...],
    takes: list[str],
    causal: bool,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """What is given by name so that texts of these lengths are told apart."""
    name, form, axes = way
    each = torch.tensor(lengths)
    number = torch.repeat_interleave(torch.arange(len(lengths)), each)
    ends = torch.cat((each[:0], each.cumsum(0)))
    begins = (ends - each)[number]
    given: dict[str, Any] = {}
    if form:
        seen = number[:, None] == number
        seen = seen.tril() if causal else seen
        mask = seen if form == "seen" else ~seen
        if form == "added":
            mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, float("-inf"))
        given[name] = mask[(None,) * (axes - 2)]
    elif "cu_s" in name:
        starts = torch.cat((each.new_zeros(1), ends)).to(torch.int32)
        given = {one: starts for one in takes if one.startswith("cu_s")}
        given |= {one: max(lengths) for one in takes if one.startswith("max_")}
    else:
        given[name] = (number + 1)[None]  # from 1: to some, 0 is padding
    for place in takes:
        if place in ("position_ids", "positions"):
            given[place] = (torch.arange(len(number)) - begins)[None]
    return given


@dataclass(frozen=True)
class Packing(Property):
    name = "packing"

    def examine(self, probe: Probe) -> Finding:
        detail = "it is told nothing of which text a position belongs to"
        if not offered(probe):
            return self.finding("not applicable", detail)
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason)
        known = telling(probe)
        if known is None:
            return self.finding("not applicable", detail)
        name, ask, restarts = known
        worst, elsewhere = 0.0, ""
        for lengths in LENGTHS:
            for what, text, off in _differences(probe, ask, lengths):
                if off <= probe.tolerance:
                    worst = max(worst, off)
                elif what == "alone" and text and not restarts:
                    elsewhere = "; later texts stand elsewhere, and may differ from alone"
                else:
                    said = "the texts beside it change" if what == "others" else "it is packed"
                    detail = (
                        f"text {text} of lengths {list(lengths)} in one row moves by {off:.2g} "
                        f"when {said} (told by {name})"
                    )
                    example = {"lengths": list(lengths), "what": what, "text": text}
                    return self.finding("fail", detail, measured=_plain(off), example=example)
        detail = f"texts in one row, told apart by {name}, are as alone: off by {worst:.1e}"
        return self.finding("pass", detail + elsewhere, measured=worst)


def _plain(size: float) -> float | None:
    return size if size < float("inf") else None


def offered(probe: Probe) -> bool:
    """Whether it takes something of that name at all."""
    takes = _named(probe.subject)[1]
    own = getattr(probe.subject, "packed", None) is not None
    return own or any(True for _ in _ways(takes, probe.subject.module))


Asked = Callable[[Tensor, tuple[int, ...]], Tensor]


def telling(probe: Probe) -> tuple[str, Asked, bool] | None:
    """By what it is told, how it is asked, and whether later texts must be as alone too."""
    subject = probe.subject
    far = probe.contract.positions in FAR
    own = getattr(subject, "packed", None)
    if own is not None:
        return "its own packed", torch.no_grad()(own), True
    way = way_of(probe)
    if way is None:
        return None
    call, takes = _named(subject)
    causal = bool(probe.contract.causal)

    def ask(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
        with torch.no_grad():
            found: Tensor = call(x, **told(way, lengths, takes, causal, subject.dtype))
        return found

    return way[0], ask, far or any(one in POSITIONS for one in takes)


def way_of(probe: Probe) -> Way | None:
    """The first way that runs, and of a mask: that shuts out what it is to shut out."""
    call, takes = _named(probe.subject)
    if call is None:
        return None
    for way in _ways(takes, probe.subject.module):
        try:
            if not way[1] or _shuts_out(probe, call, takes, way):
                call(probe.draw(1, 5), **told(way, (3, 2), takes, False, probe.subject.dtype))
                return way
        except SubjectError:  # it takes something else by this name
            continue
    return None


def _ways(takes: list[str], module: nn.Module | None) -> Iterator[Way]:
    tables = [one for one in module.modules() if isinstance(one, nn.Embedding)] if module else []
    kinds = any(one.num_embeddings <= KINDS for one in tables)
    for name in takes:
        if name in SEGMENTS and not kinds:
            yield name, "", 0
    yield from ((name, "", 0) for name in takes if name in STARTS)
    for name in takes:
        if name in MASKS:
            yield from ((name, form, axes) for form in FORMS for axes in (2, 4, 3))


def _shuts_out(probe: Probe, call: Any, takes: list[str], way: Way) -> bool:
    """Whether texts of one position each, told apart so, are apart: else it is another mask, or
    the code has other ways from one position to another, of which a mask tells nothing."""
    takes = [one for one in takes if one not in POSITIONS]  # of the mask, and nothing else
    with torch.no_grad():
        given = told(way, (1,) * ALONE, takes, False, probe.subject.dtype)
        x, other = probe.draw(1, ALONE), probe.draw(1, ALONE, 1)
        before = call(x, **given)
        if not bool(torch.isfinite(before).all()):
            return False
        for at in (0, ALONE // 2, ALONE - 2):
            changed = x.clone()
            changed[:, at] = other[:, at]
            kept = [n for n in range(ALONE) if n != at]
            if apart(call(changed, **given)[:, kept], before[:, kept]) > probe.tolerance:
                return False
        # one that sees nothing at all, or everything, would be told apart by any mask
        whole = told(way, (ALONE,), takes, False, probe.subject.dtype)
        return apart(call(x, **whole), before) > probe.tolerance


def _named(subject: Any) -> tuple[Any, list[str]]:
    """The code with arguments by name, and which it takes."""
    call = getattr(subject, "named", None)
    if call is not None:
        return call, list(subject.takes)
    return None, []


def _differences(
    probe: Probe, ask: Asked, lengths: tuple[int, ...]
) -> Iterator[tuple[str, int, float]]:
    """What was done, to which text, and how far it moved."""
    total = sum(lengths)
    x, other = probe.draw(1, total), probe.draw(1, total, 3)
    packed = ask(x, lengths)
    start = 0
    for text, size in enumerate(lengths):
        own = slice(start, start + size)
        changed = other.clone()
        changed[:, own] = x[:, own]
        yield "others", text, apart(ask(changed, lengths)[:, own], packed[:, own])
        yield "alone", text, apart(ask(x[:, own], (size,)), packed[:, own])
        start += size
