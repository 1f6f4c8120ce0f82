"""The forward pass: tiles of queries, past which the keys that they attend to go once.

Axes of a tile: rows (queries), columns (keys). With PACK > 1 its rows are the queries of PACK
heads of a group: row r is query r // PACK of head r % PACK. They share the keys that are loaded,
and fewer keys at the edges of windows are computed for nothing.

With SPLIT the keys of a tile are shared out to several programs, for few queries, and
`combine_kernel` adds up what they found.
"""

import triton
import triton.language as tl

from attnlab.kernels.triton.parts import (
    LARGEST,
    LOG2E,
    bent,
    keys_of_rows,
    keys_of_tile,
    product,
    rows_at,
    tile_of,
    turned,
    weights_from,
    write_rows_at,
)


@triton.jit
def _pass_by(
    sums,
    most,
    total,
    q,
    k,
    v,
    padding,
    slope,
    table,
    batch,
    kv_head,
    k_t,
    v_t,
    low,
    high,
    first,
    end,
    at,
    keys,
    zero,
    table_size,
    scale,
    cap,
    unit,
    MASKED: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE_WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    WIDE_VALUES: tl.constexpr,
    BENT: tl.constexpr,
    CAPPED: tl.constexpr,
    SAFE: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The keys from low to high: softmax from tile to tile, as the largest score so far grows."""
    for start in tl.range(low, high, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        if padding is not None:
            kept = tl.load(padding + columns, mask=columns < keys, other=1) == 0
        elif MASKED:
            kept = columns < keys
        else:
            kept = None
        k_tile = tile_of(k, batch, kv_head, start, k_t, kept, COLUMNS, WIDTH, WIDE_WIDTH, DESCRIBED)
        zeros = tl.zeros((q.shape[0], COLUMNS), dtype=tl.float32)
        scores = product(q, tl.trans(k_tile), zeros, PRECISION)
        if BENT:
            away = columns[None, :] - at[:, None]
            scores, _ = bent(scores, away, slope, table, zero, table_size, scale, cap, CAPPED)
        if MASKED:
            seen = (columns[None, :] >= first[:, None]) & (columns[None, :] < end[:, None])
            if padding is not None:
                seen = seen & kept[None, :]
            scores = tl.where(seen, scores, float("-inf"))
        elif padding is not None:
            scores = tl.where(kept[None, :], scores, float("-inf"))
        now = tl.maximum(most, tl.max(scores, 1))
        if SAFE:
            now = tl.minimum(now, LARGEST)
        shift = tl.where(now == float("-inf"), 0.0, now)
        weights = weights_from(scores, shift[:, None], unit, SAFE)
        shrink = tl.exp2((most - shift) * unit)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None]
        v_tile = tile_of(
            v, batch, kv_head, start, v_t, kept, COLUMNS, VALUES, WIDE_VALUES, DESCRIBED
        )
        sums = product(weights.to(v_tile.dtype), v_tile, sums, PRECISION)
        most = now
    return sums, most, total


@triton.jit
def _with_sink(most, total, sink, unit):
    """By what the sums are multiplied, and the part of the sink: it is one more score.

    A row without keys has a largest score of minus infinity and gets 0.
    """
    if sink is not None:
        score = tl.where(most == float("-inf"), most, most * unit)
        sink = sink * LOG2E
        now = tl.maximum(score, sink)
        now = tl.where(now == float("-inf"), 0.0, now)
        shrink = tl.exp2(score - now)
        part = tl.exp2(sink - now)
        total = total * shrink + part
        empty = total == 0
        total = tl.where(empty, 1.0, total)
        return tl.where(empty, 0.0, shrink / total), tl.where(empty, 0.0, part / total)
    else:
        empty = total == 0
        return tl.where(empty, 0.0, 1 / tl.where(empty, 1.0, total)), total


@triton.jit
def forward_kernel(
    q,
    k,
    v,
    out,
    stats,
    ranges,
    padding,
    slopes,
    table,
    sinks,
    cos,
    sin,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_t,
    v_b,
    v_h,
    v_t,
    out_b,
    out_h,
    out_t,
    ranges_b,
    table_h,
    angles_b,
    angles_h,
    heads,
    group,
    queries,
    keys,
    before,
    after,
    zero,
    table_size,
    scale,
    cap,
    splits,
    rows_in_all,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PACK: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE_WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    WIDE_VALUES: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    CAPPED: tl.constexpr,
    SAFE: tl.constexpr,
    SPLIT: tl.constexpr,
    PARTS: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`stats`: for each row its largest score, 1 / the sum of its weights, and the sink's part.

    With SPLIT `out` and `stats` have a part for each split: sums, the largest score, the total.
    """
    BENT: tl.constexpr = CAPPED or slopes is not None or table is not None
    unit = 1.0 if BENT else scale * LOG2E
    tiles = tl.cdiv(queries * PACK, ROWS)
    program = tl.program_id(0)
    split = 0
    if SPLIT:
        split = program % splits
        program = program // splits
    tile = tiles - 1 - program % tiles  # late queries attend to more keys: they go first
    packs = heads // PACK
    batch = program // tiles // packs
    head = program // tiles % packs * PACK
    kv_head = head // group
    b = tl.cast(batch, tl.int64)

    rows = tl.arange(0, ROWS)
    i = tile * (ROWS // PACK) + rows // PACK
    h = head + rows % PACK
    kept = i < queries
    wide_h = h.to(tl.int64)
    wide_i = i.to(tl.int64)
    start = tile * (ROWS // PACK)
    stop = tl.minimum(start + ROWS // PACK, queries)
    if ranges is not None:
        ranges += b * ranges_b
    first, end, at = keys_of_rows(ranges, i, kept, queries, keys, before, after)
    low, left, right, high = keys_of_tile(
        ranges, start, stop, queries, keys, before, after, COLUMNS
    )
    if SPLIT:
        share = tl.cdiv(tl.cdiv(high - low, COLUMNS), splits) * COLUMNS
        low = tl.minimum(low + split * share, high)
        high = tl.minimum(low + share, high)
        left = tl.minimum(tl.maximum(left, low), high)
        right = tl.minimum(tl.maximum(right, low), high)

    q_tile = rows_at(q + b * q_b, wide_h * q_h + wide_i * q_t, kept, WIDTH, WIDE_WIDTH)
    if cos is not None:
        places = tl.minimum(tl.maximum(at, 0), keys - 1).to(tl.int64) + (
            b * angles_b + wide_h * angles_h
        )
        q_tile = turned(q_tile, cos, sin, places, kept, WIDE_WIDTH, PAIRS, INTERLEAVED, False).to(
            q.dtype.element_ty
        )
    if not DESCRIBED:
        k += b * k_b + tl.cast(kv_head, tl.int64) * k_h
        v += b * v_b + tl.cast(kv_head, tl.int64) * v_h
    if padding is not None:
        padding += b * keys
    slope = None
    if slopes is not None:
        slope = tl.load(slopes + h).to(tl.float32)[:, None]
    if table is not None:
        table += (h * table_h)[:, None]

    sums = tl.zeros((ROWS, WIDE_VALUES), dtype=tl.float32)
    most = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    # one loop, or three: the left edge of the band, its inside without a mask, its diagonal
    for part in tl.static_range(PARTS):
        sums, most, total = _pass_by(
            sums,
            most,
            total,
            q_tile,
            k,
            v,
            padding,
            slope,
            table,
            batch,
            kv_head,
            k_t,
            v_t,
            low if part == 0 else (left if part == 1 else right),
            high if PARTS == 1 else (left if part == 0 else (right if part == 1 else high)),
            first,
            end,
            at,
            keys,
            zero,
            table_size,
            scale,
            cap,
            unit,
            part != 1,
            COLUMNS,
            WIDTH,
            WIDE_WIDTH,
            VALUES,
            WIDE_VALUES,
            BENT,
            CAPPED,
            SAFE,
            DESCRIBED,
            PRECISION,
        )

    row = (b * heads + wide_h) * queries + wide_i
    offsets = wide_h * out_h + wide_i * out_t
    if SPLIT:
        out += tl.cast(split, tl.int64) * (rows_in_all * VALUES) + b * out_b
        write_rows_at(out, offsets, kept, sums, VALUES, WIDE_VALUES)
        stats += tl.cast(split, tl.int64) * (2 * rows_in_all)
        tl.store(stats + row, most, mask=kept)
        tl.store(stats + rows_in_all + row, total, mask=kept)
    else:
        sink = None
        if sinks is not None:
            sink = tl.load(sinks + h).to(tl.float32)
        inverse, sunk = _with_sink(most, total, sink, unit)
        write_rows_at(out + b * out_b, offsets, kept, sums * inverse[:, None], VALUES, WIDE_VALUES)
        tl.store(stats + row, tl.where(most == float("-inf"), 0.0, most), mask=kept)
        tl.store(stats + rows_in_all + row, inverse, mask=kept)
        if sinks is not None:
            tl.store(stats + 2 * rows_in_all + row, sunk, mask=kept)


@triton.jit
def combine_kernel(
    sums,
    stats,
    out,
    sinks,
    out_b,
    out_h,
    out_t,
    heads,
    queries,
    splits,
    rows_in_all,
    unit,
    ROWS: tl.constexpr,
    VALUES: tl.constexpr,
    WIDE_VALUES: tl.constexpr,
):
    """What the splits found becomes one softmax: a program for some rows of one head."""
    tiles = tl.cdiv(queries, ROWS)
    program = tl.program_id(0)
    head = program // tiles % heads
    b = tl.cast(program // tiles // heads, tl.int64)
    i = program % tiles * ROWS + tl.arange(0, ROWS)
    kept = i < queries
    row = (b * heads + head) * queries + i
    most = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    added = tl.zeros((ROWS, WIDE_VALUES), dtype=tl.float32)
    for split in tl.range(0, splits):
        base = stats + tl.cast(split, tl.int64) * (2 * rows_in_all)
        theirs = tl.load(base + row, mask=kept, other=float("-inf"))
        now = tl.maximum(most, theirs)
        shift = tl.where(now == float("-inf"), 0.0, now)
        old = tl.exp2((most - shift) * unit)
        new = tl.exp2((theirs - shift) * unit)
        total = total * old + tl.load(base + rows_in_all + row, mask=kept, other=0.0) * new
        part = sums + tl.cast(split, tl.int64) * (rows_in_all * VALUES)
        tile = rows_at(part, row * VALUES, kept, VALUES, WIDE_VALUES)
        added = added * old[:, None] + tile * new[:, None]
        most = now
    sink = None
    if sinks is not None:
        sink = tl.load(sinks + head + tl.zeros((ROWS,), dtype=tl.int32)).to(tl.float32)
    inverse, _ = _with_sink(most, total, sink, unit)
    offsets = b * out_b + head * out_h + i.to(tl.int64) * out_t
    write_rows_at(out, offsets, kept, added * inverse[:, None], VALUES, WIDE_VALUES)
