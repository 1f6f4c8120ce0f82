"""Looking inside attention: its weights, its products of queries and keys, and how those turn.

Axes: b batch, h query heads, g key/value heads, t time, d head width; query i, key j.

A function of q, k and v shows everything through its values: with unit vectors for values its
outputs are its weights. A module is watched at work instead: whatever it is made of, it multiplies
queries with keys and weights with values, and these products are seen as they happen. Code that
computes them in a kernel of its own shows nothing, and then nothing is claimed.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.audit.probe.probe import SAFETY, Probe
from attnlab.audit.repro.prelude import CannotTell, Shape, Tool, sample, uncompiled
from attnlab.audit.subject.base import Tokens

UNSEEN = "queries and keys are compared where it cannot be seen"
NO_SOFTMAX = "weights are no softmax of products of queries and keys"
OTHER_HEADS = "it gives another number of heads than that of its queries"
SEEN_LENGTH = 7  # of watched texts: no head is so narrow, so a product's shape tells what it is
WIDEST = 64  # head width up to which every pair of coordinates of a function is tried
CLOSE = 2**-6  # scores that agree so well are meant to agree; tables may be in a half precision


@dataclass(frozen=True)
class Applied:
    """One application of attention as it was seen: q and k as they are compared."""

    q: Tensor  # [b, h, t, d]
    k: Tensor  # [b, h, t, d]; heads that share one are equal
    v: Tensor  # [b, h, t, e]
    weights: Tensor  # [b, h, t, t]
    linear: tuple[Tensor, ...]  # results of the linear layers before it, [rows, width]
    numbers: tuple[int, ...] = ()  # of its products of queries and keys, as a watch counts them


def observe(
    run: Tool,
    x: Tensor,
    heads: Shape | None,
    watch: Any,
    first: int = 0,
    gain: float = 1.0,
    at: tuple[int, ...] = (),
) -> list[Applied]:
    """Every application of attention: of a function by values that are unit vectors, of a module by
    watching it, row after row so that rows and heads are not taken for each other. Of a function
    the weights are those of keys from `first` on. With a `gain` products of queries and keys are so
    many times larger: of a module those whose numbers are `at`."""
    length = x.shape[1]
    if heads is not None:
        h, g, d = heads
        q, k, v = x.unflatten(-1, (-1, d)).transpose(1, 2).split([h, g, g], dim=1)
        shown = []
        for start in range(first, length, d):
            unit, count = torch.zeros_like(v), min(d, length - start)
            unit[:, :, start : start + count, :count] = torch.eye(count, dtype=x.dtype)
            out = run(torch.cat((gain * q, k, unit), dim=1).transpose(1, 2).flatten(2))
            if out.shape[-1] != h * d:
                raise CannotTell(OTHER_HEADS)
            shown.append(out.unflatten(-1, (-1, d)).transpose(1, 2)[..., :count])
        return [Applied(q=q, k=k, v=v, weights=torch.cat(shown, dim=-1), linear=())]
    rows = []
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it would be one opaque operation
    try:
        for row in x.split(1):
            noted = watch(length, gain, at)
            with sdpa_kernel(SDPBackend.MATH), uncompiled(), noted:
                run(row)
            rows.append((noted.found, noted.linear_before))
            numbers = noted.numbers
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    shapes = {tuple(part.shape for one in found for part in one) for found, _ in rows}
    if len(shapes) > 1 or shapes == {()}:
        raise CannotTell(UNSEEN)
    seen = []
    for layer in range(len(rows[0][0])):
        every = (torch.stack([one[layer][n] for one, _ in rows]).cpu() for n in range(4))
        q, k, v, weights = every
        linear = tuple(one.cpu() for _, before in rows for one in before[layer])
        seen.append(Applied(q=q, k=k, v=v, weights=weights, linear=linear, numbers=numbers[layer]))
    return seen


def differ(one: Tensor, other: Tensor) -> Tensor:
    """Where two tensors of vectors [..., d] differ by more than the order of sums explains."""
    eps = torch.finfo(one.dtype).eps
    return (one - other).abs().amax(-1) > 16 * eps * float(one.abs().max())


def constant(probe: Probe, rows: int, length: int) -> Tensor:
    """Texts that say the same at every position, another thing in every row."""
    x = probe.draw(rows, 1, 3)
    if isinstance(probe.subject, Tokens):  # from the end: the first ones may be special
        x = (probe.subject.width - 1 - torch.arange(rows) % probe.subject.width)[:, None]
    return x.expand(-1, length, *x.shape[2:]).clone()


def join(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Inputs of a function, side by side."""
    return torch.cat((q, k, v), dim=1).transpose(1, 2).flatten(2)


def weights_of(run: Tool, q: Tensor, k: Tensor, heads: Shape, dtype: torch.dtype) -> Tensor:
    """The weights [b, h, t, t] of a function."""
    x = join(q, k, torch.zeros_like(k)).to(dtype)
    return observe(run, x, heads, None)[0].weights.double()


@dataclass(frozen=True)
class Forms:
    """Scores as products: score[i, j] = q[i] · matrix[i, j] · k[j] + bias[i, j].

    Entries that cannot be known are NaN. The bias is against that of the query's own key.
    """

    matrix: Tensor  # [h, t, t, d, d]
    bias: Tensor  # [h, t, t]
    floor: float  # what they are exact to


def forms_of(
    run: Tool, heads: Shape, dtype: torch.dtype, length: int = SEEN_LENGTH
) -> Forms | None:
    """Of a function: from its weights for all pairs of unit vectors; None if it has no such form.

    Every second key is 0, and each other key is compared with its neighbour, so that windows
    hide nothing.
    """
    h, g, width = heads
    if width > WIDEST:
        return None
    unit = torch.eye(width, dtype=torch.float64)
    pairs = width * width
    q = unit.repeat_interleave(width, 0)[:, None, None].expand(-1, h, length, -1)
    k = unit.repeat(width, 1)[:, None, None].expand(-1, g, length, -1)
    odd = (torch.arange(length) % 2).double()[:, None]
    queries = torch.cat((q, q, q[:1] * 0))
    keys = torch.cat((k * odd, k * (1 - odd), k[:1] * 0))
    weights = weights_of(run, queries, keys, heads, dtype)
    logs, floor = weights.log(), grain(weights, floor_of(dtype))
    plain = logs[-1]
    beside = torch.tensor([1, *range(length - 1)])
    against = (logs - logs[..., beside]) - (plain - plain[..., beside])
    scores = torch.where(odd[:, 0].bool(), against[:pairs], against[pairs:-1])
    matrix = scores.unflatten(0, (width, width)).permute(2, 3, 4, 0, 1)
    matrix = torch.where(matrix.isfinite(), matrix, torch.nan)
    bias = plain - plain.diagonal(dim1=-2, dim2=-1)[..., None]
    forms = Forms(matrix, torch.where(bias.isfinite(), bias, torch.nan), floor)
    return forms if _holds(run, heads, dtype, forms, length) else None


def _holds(run: Tool, heads: Shape, dtype: torch.dtype, forms: Forms, length: int) -> bool:
    """Whether other queries and keys have the scores that the form says."""
    h, g, width = heads
    one, other = (sample((2, 1, length, width), None, seed, torch.float64) for seed in (21, 22))
    q, k = one.expand(-1, h, -1, -1), other.expand(-1, g, -1, -1)
    logs = weights_of(run, q, k, heads, dtype).log()
    said = torch.einsum("bid,hijde,bje->bhij", q[:, 0], forms.matrix, k[:, 0]) + forms.bias
    off = (logs - logs[..., :, :1]) - (said - said[..., :, :1])
    off = off[off.isfinite()]
    return bool(off.numel()) and float(off.abs().max()) < 10 * forms.floor


def floor_of(dtype: torch.dtype) -> float:
    """What is left of a precision after logarithms, differences and quotients."""
    return math.sqrt(torch.finfo(dtype).eps)


def grain(weights: Tensor, floor: float) -> float:
    """The same, for what follows from weights: code may keep them in float32, and often does."""
    if torch.equal(weights.float().double(), weights.double()):
        return max(floor, math.sqrt(torch.finfo(torch.float32).eps))
    return floor


def least(floor: float) -> float:
    """The smallest part of a measured number that is not rounding: eps^(3/4), from √eps."""
    return floor**1.5


def scale_seen(one: Applied, floor: float, slope: float | None = None) -> float | str:
    """From what the linear layers gave, what was multiplied, and what the weights say.

    A `slope` is between products and scores, where it was measured otherwise."""
    stretched = [
        [
            _stretch(part[row, head, 0], one.linear, floor)
            for row in range(2)
            for head in (0, part.shape[1] - 1)
        ]
        for part in (one.q, one.k)
    ]
    factor = 1.0
    for found in stretched:
        known = [value for value in found if value is not None]
        if len(known) < len(found):
            return "queries or keys are changed between the linear layers and their product"
        if max(known) - min(known) > 100 * floor * max(known):
            return "queries or keys are normalised: their products have no scale of their own"
        factor *= known[0]
    after = _after(one, grain(one.weights, floor)) if slope is None else slope
    if after is None:
        return NO_SOFTMAX
    return factor * after


def _stretch(vector: Tensor, linear: tuple[Tensor, ...], floor: float) -> float | None:
    """How much longer a vector [d] is than the linear layers gave it; None if they did not.

    Asked of position 0, where rotations leave a vector as it is.
    """
    wanted = vector.double()
    length = float(wanted.norm())
    for given in reversed(linear):
        if given.shape[1] < len(wanted):
            continue
        slices = given.double().unfold(1, len(wanted), 1)  # [rows, starts, d]
        sizes = slices.norm(dim=-1)
        hit = (sizes > 0) & ((slices @ wanted - sizes * length).abs() <= floor * sizes * length)
        if hit.any():
            return length / float(sizes[hit][0])
    return None


def _after(one: Applied, floor: float) -> float | None:
    """The factor between products and logarithms of weights, if it is one number.

    From differences within rows, and of those between two texts: a bias by distance cancels.
    """

    def differences(scores: Tensor) -> Tensor:
        within = scores - scores.diagonal(dim1=-2, dim2=-1)[..., None]
        return within[0] - within[1]

    y = differences(one.weights.double().log())
    x = differences(one.q.double() @ one.k.double().mT)
    known = y.isfinite() & (x != 0)
    if not known.any():
        return None
    x, y = x[known], y[known]
    factor = float((x * y).sum() / (x * x).sum())
    return factor if float((y - factor * x).abs().max()) < 10 * floor * (1 + abs(factor)) else None


def maps_seen(vectors: Tensor, floor: float) -> Tensor | None:
    """How the vectors [b, t, d] of equal content come from those at position 0: [t, d, d].

    Each coordinate is explained by itself and one other; None if one cannot be, or all are 0.
    """
    vectors = vectors.double()
    first, width = vectors[:, 0], vectors.shape[2]
    size = float(vectors.abs().max())
    if size == 0:
        return None
    made = torch.zeros(vectors.shape[1], width, width, dtype=torch.float64)
    for m in range(width):
        if float((vectors[:, :, m] - first[:, None, m]).abs().max()) <= least(floor) * size:
            made[:, m, m] = 1
            continue
        other = [n for n in range(width) if n != m]
        both = torch.stack((first[:, m, None].expand(-1, width - 1), first[:, other]), -1)
        both = both.transpose(0, 1)  # [other, b, 2]
        wanted = vectors[:, :, m].expand(width - 1, -1, -1)
        parts = torch.linalg.lstsq(both, wanted).solution  # [other, 2, t]
        left = (both @ parts - wanted).abs().amax((1, 2))
        best = int(left.argmin())
        if float(left[best]) > 10 * floor * size:
            return None
        made[:, m, m], made[:, m, other[best]] = parts[best]
    return made


@dataclass(frozen=True)
class Turning:
    """How the product of query and key depends on their places.

    `uneven` is how far equal distances are from equal products, as a part of the product.
    """

    uneven: float
    still: bool  # it does not depend on them at all
    plain: bool  # a query's own key is compared as it is
    paired: bool  # each coordinate mixes with one other at most: as if it turned
    pairs: tuple[tuple[int, int], ...] = ()  # of coordinates that mix
    frequencies: tuple[float, ...] = ()  # by pair, in radians a position
    width: int = 0
    limit: float = 0.0  # the slowest frequency that can be seen

    @property
    def count(self) -> int:
        """Of pairs, with those that turn too slowly to be seen."""
        seen, found = len(self.pairs), self.frequencies
        apart = {n - m for m, n in self.pairs}
        if seen > 1 and len(apart) == 1 and min(apart) > 1:
            return min(apart)  # half-split: the distance of partners
        if seen > 1 and found[-1] ** 2 / found[-2] < 2 * self.limit:
            return (self.width - self.pairs[0][0]) // 2
        return seen

    @property
    def relative(self) -> bool:
        return self.uneven < CLOSE

    @property
    def fraction(self) -> float:
        return 2 * self.count / self.width

    @property
    def layout(self) -> str | None:
        """None where two coordinates could be either, or the pairs are of another kind."""
        if len(self.pairs) < 2:
            return None
        first, count = self.pairs[0][0], self.count
        if all(pair == (first + n, first + n + count) for n, pair in enumerate(self.pairs)):
            return "half-split"
        if all(pair == (first + 2 * n, first + 2 * n + 1) for n, pair in enumerate(self.pairs)):
            return "interleaved"
        return None

    @property
    def base(self) -> float | None:
        """Of frequencies 1, base^(-1/n), base^(-2/n) …; None for others."""
        found, seen = self.frequencies, len(self.frequencies)
        if seen < 2 or abs(found[0] - 1) > 1e-3 or min(found) <= 0:
            return None
        base = (found[0] / found[-1]) ** (self.count / (seen - 1))
        wanted = [base ** (-n / self.count) for n in range(seen)]
        near = all(abs(a / b - 1) < 1e-2 for a, b in zip(found, wanted, strict=True))
        return base if near else None


def turning(matrix: Tensor, floor: float) -> Turning | None:
    """What forms [t, t, d, d] of one head do; None if too few of them are known."""
    length, width = len(matrix), matrix.shape[-1]
    known = ~matrix.isnan().flatten(2).any(-1)
    own = matrix.diagonal(dim1=0, dim2=1)[..., known.diagonal()]
    if not own.shape[-1]:
        return None
    size = float(own.diagonal(dim1=0, dim2=1).mean())
    # a factor by the query's own position is a temperature, and says nothing of where keys are
    factors = matrix.diagonal(dim1=0, dim2=1).diagonal(dim1=0, dim2=1).mean(-1).nan_to_num(size)
    if float(factors.abs().min()) > floor:
        matrix = matrix * (size / factors)[:, None, None, None]
    # where scores only go down to the own key, those before it are what is known of a distance
    by_distance = [
        torch.stack([matrix[i, i - far] for i in range(far, length) if known[i, i - far]])
        for far in range(length)
        if any(known[i, i - far] for i in range(far, length))
    ]
    if len(by_distance) < 2 or abs(size) < floor:
        return None
    first = by_distance[0][0]
    largest = float(matrix[known].abs().max())
    uneven = max(float((one - one[0]).abs().max()) for one in by_distance) / largest
    still = float((matrix[known] - first).abs().max()) <= 10 * floor * largest
    plain = float((by_distance[0] / size - torch.eye(width)).abs().max()) < CLOSE
    mixed = (matrix[known].abs() > floor * largest).any(0) & ~torch.eye(width, dtype=torch.bool)
    paired = bool((mixed.sum(1) <= 1).all())
    if still or not plain:
        return Turning(uneven, still, plain, paired, width=width)
    near, far = by_distance[1][0] / size, by_distance[-1][0] / size
    mixes = (far - far.diagonal().diag()).abs()
    pairs = []
    for m in range(width):
        n = int(mixes[m].argmax())
        if n > m and float(mixes[m, n]) > least(floor) and int(mixes[n].argmax()) == m:
            pairs.append((m, n))
    angles = [abs(math.atan2(float(near[n, m]), float(near[m, m]))) for m, n in pairs]
    limit = least(floor) / (len(by_distance) - 1)
    return Turning(uneven, still, plain, paired, tuple(pairs), tuple(angles), width, limit)


def unlike(queries: Tensor, keys: Tensor) -> bool:
    """Whether the maps [t, d, d] of queries and keys turn the two of a pair by different angles.

    A norm after the rotation, with a weight for each coordinate, does not count: it leaves the
    cosines as they are, and is somebody's choice.
    """
    own = queries.diagonal(dim1=1, dim2=2)
    theirs = keys.diagonal(dim1=1, dim2=2)
    mixes = (queries.abs() + keys.abs()).amax(0).fill_diagonal_(0)
    partners = mixes.argmax(1)
    turned = mixes.amax(1) > CLOSE
    back = queries.gather(2, partners.expand(len(queries), -1)[..., None])
    forth = keys.gather(2, partners.expand(len(keys), -1)[..., None])
    angles = (own - own[:, partners]).abs() > 4 * CLOSE
    sides = ((own - theirs).abs() > 4 * CLOSE) | ((back * forth)[..., 0] < -CLOSE)
    return bool(((angles | sides) & turned).any())


def strip_weights(maps: Tensor) -> Tensor:
    """Maps [t, d, d] of turned pairs, without a weight for each coordinate that came after."""
    cosines = maps.diagonal(dim1=1, dim2=2).diag_embed()
    sines = maps - cosines
    return cosines + sines.sign() * (sines.abs() * sines.abs().mT).sqrt()


def turned_heads(
    one: Applied, start: int, floor: float
) -> tuple[list[Turning | None], bool, int | None]:
    """How queries and keys turn from position `start` on, head by head, and whether a weight for
    each coordinate came after; a head whose vectors do not turn ends it, and is given."""
    turned: list[Turning | None] = []
    bent = False
    for head in range(one.q.shape[1]):
        queries, keys = (maps_seen(part[:, head, start:], floor) for part in (one.q, one.k))
        if queries is None or keys is None:
            return turned, bent, head
        wrong = unlike(queries, keys)
        if not wrong:
            plain, queries, keys = queries, strip_weights(queries), strip_weights(keys)
            bent |= float((plain - queries).abs().max()) > CLOSE / 4
        form = turning(torch.einsum("imd,jme->ijde", queries, keys), floor)
        turned.append(form and replace(form, paired=wrong))
    return turned, bent, None


def slack(length: int) -> float:
    """What angles in float32, which is good practice, leave open at so many positions."""
    return SAFETY * torch.finfo(torch.float32).eps * length
