"""What repeats a failure by a look inside: at weights, heads, scales and positions.

Printed into scripts as those of `audit/repro/comparing.py` are, with what watches a module.

Axes: b batch, h query heads, g key/value heads, t time, d head width; query i, key j.
"""

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.audit.probe.identify import Applied, scale_seen
from attnlab.audit.repro.prelude import moved, replaced


def looked(ask: Any, x: Any, heads: Any, watch: Any) -> list[Applied]:
    """Every application of attention: of a function by values that are unit vectors, of a module by
    watching it, row after row so that rows and heads are not taken for each other."""
    length = x.shape[1]
    if heads is not None:
        h, g, d = heads
        q, k, v = x.unflatten(-1, (-1, d)).transpose(1, 2).split([h, g, g], dim=1)
        shown = []
        for start in range(0, length, d):
            unit, count = torch.zeros_like(v), min(d, length - start)
            unit[:, :, start : start + count, :count] = torch.eye(count, dtype=x.dtype)
            out = ask(torch.cat((q, k, unit), dim=1).transpose(1, 2).flatten(2))
            shown.append(out.unflatten(-1, (-1, d)).transpose(1, 2)[..., :count])
        return [Applied(q=q, k=k, v=v, weights=torch.cat(shown, dim=-1), linear=())]
    rows = []
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it would be one opaque operation
    try:
        for row in x.split(1):
            noted = watch(length)
            with sdpa_kernel(SDPBackend.MATH), noted:
                ask(row)
            rows.append((noted.found, noted.linear_before))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    found = []
    for layer in range(len(rows[0][0])):
        q, k, v, weights = (torch.stack([one[layer][n] for one, _ in rows]) for n in range(4))
        linear = tuple(one for _, before in rows for one in before[layer])
        found.append(Applied(q=q, k=k, v=v, weights=weights, linear=linear))
    if not found:
        raise ValueError("queries and keys are compared where it cannot be seen")
    return found


def reading_fails(
    ask: Any, draw: Any, heads: Any, *, batch: int, length: int, seed: int, tolerance: float
) -> tuple[bool, str]:
    """Change one key/value head: those query heads move that share it. Change one query: no other
    head moves at another place."""
    h, g, d = heads
    if length < 2:
        raise ValueError("with one key its weight is 1 whatever it is")
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    before = ask(x)

    def moves(head: int, places: slice) -> list[list[int]]:
        """Heads and positions that move with part `head` of the inputs."""
        changed, own = x.clone(), slice(head * d, (head + 1) * d)
        changed[:, places, own] = other[:, places, own]
        change = torch.nan_to_num(ask(changed) - before, nan=float("inf")).abs()
        found = change.unflatten(-1, (h, d)).amax((0, 3)) > tolerance
        return [[head, at] for at, head in found.nonzero().tolist()]

    for first, what in ((h, "keys"), (h + g, "values")):
        reads: list[list[int]] = [[] for _ in range(h)]
        for head in range(g):
            for one in {one for one, _ in moves(first + head, slice(0, length))}:
                reads[one].append(head)
        wanted = [[head // (h // g)] for head in range(h)]
        if reads != wanted:
            return True, f"{h} query heads read the {what} of heads {reads}, not {wanted}"
    for head in range(h):
        for token in range(length):
            for one, at in moves(head, slice(token, token + 1)):
                if one != head and at != token:
                    seen = f"the query of head {head} at {token} moves head {one} at {at}"
                    return True, seen
    return False, f"{h} query heads read {g} key/value heads, neighbours the same"


def sharing_fails(
    ask: Any,
    draw: Any,
    heads: Any,
    watch: Any,
    *,
    wanted: int | None,
    count: int | None,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Heads whose keys are equal share a key/value head: neighbours do, and so many there are."""
    for one in looked(ask, draw(batch, length, seed), heads, watch):
        groups = []
        for parts in (one.k[0], one.v[0]):
            first = [next(n for n, b in enumerate(parts) if torch.equal(a, b)) for a in parts]
            groups.append([sorted(set(first)).index(n) for n in first])
        keys, values = groups
        h, g = len(keys), wanted or max(keys) + 1
        told = f"{h} heads read keys {keys}" + (f" and values {values}" if values != keys else "")
        if count is not None and h != count:
            return True, f"{told}; there must be {count} heads"
        even = [head // (h // g) for head in range(h)] if h % g == 0 else []
        if keys != even or (values != keys and max(values) > 0 and max(keys) > 0):
            return True, f"{told}; neighbours must share one of {g}, as in {even}"
    return False, told


def landing_fails(
    ask: Any,
    draw: Any,
    heads: Any,
    watch: Any,
    *,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Change one input: the queries, keys and values of every head change at its place."""
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    before = looked(ask, x, heads, watch)[0]
    for at in range(1, length - 1):
        after = looked(ask, replaced(x, other, at, at), heads, watch)[0]
        for what in ("q", "k", "v"):
            change = (getattr(after, what) - getattr(before, what)).abs().amax((0, 3)) > tolerance
            # some code gives a head the token before instead of its own
            lost = ~change[:, at : at + 3].any(1)
            if bool(change.any()) and bool(lost.any()):
                lands = change.any(0).nonzero().flatten().tolist()
                seen = f"the {what} of input {at} is not in head {int(lost.nonzero()[0])} at {at}"
                return True, f"{seen}; it is at {lands} of some heads: heads and time are mixed"
    return False, "every head has the queries, keys and values of an input at its place"


def bending_fails(
    ask: Any, draw: Any, *, short: int, batch: int, length: int, seed: int, tolerance: float
) -> tuple[bool, str]:
    """Who moves whom among the first so many does not depend on how long the text is."""
    found = []
    for size in (short, length):
        x, seen = draw(1, size, seed), torch.zeros(short, short, dtype=torch.bool)
        before = ask(x)
        for place in range(short):
            for other in (100, 200):
                changed = replaced(x, draw(1, size, seed + other), place, place)
                seen[:, place] |= moved(ask(changed), before)[0, :short] > tolerance
        found.append(seen)
    wrong = (found[0] != found[1]).nonzero().tolist()
    if not wrong:
        return False, f"who moves whom is the same in texts of {short} and of {length}"
    i, j = wrong[0]
    one, other = (short, length) if bool(found[0][i, j]) else (length, short)
    return True, f"input {j} moves output {i} in a text of {one}, and not in one of {other}"


def scale_fails(
    ask: Any,
    draw: Any,
    heads: Any,
    watch: Any,
    *,
    wanted: float | None,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """The factor on query · key: the one that is wanted, or any but 1/√(heads · head width)."""
    x = draw(2, length, seed)
    if heads is not None:
        h, g, d = heads
        scores = []
        for size in (1.0, 0.0):  # without a query a bias is left
            text = x.clone()
            text[..., : h * d] *= size
            text[:, 0, h * d : (h + g) * d] = 0  # the first key; the second is the query's own
            one = looked(ask, text, heads, watch)[0]
            logs = one.weights[:, :, 1].double().log()
            scores.append(logs[:, :, 1] - logs[:, :, 0])
        keys = one.k[:, :, 1].repeat_interleave(h // g, dim=1)
        queries = x[:, 1, : h * d].unflatten(-1, (h, d))
        found = float(((scores[0] - scores[1]) / (queries * keys).sum(-1)).median())
    else:
        one = looked(ask, x, heads, watch)[0]
        seen = scale_seen(one, torch.finfo(one.q.dtype).eps ** 0.5)
        if isinstance(seen, str):
            raise ValueError(seen)
        found, h, d = seen, one.q.shape[1], one.q.shape[3]
    told = f"scores are {found:.4g} times query · key, with {h} heads of width {d}"
    if wanted is not None:
        return abs(found - wanted) > 1e-3 * abs(found), f"{told}; {wanted:.4g} is wanted"
    model, own = (abs(found * width**0.5 - 1) < 1e-3 for width in (h * d, d))
    return model and not own, told


def weights_fails(
    ask: Any,
    draw: Any,
    heads: Any,
    watch: Any,
    *,
    what: str,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Weights are 0 after the query, or add up to 1 over the keys."""
    worst, seen = 0.0, "no weights"
    for one in looked(ask, draw(batch, length, seed), heads, watch):
        weights = torch.nan_to_num(one.weights.double(), nan=float("inf"))
        if what == "future":
            after = weights.triu(1).abs()
            size = float(after.max())
            _, head, i, j = (after == size).nonzero()[0].tolist()
            text = f"query {i} of head {head} gives {size:.3g} to key {j}, after it"
            limit = 16 * torch.finfo(one.weights.dtype).eps
        else:
            sums = weights.sum(-1)
            size = float((sums - 1).abs().max())
            _, head, i = ((sums - 1).abs() == size).nonzero()[0].tolist()
            text = f"weights of query {i} of head {head} add up to {float(sums[0, head, i]):.4g}"
            limit = 2.0**-8
        if size >= worst:
            worst, seen = size, text
    return worst > limit, seen


def positions_fails(
    ask: Any,
    draw: Any,
    heads: Any,
    watch: Any,
    *,
    what: str,
    rotary: tuple[Any, Any, Any],
    slopes: list[float],
    layer: int,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """A text that says the same everywhere: what differs in it comes of positions alone."""
    close = 2.0**-6  # of their size; tables may be in a half precision
    x = draw(batch, 1, seed)
    x = x.expand(-1, length, *x.shape[2:]).clone()
    if what in ("added", "not added"):
        out = ask(x)
        size = float((out - out[:, :1]).abs().max())
        text = f"outputs of a text that says the same everywhere differ by {size:.2g}"
        return (size > tolerance) != (what == "added"), text
    found = looked(ask, x, heads, watch)
    one = found[min(layer, len(found) - 1)]
    logs = one.weights.double().log()
    table = logs - logs.diagonal(dim1=-2, dim2=-1)[..., None]  # against the query's own key
    table = torch.where(table.isfinite(), table, 0).tril()
    floor, size = 10 * torch.finfo(one.weights.dtype).eps ** 0.5, float(table.abs().max())
    far = (torch.arange(length)[:, None] - torch.arange(length)).clamp(min=0)
    if what == "none":
        return size > floor, f"scores differ by up to {size:.2g} between positions"
    if what == "falling":
        grows = float(table.max())
        return grows > floor, f"scores grow by up to {grows:.2g} with the distance"
    if what == "alibi":
        assert table.shape[1] == len(slopes), "slopes are of another number of heads"
        line = -torch.tensor(slopes, dtype=torch.float64)[:, None, None] * far
        first = [-round(float(table[0, head, 1, 0]), 6) for head in range(table.shape[1])]
        off = (table - line).abs() > floor + 1e-2 * line.abs()
        return bool(off.any()), f"the bias falls by {first} (by head), and {slopes} is right"
    by_distance = [table.diagonal(-n, -2, -1) for n in range(length - 1)]
    uneven = max(float((one - one[..., :1]).abs().max()) for one in by_distance)
    text = f"at equal distances scores differ by {uneven:.2g}, of {size:.2g}"
    if uneven > max(close * size, floor):
        return True, text
    if what == "relative":
        return False, text
    if size <= floor:
        return True, "scores do not depend on positions: nothing turns"
    return turned_otherwise(one, table, heads, rotary, close)


def turned_otherwise(
    one: Applied, table: Any, heads: Any, rotary: tuple[Any, Any, Any], close: float
) -> tuple[bool, str]:
    """Whether scores are not those of queries and keys that turn as it is declared."""
    layout, base, fraction = rotary
    q, k = one.q[:, :, 0].double(), one.k[:, :, 0].double()  # at 0 nothing has turned
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    width, length = q.shape[-1], table.shape[-1]
    count = int(width * (fraction or 1.0)) // 2
    best = float("inf")
    for kind in [layout] if layout else ["half-split", "interleaved"]:
        n = torch.arange(count)
        first, second = (n, n + count) if kind == "half-split" else (2 * n, 2 * n + 1)
        # what two coordinates add at each distance is a cosine of it; its speed is the base's
        real = q[..., first] * k[..., first] + q[..., second] * k[..., second]
        cross = q[..., first] * k[..., second] - q[..., second] * k[..., first]
        for speed in [base] if base else [1e4, 5e5, 1e6, 1e3, 100.0]:
            angles = torch.arange(length)[:, None] * speed ** (-n.double() / count)
            for sign in (1, -1):  # turning backwards is as good
                by_far = torch.einsum("bhn,tn->bht", real, angles.cos() - 1)
                by_far = by_far + sign * torch.einsum("bhn,tn->bht", cross, angles.sin())
                seen = table[..., -1, :].flip(-1)
                factor = float((by_far * seen).sum() / by_far.square().sum())
                off = float((seen - factor * by_far).abs().max() / seen.abs().max())
                best = min(best, off)
    what = ", ".join(str(part) for part in (layout, base, fraction) if part) or "pairs"
    return best > 4 * close, f"scores differ by {best:.2g} of their size from rotations ({what})"


def drift_fails(
    tell: Any,
    draw: Any,
    code: Any,
    heads: Any,
    watch: Any,
    *,
    start: int,
    word: str,
    dtype: str,
    batch: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Far from the beginning scores of near keys are those at the beginning."""
    precision, span = getattr(torch, dtype), 7
    module = isinstance(code, torch.nn.Module)
    before = next(iter(code.parameters())).dtype if module else precision
    state = {name: one.clone() for name, one in code.state_dict().items()} if module else {}
    if module and before is not precision:
        code.to(precision)
    ends = []
    try:
        for begin in (0, start):
            length = span if word else begin + span
            x = draw(batch, 1, seed)
            x = x.to(precision) if x.is_floating_point() else x
            x = x.expand(-1, length, *x.shape[2:]).clone()
            given = {word: (begin + torch.arange(span))[None]} if word else {}
            one = looked(lambda x, given=given: tell(x, **given), x, heads, watch)[0]
            if heads is not None:
                logs = one.weights[:, :, -1, -span:].double().log()
                ends.append(logs - logs[..., -1:])
            else:
                q, k = one.q[:, :, -1:].double(), one.k[:, :, -span:].double()
                ends.append((q @ k.mT)[:, :, 0] - (q @ k.mT)[:, :, 0, -1:])
    finally:
        if module and before is not precision:
            code.to(before)
            code.load_state_dict(state)
    size = float(ends[0].abs().max())
    off = float((ends[1] - ends[0]).abs().max()) / (size or 1.0)
    return off > 0.1, f"from position {start} on scores differ by {off:.2g} of their size"
