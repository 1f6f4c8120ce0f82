"""Packing: texts that share a row, and are told apart, give what each gives alone.

Axes: b batch (1 here), t time, n length of one text.

How code is told which text a position belongs to: by numbers of texts, by where each begins, or by
a mask of who sees whom, with positions that start anew where it takes them. Positions alone are
tried last, and count only where they hide the texts before: most code counts with them and hides
nothing. Code of a `Subject` of one's own has

    packed(x, lengths) -> outputs        x [1, t, …], texts of these lengths one after another
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe, apart
from attnlab.audit.probe.tools import Tools
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import CannotTell, Result, Tool, amount, movement, replace_inputs
from attnlab.audit.subject.adapters import POSITIONS
from attnlab.audit.subject.base import Subject

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
PIECES = ((5, 4), (1, 6), (4, 3, 5))  # lengths of texts that share a row
FAR = ("none", "relative", "rotary", "alibi")  # positions that do not care where a text begins
PLACES = ("position_ids", "positions")  # that may begin anew with each text
NOT_GIVEN = "it is not given which text a position belongs to"
Way = tuple[str, str, int]  # a name, the form of a mask and its axes; "" and 0 if it is none


def arguments(
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
    ends = each.cumsum(0)
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
    elif name not in PLACES:
        given[name] = (number + 1)[None]  # from 1: to some, 0 is padding
    for place in takes:
        if place in PLACES:
            given[place] = (torch.arange(len(number)) - begins)[None]
    return given


def fails(
    run_with: Tool,
    draw: Tool,
    *,
    way: tuple[str, str, int] | None,
    takes: list[str],
    causal: bool,
    dtype: str,
    change: str,
    text: int,
    pieces: list[int],
    seed: int,
    tolerance: float,
) -> Result:
    """Texts one after another in a row, separated: the others change, or are left out.

    Of causal code the text itself changes too, from its middle on.
    """

    def packed(x: Tensor, lengths: list[int]) -> Tensor:
        if way is None:  # code that says itself how
            return run_with(x, lengths=tuple(lengths))
        return run_with(x, **arguments(way, tuple(lengths), takes, causal, getattr(torch, dtype)))

    own = slice(sum(pieces[:text]), sum(pieces[: text + 1]))
    x, changed = draw(1, sum(pieces), seed), draw(1, sum(pieces), seed + 100).clone()
    changed[:, own] = x[:, own]
    before = packed(x, pieces)[:, own]
    if change == "alone":
        after, why = packed(x[:, own], [pieces[text]]), "it stands alone"
    elif change == "later":
        half = pieces[text] // 2
        if half < 1:
            raise ValueError("a text of one position has no later ones")
        first, last = own.start + half, own.stop - 1
        later = replace_inputs(x, draw(1, sum(pieces), seed + 100), first, last)
        after, before = packed(later, pieces)[:, own][:, :half], before[:, :half]
        why = f"inputs {half} to {pieces[text] - 1} of the same text change"
    else:
        after, why = packed(changed, pieces)[:, own], "the texts beside it change"
    off = movement(after, before)
    size, at = float(off.max()), int(off.amax(0).argmax())
    seen = f"output {at} of text {text} moves by {amount(size)} when {why}"
    name = "its own packed" if way is None else way[0]
    return size > tolerance, f"{seen} (texts of {pieces} in a row, separated by {name})", size


class Packing(Property):
    """Texts in one row, separated by segments, `cu_seqlens` or a mask.

    Needs: one of these, or positions that hide the texts before where they begin anew.
    Fails: a text that moves with its neighbours; declared causal: an output that moves with later
      inputs; declared `alone`: a text that is not as alone, as where positions run on.
    """

    name = "packing"
    field = "segments"

    def excuse(self, probe: Probe) -> Finding | None:
        names = any(True for _ in _ways(_takes(probe.subject), probe.subject.module))
        if not names and not hasattr(probe.subject, "packed"):
            return self.finding("not applicable", NOT_GIVEN)
        return super().excuse(probe)

    def cases(self, probe: Probe) -> Iterator[Case]:
        subject = probe.subject
        own = hasattr(subject, "packed")
        way = None if own else way_of(probe)
        if way is None and not own:
            if any(one in PLACES for one in _takes(subject)) and self.declared(probe):
                raise CannotTell(f"{NOT_GIVEN}, and positions that begin anew hide nothing")
            return
        how: dict[str, Any] = {
            "way": way,
            "takes": [one for one in _takes(subject) if one in WORDS],
        }
        how |= {"causal": bool(probe.contract.causal), "dtype": str(subject.dtype)[6:]}
        for pieces in PIECES:
            for text in range(len(pieces)):
                whole = how["causal"] and pieces[text] > 1
                for change in ("others", "alone", *(("later",) if whole else ())):
                    sizes = {"change": change, "text": text, "pieces": list(pieces)}
                    yield self.case(probe, fails, **how, **sizes)

    def on_failure(self, probe: Probe, case: Case, result: Result) -> Finding | None:
        """A later text may differ from alone where nothing tells the code that it begins anew."""
        sizes, far = case.sizes, probe.contract.positions in FAR
        declared = self.declared(probe)
        if sizes["way"] is not None and sizes["way"][0] in PLACES and declared is None:
            return self.finding("not applicable", NOT_GIVEN)
        if declared == "apart" and sizes["change"] == "alone":
            return None
        if declared == "alone":
            return super().on_failure(probe, case, result)
        later = sizes["change"] == "alone" and sizes["text"] > 0
        restarts = sizes["way"] is None or far or any(one in POSITIONS for one in sizes["takes"])
        return None if later and not restarts else super().on_failure(probe, case, result)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        if not tried:
            return self.finding("not applicable", NOT_GIVEN)
        way, takes = tried[0][0].sizes["way"], _takes(probe.subject)
        worst = max(size for _, (wrong, _, size) in tried if not wrong)
        name = "its own packed" if way is None else way[0]
        detail = f"texts in one row, separated by {name}, are as alone: off by {worst:.1e}"
        if any(wrong for _, (wrong, _, _) in tried):
            detail = f"texts in one row, separated by {name}, are apart: off by {worst:.1e}"
            detail += "; a later one is not as alone, as where positions run on"
        if way is not None and way[0] not in PLACES and any(one in PLACES for one in takes):
            detail += positions_alone(probe)
        return self.finding("pass", detail, measured=worst)


def way_of(probe: Probe) -> Way | None:
    """The first way that runs, and of a mask: that shuts out what it is to shut out."""
    call, takes = Tools(probe).run_with, _takes(probe.subject)
    for way in _ways(takes, probe.subject.module):
        try:
            if _tells_apart(probe, call, takes, way):
                call(probe.draw(1, 5), **arguments(way, (3, 2), takes, False, probe.subject.dtype))
                return way
        except (SubjectError, CannotTell):  # it takes something else by this name
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
    yield from ((name, "", 0) for name in takes if name in PLACES)


def positions_alone(probe: Probe) -> str:
    """Whether positions that begin anew are enough: texts do not move with their neighbours."""
    tools, takes = Tools(probe), _takes(probe.subject)
    way = next((name, "", 0) for name in takes if name in PLACES)
    how: dict[str, Any] = {"way": way, "takes": [way[0]], "change": "others", "seed": 0}
    how |= {"causal": False, "dtype": str(probe.subject.dtype)[6:], "tolerance": probe.tolerance}
    pieces = list(PIECES[0])
    try:
        kept = not any(
            fails(tools.run_with, tools.draw, text=text, pieces=pieces, **how)[0]
            for text in range(len(pieces))
        )
    except (SubjectError, CannotTell):
        return ""
    both = "separate them too" if kept else "do not separate them"
    return f"; {way[0]} alone that begin anew {both} (texts of {pieces})"


def _tells_apart(probe: Probe, call: Callable[..., Tensor], takes: list[str], way: Way) -> bool:
    """Whether it is a way at all: whether texts are really apart is for the check."""
    if way[0] in PLACES:
        return _hides(probe, call, way)
    return not way[1] or _shuts_out(probe, call, takes, way)


def _shuts_out(probe: Probe, call: Callable[..., Tensor], takes: list[str], way: Way) -> bool:
    """Whether texts of one position each, told apart so, are apart: else it is another mask, or
    the code has other ways from one position to another, of which a mask tells nothing."""
    # of the mask, and nothing else
    takes = [one for one in takes if one not in POSITIONS or one == way[0]]
    given = arguments(way, (1,) * ALONE, takes, False, probe.subject.dtype)
    x, other = probe.draw(1, ALONE), probe.draw(1, ALONE, 1)
    before = call(x, **given)
    if not bool(torch.isfinite(before).all()):
        return False
    for at in (0, ALONE // 2, ALONE - 2):
        kept = [n for n in range(ALONE) if n != at]
        after = call(replace_inputs(x, other, at, at), **given)
        if apart(after[:, kept], before[:, kept]) > probe.tolerance:
            return False
    # one that sees nothing at all, or everything, would be told apart by any mask
    whole = arguments(way, (ALONE,), takes, False, probe.subject.dtype)
    return apart(call(x, **whole), before) > probe.tolerance


def _hides(probe: Probe, call: Callable[..., Tensor], way: Way) -> bool:
    """Whether positions that begin anew cut what texts have to do with each other: code that
    counts with them hides nothing."""
    half, dtype = ALONE // 2 + 1, probe.subject.dtype
    x, other = probe.draw(1, ALONE), probe.draw(1, ALONE, 1)
    for source, target in ((3, half + 8), (8, half + 2)):
        moved = []
        for lengths in ((half, ALONE - half), (ALONE,)):
            given = arguments(way, lengths, [way[0]], False, dtype)
            changed = replace_inputs(x, other, source, source)
            before, after = (call(one, **given)[:, target : target + 1] for one in (x, changed))
            moved.append(apart(after, before))
        if moved[0] > probe.tolerance or moved[1] <= probe.tolerance:
            return False
    return True


def _takes(subject: Subject) -> list[str]:
    """Arguments that the code takes by name."""
    return list(getattr(subject, "takes", ()))
