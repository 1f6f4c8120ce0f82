"""What the kernels share, as functions that Triton compiles into them.

A tile is of rows (queries) by columns (keys), or the other way round. Scores are kept in one of
two units: as plain products of queries and keys, to be multiplied by `scale / ln 2` inside exp2;
or, where a cap or a bias bends them, as scores divided by ln 2.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(x · LOG2E), and exp2 is what chips have
LARGEST = tl.constexpr(3.4028234663852886e38)  # of float32: infinite scores count as this


@triton.jit
def product(a, b, sums, PRECISION: tl.constexpr):
    return tl.dot(a, b, sums, input_precision=PRECISION)


@triton.jit
def rows_at(x, offsets, kept, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Rows at these offsets, 0 where they are not kept and past their width."""
    columns = tl.arange(0, PADDED)
    pointers = x + (offsets[:, None] + columns[None, :])
    mask = kept[:, None]
    if PADDED != WIDTH:
        mask = mask & (columns < WIDTH)[None, :]
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def write_rows_at(x, offsets, kept, tile, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)
    pointers = x + (offsets[:, None] + columns[None, :])
    mask = kept[:, None]
    if PADDED != WIDTH:
        mask = mask & (columns < WIDTH)[None, :]
    tl.store(pointers, tile.to(x.dtype.element_ty), mask=mask)


@triton.jit
def tile_of(
    x,
    batch,
    head,
    start,
    stride,
    kept,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    DESCRIBED: tl.constexpr,
):
    """Consecutive rows from `start` on, of a pointer to its head or of a descriptor of everything.

    A descriptor gives zeros past the last row; a pointer needs `kept` there (None: all are).
    """
    if DESCRIBED:
        return tl.reshape(x.load([batch, head, start, 0]), (ROWS, PADDED))
    else:
        rows = tl.arange(0, ROWS)
        columns = tl.arange(0, PADDED)
        base = x + tl.cast(start, tl.int64) * stride
        pointers = base + (rows[:, None] * stride + columns[None, :])
        if kept is None:
            if PADDED == WIDTH:
                return tl.load(pointers)
            else:
                return tl.load(pointers, mask=(columns < WIDTH)[None, :], other=0.0)
        else:
            mask = kept[:, None]
            if PADDED != WIDTH:
                mask = mask & (columns < WIDTH)[None, :]
            return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def keys_of_rows(ranges, rows, kept, queries, keys, before, after):
    """For each query the first key it attends to, the one after the last, and its position."""
    if ranges is None:
        at = rows + (keys - queries)
        first = tl.maximum(at - before, 0)
        end = tl.minimum(at + after + 1, keys)
    else:
        first = tl.load(ranges + 3 * rows, mask=kept, other=0)
        end = tl.load(ranges + 3 * rows + 1, mask=kept, other=0)
        at = tl.load(ranges + 3 * rows + 2, mask=kept, other=0)
    return first, end, at


@triton.jit
def keys_of_tile(ranges, start, stop, queries, keys, before, after, COLUMNS: tl.constexpr):
    """Which keys any of the queries [start, stop) attend to, and which all of them do.

    Four bounds: [low, left) and [right, high) need a mask, [left, right) does not. All but the
    last are multiples of COLUMNS.
    """
    if ranges is None:
        shift = keys - queries
        low = tl.maximum(start + shift - before, 0)
        all_from = tl.maximum(stop - 1 + shift - before, 0)
        all_to = tl.maximum(tl.minimum(start + shift + after + 1, keys), 0)
        high = tl.maximum(tl.minimum(stop + shift + after, keys), 0)
    else:
        low = tl.load(ranges + 3 * start)
        all_to = tl.load(ranges + 3 * start + 1)
        all_from = tl.load(ranges + 3 * (stop - 1))
        high = tl.load(ranges + 3 * (stop - 1) + 1)
    low = low // COLUMNS * COLUMNS
    high = tl.maximum(high, low)
    left = tl.minimum(tl.cdiv(all_from, COLUMNS) * COLUMNS, high)
    right = tl.maximum(tl.minimum(all_to // COLUMNS * COLUMNS, high), left)
    return low, left, right, high


@triton.jit
def queries_of_tile(seen_by, tile, start, stop, queries, keys, before, after, ROWS: tl.constexpr):
    """Which queries attend to any of the keys [start, stop), and which to all: four bounds too."""
    if seen_by is None:
        shift = keys - queries
        low = tl.maximum(start - after - shift, 0)
        high = tl.minimum(stop + before - shift, queries)
        all_from = tl.maximum(stop - 1 - after - shift, 0)
        all_to = tl.maximum(tl.minimum(start + before - shift + 1, queries), 0)
    else:
        low = tl.load(seen_by + 4 * tile)
        high = tl.load(seen_by + 4 * tile + 1)
        all_from = tl.load(seen_by + 4 * tile + 2)
        all_to = tl.load(seen_by + 4 * tile + 3)
    low = low // ROWS * ROWS
    high = tl.maximum(high, low)
    left = tl.minimum(tl.cdiv(all_from, ROWS) * ROWS, high)
    right = tl.maximum(tl.minimum(all_to // ROWS * ROWS, high), left)
    return low, left, right, high


@triton.jit
def tangent(x):
    """tanh: a continued fraction where the usual form would cancel."""
    square = x * x
    below = 11 + square / 13
    below = 9 + square / below
    below = 7 + square / below
    below = 5 + square / below
    below = 3 + square / below
    near = x / (1 + square / below)
    decay = tl.exp2(-2 * LOG2E * tl.abs(x))
    far = (1 - decay) / (1 + decay)
    return tl.where(tl.abs(x) < 0.6, near, tl.where(x < 0, -far, far))


@triton.jit
def bent(scores, away, slope, table, zero, table_size, scale, cap, CAPPED: tl.constexpr):
    """Products of queries and keys as scores divided by ln 2, and the derivative of the cap.

    `away` is how far a key stands after its query.
    """
    scores = scores * scale
    bend = scores
    if CAPPED:
        part = tangent(scores / cap)
        scores = part * cap
        bend = 1 - part * part
    if slope is not None:
        scores -= slope * tl.abs(away).to(tl.float32)
    if table is not None:
        column = tl.minimum(tl.maximum(zero + away, 0), table_size - 1)
        scores += tl.load(table + column)
    return scores * LOG2E, bend


@triton.jit
def weights_from(scores, most, unit, SAFE: tl.constexpr):
    """exp of how far scores are below the largest; subtracting first keeps large ones exact."""
    below = (scores - most) * unit
    if SAFE:  # an infinite score is above the largest number
        below = tl.minimum(below, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.exp2(below)


@triton.jit
def turned(
    x,
    cos,
    sin,
    places,
    kept,
    PADDED: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BACK: tl.constexpr,
):
    """Rows of x turned by the angles of their places, or turned back; in float32."""
    columns = tl.arange(0, PADDED)
    if INTERLEAVED:
        pair = columns // 2
        partner = columns ^ 1
        first = columns % 2 == 0
    else:
        pair = columns % PAIRS
        first = columns < PAIRS
        partner = tl.where(first, columns + PAIRS, columns - PAIRS)
    turns = columns < 2 * PAIRS
    partner = tl.where(turns, partner, columns)
    x = x.to(tl.float32)
    other = tl.gather(x, tl.broadcast_to(partner[None, :], x.shape), 1)
    offsets = places[:, None] * PAIRS + pair[None, :]
    mask = kept[:, None] & turns[None, :]
    along = tl.load(cos + offsets, mask=mask, other=1.0).to(tl.float32)
    across = tl.load(sin + offsets, mask=mask, other=0.0).to(tl.float32)
    if BACK:
        across = -across
    return x * along + tl.where(first[None, :], -other, other) * across
