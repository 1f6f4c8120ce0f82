"""What a mask function of `transformers` says, read from the function itself.

    mask function -> terms -> Plan: keywords of our attention

The library builds masks from few functions: causal, windows, chunks, packed documents, and their
intersection. Each is known by its code, and only while that code does what it did when this was
written: it is tried on a small grid first. Anything else has no terms, and gets a dense mask.

Axes: b batch (1 where all rows are alike), q queries, k keys.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import CodeType
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnlab.kernels.mask import Mask, Reach, Segments

MaskFunction = Callable[..., Tensor]
GRID = 7  # positions of the grid on which a function of the library is tried


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a mask function asks for: all of it must hold."""

    causal: bool = False
    before: int | None = None  # keys before the query's own that it attends to
    after: int | None = None
    chunk: int | None = None
    chunks_begin: Int[Tensor, " b"] | None = None
    documents: Int[Tensor, "b t"] | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A mask in the words of our attention, for queries and keys of a given number."""

    queries: int
    keys: int  # of those that are there, so many are attended to by any query
    causal: bool
    window: int | Reach | None = None
    segments: Segments | None = None  # of chunks, documents, or both
    documents: Int[Tensor, "#b k"] | None = None  # those of the documents alone
    padding: Bool[Tensor, "b k"] | None = None

    def options(self) -> dict[str, Any]:
        return {
            "causal": self.causal,
            "window": self.window,
            "segments": self.segments,
            "key_padding": self.padding,
        }

    def ranges(self, device: torch.device) -> Int[Tensor, "#b q 3"]:
        return Mask(
            queries=self.queries,
            keys=self.keys,
            device=device,
            causal=self.causal,
            window=self.window,
            segments=self.segments,
        ).ranges()


def plan_of(
    function: MaskFunction,
    *,
    rows: int,
    queries: int,
    keys: int,
    first_query: int,
    first_key: int,
    padding: Bool[Tensor, "b t"] | None,
    device: torch.device,
) -> Plan | None:
    """The plan of a mask function, for queries and keys whose positions begin as given.

    None if it cannot be read, or if keys that it lets through are not those of the plan: that is
    asked at the ends of what each query attends to.
    """
    terms = terms_of(function)
    if terms is None:
        return None
    stands = first_query - first_key  # where the first query is among the keys
    limits = (terms.before, terms.after, terms.chunk, terms.documents)
    if not terms.causal and all(one is None for one in limits):
        plan = Plan(queries=queries, keys=keys, causal=False)
    else:
        last = keys if not terms.causal else stands + queries  # what is later, nobody attends to
        if stands < 0 or stands + queries != last or last > keys:
            return None
        window: int | Reach | None = None
        if terms.causal:
            window = None if terms.before is None else terms.before + 1
        elif terms.before is not None or terms.after is not None:
            window = Reach(before=terms.before, after=terms.after)
        plan = Plan(queries=queries, keys=last, causal=terms.causal, window=window)
        at = torch.arange(first_key, first_key + last, device=device)
        documents = _documents(terms, at)
        if documents is None and terms.documents is not None:
            return None
        segments = _segments(terms, at, documents, queries)
        plan = replace(plan, segments=segments, documents=documents)
    if queries > 1 and not _holds(plan, function, rows, keys, first_query, first_key, device):
        return None
    if padding is not None:
        hidden = ~padding[:, first_key : first_key + plan.keys]
        missing = plan.keys - hidden.shape[1]
        if missing > 0:  # slots of a static cache that no mask was given for
            hidden = torch.nn.functional.pad(hidden, (0, missing), value=True)
        if bool(hidden.any()):
            plan = replace(plan, padding=hidden)
    return plan


def terms_of(function: MaskFunction) -> Terms | None:
    """What it asks for; None if any part of it is not known."""
    found = Terms()
    for part in _parts(function):
        more = _term(part)
        if more is None:
            return None
        for name, value in more.items():
            if name != "causal" and getattr(found, name) is not None:
                return None  # twice the same: which of them holds is for a dense mask to say
            found = replace(found, **{name: value})
    return found


def _parts(function: MaskFunction) -> Iterator[MaskFunction]:
    """The functions whose intersection it is."""
    code = getattr(function, "__code__", None)
    if code is not None and code is _codes().get("and"):
        for part in _inside(function)["mask_functions"]:
            yield from _parts(part)
    else:
        yield function


def _term(function: MaskFunction) -> dict[str, Any] | None:
    known, code = _codes(), getattr(function, "__code__", None)
    kind = next((name for name, one in known.items() if one is code), None)
    if kind is None or kind == "and":
        return None
    if kind == "causal":
        return {"causal": True}
    if kind == "bidirectional":
        return {}
    inside = _inside(function)
    if kind == "window":
        width = inside["sliding_window"]
        return {"before": width - 1} if _is_count(width, 1) else None
    if kind == "two-sided":
        reach = inside["sliding_window"]
        return {"before": reach, "after": reach} if _is_count(reach, 0) else None
    if kind == "chunks":
        size = inside["chunk_size"]
        begin = {"chunk": size, "chunks_begin": inside["left_padding"]}
        return begin if _is_count(size, 1) else None
    return {"documents": inside["packed_sequence_mask"]}


def _is_count(value: object, low: int) -> bool:
    return type(value) is int and value >= low


def _inside(function: Any) -> Mapping[str, Any]:
    """The variables that a function of a function holds."""
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (c.cell_contents for c in cells), strict=True))


@cache
def _codes() -> Mapping[str, CodeType]:
    """The code of each of the library's functions, if it does what is expected of it."""
    from transformers import masking_utils as library

    at, none = torch.arange(GRID), torch.zeros(1, dtype=torch.long)
    query, key = at[:, None], at
    documents = torch.tensor([[0, 0, 1, 1, 1, 2, 3]])
    causal = library.causal_mask_function
    begin = torch.tensor([2])
    expected: dict[str, tuple[Any, Tensor]] = {
        "and": (
            library.and_masks(causal, library.sliding_window_overlay(3)),
            (key <= query) & (query - key < 3),
        ),
        "causal": (causal, key <= query),
        "bidirectional": (
            library.bidirectional_mask_function,
            torch.ones(GRID, GRID, dtype=torch.bool),
        ),
        "window": (library.sliding_window_overlay(3), query - key < 3),
        "two-sided": (
            library.sliding_window_bidirectional_overlay(2),
            (query - key).abs() <= 2,
        ),
        "chunks": (library.chunked_overlay(3, begin), (query - 2) // 3 == (key - 2) // 3),
        "packed": (
            library.packed_sequence_mask_function(documents),
            documents[0][:, None] == documents[0],
        ),
    }
    rows = none.view(1, 1, 1, 1)
    found = {}
    for name, (function, wanted) in expected.items():
        said = function(rows, rows, query.view(1, 1, -1, 1), key.view(1, 1, 1, -1))
        if torch.equal(said.expand(1, 1, GRID, GRID)[0, 0], wanted):
            found[name] = function.__code__
    return found


def _documents(terms: Terms, at: Int[Tensor, " k"]) -> Int[Tensor, "b k"] | None:
    """The numbers of documents at these positions; None if they do not stand in order."""
    if terms.documents is None:
        return None
    known = terms.documents.to(at.device)
    if int(at[-1]) >= known.shape[1] or bool((known.diff() < 0).any()):
        return None
    return known[:, at].long()


def _segments(
    terms: Terms, at: Int[Tensor, " k"], documents: Int[Tensor, "b k"] | None, queries: int
) -> Segments | None:
    """Chunks and documents as numbers that never fall along a row."""
    numbers = documents
    if terms.chunk is not None:
        assert terms.chunks_begin is not None
        begin = terms.chunks_begin.to(at.device)[:, None]
        chunks = (at - begin).div(terms.chunk, rounding_mode="floor")
        # both grow along a row: their sum is the same where both are
        numbers = chunks if numbers is None else numbers + chunks
    if numbers is None:
        return None
    if bool((numbers == numbers[:1]).all()):
        numbers = numbers[:1]
    return Segments(numbers[:, len(at) - queries :].contiguous(), numbers.contiguous())


def _holds(
    plan: Plan,
    function: MaskFunction,
    rows: int,
    keys: int,
    first_query: int,
    first_key: int,
    device: torch.device,
) -> bool:
    """Whether each query attends to the first and the last key of its plan, and not beyond them."""
    ranges = plan.ranges(device)
    first, end = ranges[..., 0], ranges[..., 1]
    asked = torch.stack([first - 1, first, end - 1, end], -1)
    wanted = torch.stack([first < 0, first < end, first < end, first < 0], -1)
    there = (asked >= 0) & (asked < keys)
    row = torch.arange(rows, device=device)[:, None, None, None]
    head = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
    query = torch.arange(first_query, first_query + plan.queries, device=device)[
        None, None, :, None
    ]
    said = function(row, head, query, asked.clamp(0, keys - 1)[:, None] + first_key)
    return bool(((said[:, 0] == wanted) | ~there).all())
