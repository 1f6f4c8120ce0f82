"""Heads: a query head reads one key/value head, its neighbours the same, and its own query.

Axes: b batch, h query heads, g key/value heads, t time, d head width; query i, key j.

Of a function of q, k and v each head's part is replaced, and the heads that move are those that
read it. Of a module queries, keys and values are observed as they are multiplied.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.contract import Finding
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.identify import OTHER_HEADS, SEEN_LENGTH, UNSEEN, differ, observe
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import Tools
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import (
    CannotTell,
    Result,
    Shape,
    Tool,
    influence,
    movement,
    replace_inputs,
)
from attnlab.audit.subject.adapters import HEADS, KV_HEADS
from attnlab.audit.subject.base import Attention

# query and key/value heads: ratios 2, 4 and 7; 6 : 3 because `head // kv_heads` is right at 4 : 2
SHAPES = ((4, 2), (6, 3), (8, 2), (14, 2), (7, 1))
STEADY = "which inputs move an output does not depend on the length"


def reading_fails(
    run: Tool, draw: Tool, heads: Shape, *, talking: bool, length: int, seed: int, tolerance: float
) -> Result:
    """Replace one query, or all keys or values of a head: only those heads move that read it.

    Code with weights of its own may mix heads on purpose: then they are talking.
    """
    h, g, d = heads
    if length < 2:
        raise ValueError("with one key its weight is 1 whatever it is")
    x, other = draw(1, length, seed), draw(1, length, seed + 100)
    before = run(x)
    if before.shape[-1] != h * d:
        raise CannotTell(OTHER_HEADS)

    def moves(part: int, places: slice) -> list[list[int]]:
        """Heads and positions that move with one of the h + 2g parts of the inputs."""
        changed, own = x.clone(), slice(part * d, (part + 1) * d)
        changed[:, places, own] = other[:, places, own]
        parts = (one.unflatten(-1, (h, d)).transpose(1, 2)[0] for one in (run(changed), before))
        return (movement(*parts) > tolerance).nonzero().tolist()  # type: ignore[no-any-return]

    idle, roaming = None, False
    for head in range(h):
        places = [(token, moves(head, slice(token, token + 1))) for token in range(length)]
        roaming |= any(at != token for token, some in places for _, at in some)
        for token, some in places:
            # another place, and another head: neither other queries that take part in a
            # summary of the text, nor heads that talk to each other
            for one, at in some:
                if one != head and at != token:
                    text = f"the query of head {head} at {token} moves the output of head {one}"
                    return True, f"with {h} heads and {g} key/value heads {text} at {at}", []
        if idle is None and not any([head, token] in some for token, some in places):
            idle = head
    reads = {}
    for what, first in (("keys", h), ("values", h + g)):
        by = [{one for one, _ in moves(first + n, slice(0, length))} for n in range(g)]
        reads[what] = [[n for n in range(g) if head in by[n]] for head in range(h)]
    keys, values = reads["keys"], reads["values"]
    # what a key moves is elsewhere too, what a query moves is not
    tokens = range(length - 1)
    still = all(at == token for token in tokens for _, at in moves(h, slice(token, token + 1)))
    found = [read[0] if len(read) == 1 else -1 for read in values]
    wrong = ""
    mixed = [
        (head, what)
        for what in ("values", "keys")
        for head in range(h)
        if len(reads[what][head]) != 1
    ]
    if still and roaming:
        wrong = "a key moves the output of its own place only, and a query those of others"
        wrong += ": queries and keys are exchanged"
    elif talking and all(len(read) > 1 and read == values[0] for read in values):
        wrong = ""
    elif mixed:
        head, what = mixed[0]
        wrong = f"query head {head} reads the {what} of heads {reads[what][head]}, not of one"
    elif keys != values:
        wrong = f"heads read keys as {keys} and values as {values}"
    elif found != neighbours(h, g):
        wrong = f"query heads read key/value heads {found}, {describe_map(found, g)}"
    elif idle is not None:
        wrong = f"the output of head {idle} does not depend on its queries"
    text = wrong or f"query heads read key/value heads {found}"
    return bool(wrong), f"with {h} heads and {g} key/value heads {text}", found


def refused_fails(
    draw: Tool,
    heads: Shape,
    refusal: Callable[[Tensor], str],
    *,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """The code runs with the heads that are declared."""
    heads_named = f"{heads[0]} heads and {heads[1]} key/value heads are"
    why = " ".join(refusal(draw(1, length, seed)).split())[:100]
    return bool(why), f"{heads_named} refused ({why})" if why else f"{heads_named} taken", None


def landing_fails(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    *,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Change one input: the queries, keys and values of every head change at its place."""
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    before = observe(run, x, heads, watch)[0]
    for at in range(1, length - 1):
        after = observe(run, replace_inputs(x, other, at, at), heads, watch)[0]
        for what in ("q", "k", "v"):
            change = differ(getattr(before, what), getattr(after, what)).any(0)  # [h, t]
            # some code gives a head the token before instead of its own
            lost = ~change[:, at : at + 3].any(1)
            if not bool(change.any()) or not bool(lost.any()):
                continue
            lands = change.any(0).nonzero().flatten().tolist()
            if bool(lost.all()) and bool((change == change[:1]).all()):
                where = f"the {what} of input {at} is not at {at} in any head; it lies at {lands}"
                return True, f"{where}: inputs change their place before they are compared", None
            where = f"the {what} of input {at} is not at {at} in head {int(lost.nonzero()[0])}"
            why = "heads and time are mixed, as by a reshape without a transpose"
            return True, f"{where}; it lies at {lands} of some heads: {why}", None
    return False, "every head has the queries, keys and values of an input at its place", None


def length_fails(
    run: Tool, draw: Tool, *, short: int, length: int, rows: int, seed: int, tolerance: float
) -> Result:
    """Which of the first inputs move which outputs does not depend on how long the text is.

    Where it depends on what the inputs are (routing), nothing is claimed.
    """
    if not 1 < short < length:
        raise ValueError("two lengths are compared")

    def who_moves(text: int) -> tuple[Tensor, Tensor]:
        one, other = (
            influence(run, draw, size, text, rows) > tolerance for size in (short, length)
        )
        return one, other[:short, :short]

    found = who_moves(seed)
    wrong = (found[0] != found[1]).nonzero().tolist()
    if not wrong or not all(map(torch.equal, found, who_moves(seed + 1))):
        return False, f"who moves whom is the same in texts of {short} and of {length}", None
    i, j = wrong[0]
    one, other = (short, length) if bool(found[0][i, j]) else (length, short)
    why = "as where heads are laid across tokens or a shift goes round its end"
    text = f"input {j} moves output {i} in a text of {one}, and not in one of {other}"
    return True, f"{text}: who is seen depends on the length, {why}", None


def sharing_fails(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    *,
    count: int | None,
    kv_heads: int | None,
    tiles: bool,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Heads whose keys are equal share a key/value head: neighbours do, and so many there are.

    Heads of a module have no order but their own, unless weights of others are loaded: it `tiles`.
    """
    found: list[int] = []
    for one in observe(run, draw(batch, length, seed), heads, watch):
        if not bool(one.k.any()):  # a gate at 0: all heads would look alike
            continue
        keys, values = groups(one.k), groups(one.v)
        found, g, h = found or keys, len(set(keys)), len(keys)
        tiled = tiles and keys == [head % g for head in range(h)]
        # latent attention shares only one of them
        alike = keys == values or len(set(values)) == 1
        if not alike and g > 1:
            return True, f"heads share keys as {keys} and values as {values}", keys
        if alike and g > 1 and keys != neighbours(h, g) and not tiled:
            return True, f"query heads read key/value heads {keys}, {describe_map(keys, g)}", keys
        if kv_heads is not None and g != kv_heads:
            text = f"{g} different key/value heads are read, and there must be {kv_heads}"
            return True, text, keys
        if count is not None and h != count:
            return True, f"there are {h} heads, and {count} are declared", keys
    return False, f"{len(found)} heads read {len(set(found))} key/value heads: {found}", found


def own_key_fails(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    *,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Queries that attend to keys before them attend to their own: else the mask is one off.

    Where the first query has its own key, as having no other, it is somebody's choice; so it is
    where weights are no softmax: stick-breaking attention has none for its own key.
    """
    if length < 2:
        raise ValueError("one query has no key before it")
    for one in observe(run, draw(batch, length, seed), heads, watch):
        weights = one.weights.double().nan_to_num().abs()
        own, past = weights.diagonal(dim1=-2, dim2=-1), weights.tril(-1)
        least = 16 * torch.finfo(one.weights.dtype).eps
        whole = float((weights.sum(-1)[..., 1:] - 1).abs().max()) < 1e-3
        none = float(own.max()) <= least < float(past.max()) and not bool(weights.triu(1).any())
        if none and whole:
            text = "no query attends to its own key, and the first one to none at all"
            return True, f"{text}: the causal mask is one off", None
    return False, "queries attend to their own keys", None


def groups(parts: Tensor) -> list[int]:
    """Heads [b, h, t, d] numbered so that equal ones have the same number."""
    heads = parts.unbind(1)
    first = [next(n for n, one in enumerate(heads) if torch.equal(one, head)) for head in heads]
    return [sorted(set(first)).index(n) for n in first]


def neighbours(heads: int, kv_heads: int) -> list[int]:
    """Which key/value head each query head reads, where neighbours share one."""
    if kv_heads < 1 or heads % kv_heads:
        return []
    return [head // (heads // kv_heads) for head in range(heads)]


def describe_map(found: list[int], kv_heads: int) -> str:
    wanted = neighbours(len(found), kv_heads)
    if found == [head % kv_heads for head in range(len(found))]:
        return f"tiled; neighbours share one, as in {wanted}"
    if len({found.count(n) for n in found}) > 1:
        return f"not equally many each, as in {wanted}"
    return f"and neighbours share one, as in {wanted}" if wanted else "in no even groups"


class Heads(Property):
    """Which key/value head moves which query head; heads mixed with time.

    Needs: a look inside.
    Fails: a map that is not by neighbours, a wrong count, sight that bends with the length, queries
      for keys; declared causal: no query that attends to its own key.
    """

    name = "heads"
    field = "kv_heads"

    def cases(self, probe: Probe) -> Iterator[Case]:
        if isinstance(probe.subject, Attention):
            yield from self._cases_of_function(probe, probe.subject)
            return
        seen, sizes = visible(probe), {"batch": 2, "length": SEEN_LENGTH}
        if seen:
            yield self.case(probe, landing_fails, **sizes)
            yield from self._own_key(probe)
        yield self.case(probe, length_fails, short=6, length=11, rows=probe.rows(11))
        if seen:
            declared, subject = self.declared(probe), probe.subject
            # of many layers each may have its own number
            own = subject.kv_heads if subject.layers == 1 else None
            how = {"count": probe.contract.heads, "kv_heads": declared or own}
            case = self.case(probe, sharing_fails, **how, tiles=declared is None, **sizes)
            yield replace(case, fixed=(HEADS, KV_HEADS))

    def _own_key(self, probe: Probe) -> Iterator[Case]:
        if probe.contract.causal:
            yield self.case(probe, own_key_fails, batch=2, length=SEEN_LENGTH)

    def excuse(self, probe: Probe) -> Finding | None:
        subject, wanted = probe.subject, (probe.contract.heads, self.declared(probe))
        if isinstance(subject, Attention) and fixed_heads(probe, subject):
            own = (subject.heads, subject.kv_heads)
            if any(one not in (None, two) for one, two in zip(wanted, own, strict=True)):
                called = f"it was called with {own[0]} heads and {own[1]} key/value heads"
                return self.finding("cannot tell", f"{called}, not as declared")
        return super().excuse(probe)

    def _cases_of_function(self, probe: Probe, subject: Attention) -> Iterator[Case]:
        """With its own heads, and with others if it is made for no certain ones."""
        assert subject.heads is not None and subject.kv_heads is not None
        own, talking = (subject.heads, subject.kv_heads), has_weights(probe)
        fixed = fixed_heads(probe, subject)
        count = probe.contract.heads or own[0]
        wanted = (count, self.declared(probe) or count)
        if not fixed and wanted != own:
            yield replace(self.case(probe, refused_fails, length=5), shape=wanted)
        for shape in (own,) if fixed else dict.fromkeys((wanted, own, *SHAPES)):
            variant = Probe(subject.shaped(*shape), probe.contract)
            try:
                tolerance = variant.tolerance
            except (SubjectError, CannotTell):  # it takes no such heads
                if shape == own:
                    raise
                continue
            case = self.case(variant, reading_fails, talking=talking, length=5, tolerance=tolerance)
            yield replace(case, shape=shape)
        yield from self._own_key(probe)

    def run(self, probe: Probe, case: Case) -> Result:
        if case.shape is None or not isinstance(probe.subject, Attention):
            return super().run(probe, case)
        try:
            return case.run(Tools(Probe(probe.subject.shaped(*case.shape), probe.contract)))
        except (SubjectError, CannotTell) as error:
            if case.shape == (probe.subject.heads, probe.subject.kv_heads):
                raise
            return False, f"it takes no such heads: {error}", None

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        if isinstance(probe.subject, Attention):
            return self._passed_function(tried)
        declared = self.declared(probe) is not None or probe.contract.heads is not None
        found = tried[-1][1]
        if tried[-1][0].fails is not sharing_fails:  # out of sight
            if not bool((probe.influence(3) > probe.tolerance).any()):
                detail = f"nothing moves by more than {probe.tolerance:.1g}: rounding explains that"
                return self.finding("cannot tell", detail)
            if declared:
                return self.finding("cannot tell", UNSEEN)
            return self.finding("pass", f"{STEADY}; the heads themselves are out of sight")
        _, sentence, keys = found
        if not keys and declared:  # a gate at 0 in every layer
            return self.finding("cannot tell", UNSEEN)
        detail, count = f"{sentence}; {STEADY}", len(set(keys))
        if keys != neighbours(len(keys), count):
            detail += (
                f"; mind that heads are {describe_map(keys, count)}: declare kv_heads to have it"
            )
        return self.finding("pass", detail, measured=keys)

    def _passed_function(self, tried: list[tuple[Case, Result]]) -> Finding:
        read = [(case.shape, found) for case, (_, _, found) in tried if found is not None]
        if not read:
            return self.finding("cannot tell", OTHER_HEADS)
        grouped = [found for shape, found in read if shape and shape[1] not in (1, shape[0])]
        names = [f"{shape[0]}:{shape[1]}" for shape, _ in read if shape]
        detail = "each query head depends on its own query and on one key/value head"
        shared = len(names) > 1 or len(set(read[0][1])) < len(read[0][1])
        detail += f" (heads {', '.join(names)}); neighbours share" if shared else f" ({names[0]})"
        return self.finding("pass", detail, measured=(grouped or [read[0][1]])[-1])


def fixed_heads(probe: Probe, subject: Attention) -> bool:
    """Whether the code is made for its own number of heads only."""
    return subject.heads != subject.kv_heads or has_weights(probe)


def has_weights(probe: Probe) -> bool:
    module = probe.subject.module
    return module is not None and any(True for _ in module.parameters())


def visible(probe: Probe) -> bool:
    """Whether queries and keys can be observed at work."""
    tools = Tools(probe)
    try:
        return bool(observe(tools.run, probe.draw(2, SEEN_LENGTH), tools.heads, tools.watch))
    except CannotTell:
        return False
