"""The backward pass, without atomics: each gradient is written by one program, in one order.

`queries_kernel` goes over the keys of a tile of queries: gradients of q, of slopes, and `along`,
the mean of the weights' gradients of each row. `keys_kernel` goes over the queries of a tile of
keys, of every head of the group: gradients of k and v. Both compute the weights again from what the
forward pass kept of the softmax, the largest score and the inverse sum apart: docs/notes.md has the
reason.
"""

import triton
import triton.language as tl

from attnlab.kernels.triton.parts import (
    LOG2E,
    bent,
    keys_of_rows,
    keys_of_tile,
    product,
    queries_of_tile,
    rows_at,
    tile_of,
    turned,
    weights_from,
    write_rows_at,
)


@triton.jit
def _past_keys(
    grad_q,
    along,
    slant,
    q,
    grad,
    most,
    inverse,
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
    LEARNED: tl.constexpr,
    SAFE: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
):
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
        away = columns[None, :] - at[:, None]
        bend = scores
        if BENT:
            scores, bend = bent(scores, away, slope, table, zero, table_size, scale, cap, CAPPED)
        weights = weights_from(scores, most[:, None], unit, SAFE) * inverse[:, None]
        if MASKED:
            seen = (columns[None, :] >= first[:, None]) & (columns[None, :] < end[:, None])
            if padding is not None:
                seen = seen & kept[None, :]
            weights = tl.where(seen, weights, 0.0)
        elif padding is not None:
            weights = tl.where(kept[None, :], weights, 0.0)
        v_tile = tile_of(
            v, batch, kv_head, start, v_t, kept, COLUMNS, VALUES, WIDE_VALUES, DESCRIBED
        )
        slants = product(grad, tl.trans(v_tile), zeros, PRECISION)
        if MASKED:
            # from a whole row the mean is more exact than from the output: 0 stays 0
            whole = (first >= start) & (end <= start + COLUMNS) & (end > first)
            along = tl.where(whole, tl.sum(weights * slants, 1), along)
        slants = weights * (slants - along[:, None])
        if LEARNED:
            slant += tl.sum(slants * tl.abs(away).to(tl.float32), 1)
        if CAPPED:
            slants = slants * bend
        grad_q = product(slants.to(k_tile.dtype), k_tile, grad_q, PRECISION)
    return grad_q, along, slant


@triton.jit
def queries_kernel(
    q,
    k,
    v,
    out,
    grad_out,
    stats,
    grad_q,
    along_rows,
    slants,
    turned_q,
    ranges,
    padding,
    slopes,
    table,
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
    grad_b,
    grad_h,
    grad_t,
    grad_q_b,
    grad_q_h,
    grad_q_t,
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
    PARTS: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    BENT: tl.constexpr = CAPPED or slopes is not None or table is not None
    LEARNED: tl.constexpr = slants is not None
    unit = 1.0 if BENT else scale * LOG2E
    tiles = tl.cdiv(queries * PACK, ROWS)
    program = tl.program_id(0)
    tile = tiles - 1 - program % tiles
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

    row = (b * heads + wide_h) * queries + wide_i
    q_tile = rows_at(q + b * q_b, wide_h * q_h + wide_i * q_t, kept, WIDTH, WIDE_WIDTH)
    places = row
    if cos is not None:
        places = tl.minimum(tl.maximum(at, 0), keys - 1).to(tl.int64) + (
            b * angles_b + wide_h * angles_h
        )
        q_tile = turned(q_tile, cos, sin, places, kept, WIDE_WIDTH, PAIRS, INTERLEAVED, False).to(
            q.dtype.element_ty
        )
        write_rows_at(turned_q, row * WIDTH, kept, q_tile, WIDTH, WIDE_WIDTH)
    grad = rows_at(
        grad_out + b * grad_b, wide_h * grad_h + wide_i * grad_t, kept, VALUES, WIDE_VALUES
    )
    found = rows_at(out + b * out_b, wide_h * out_h + wide_i * out_t, kept, VALUES, WIDE_VALUES)
    along = tl.sum(grad.to(tl.float32) * found.to(tl.float32), 1)
    most = tl.load(stats + row, mask=kept, other=0.0)
    inverse = tl.load(stats + rows_in_all + row, mask=kept, other=0.0)
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

    grad_tile = tl.zeros((ROWS, WIDE_WIDTH), dtype=tl.float32)
    slant = tl.zeros((ROWS,), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        grad_tile, along, slant = _past_keys(
            grad_tile,
            along,
            slant,
            q_tile,
            grad,
            most,
            inverse,
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
            LEARNED,
            SAFE,
            DESCRIBED,
            PRECISION,
        )
    grad_tile = grad_tile * scale
    if cos is not None:
        grad_tile = turned(grad_tile, cos, sin, places, kept, WIDE_WIDTH, PAIRS, INTERLEAVED, True)
    offsets = wide_h * grad_q_h + wide_i * grad_q_t
    write_rows_at(grad_q + b * grad_q_b, offsets, kept, grad_tile, WIDTH, WIDE_WIDTH)
    tl.store(along_rows + row, along, mask=kept)
    if LEARNED:
        tl.store(slants + row, slant, mask=kept)


@triton.jit
def _past_queries(
    grad_k,
    grad_v,
    k,
    v,
    q,
    grad_out,
    stats,
    along_rows,
    ranges,
    slope,
    table,
    batch,
    head,
    q_t,
    grad_t,
    low,
    high,
    columns,
    kept,
    queries,
    keys,
    before,
    after,
    zero,
    table_size,
    scale,
    cap,
    unit,
    rows_in_all,
    MASKED: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
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
    """Scores and what follows from them lie here keys by queries."""
    for start in tl.range(low, high, ROWS):
        i = start + tl.arange(0, ROWS)
        inside = i < queries
        if MASKED:
            q_tile = tile_of(q, batch, head, start, q_t, inside, ROWS, WIDTH, WIDE_WIDTH, DESCRIBED)
            grad = tile_of(
                grad_out, batch, head, start, grad_t, inside, ROWS, VALUES, WIDE_VALUES, DESCRIBED
            )
        else:
            q_tile = tile_of(q, batch, head, start, q_t, None, ROWS, WIDTH, WIDE_WIDTH, DESCRIBED)
            grad = tile_of(
                grad_out, batch, head, start, grad_t, None, ROWS, VALUES, WIDE_VALUES, DESCRIBED
            )
        first, end, at = keys_of_rows(ranges, i, inside, queries, keys, before, after)
        # past the last query the inverse sum is 0, and with it all weights
        most = tl.load(stats + i, mask=inside, other=0.0)
        inverse = tl.load(stats + rows_in_all + i, mask=inside, other=0.0)
        along = tl.load(along_rows + i, mask=inside, other=0.0)
        zeros = tl.zeros((k.shape[0], ROWS), dtype=tl.float32)
        scores = product(k, tl.trans(q_tile), zeros, PRECISION)
        bend = scores
        if BENT:
            away = columns[:, None] - at[None, :]
            scores, bend = bent(scores, away, slope, table, zero, table_size, scale, cap, CAPPED)
        weights = weights_from(scores, most[None, :], unit, SAFE) * inverse[None, :]
        if MASKED:
            seen = (columns[:, None] >= first[None, :]) & (columns[:, None] < end[None, :])
            weights = tl.where(seen & kept[:, None], weights, 0.0)
        elif PADDED:
            weights = tl.where(kept[:, None], weights, 0.0)
        grad_v = product(weights.to(grad.dtype), grad, grad_v, PRECISION)
        slants = product(v, tl.trans(grad), zeros, PRECISION)
        slants = weights * (slants - along[None, :])
        if CAPPED:
            slants = slants * bend
        grad_k = product(slants.to(q_tile.dtype), q_tile, grad_k, PRECISION)
    return grad_k, grad_v


@triton.jit
def keys_kernel(
    q,
    k,
    v,
    grad_out,
    stats,
    along_rows,
    grad_k,
    grad_v,
    ranges,
    seen_by,
    padding,
    slopes,
    table,
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
    grad_b,
    grad_h,
    grad_t,
    grad_k_b,
    grad_k_h,
    grad_k_t,
    grad_v_b,
    grad_v_h,
    grad_v_t,
    ranges_b,
    seen_by_b,
    table_h,
    angles_b,
    angles_h,
    kv_heads,
    group,
    queries,
    keys,
    before,
    after,
    zero,
    table_size,
    scale,
    cap,
    rows_in_all,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE_WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    WIDE_VALUES: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    CAPPED: tl.constexpr,
    SAFE: tl.constexpr,
    PARTS: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    BENT: tl.constexpr = CAPPED or slopes is not None or table is not None
    PADDED: tl.constexpr = padding is not None
    unit = 1.0 if BENT else scale * LOG2E
    tiles = tl.cdiv(keys, COLUMNS)
    program = tl.program_id(0)
    tile = program % tiles  # early keys are attended to by more queries: they go first
    kv_head = program // tiles % kv_heads
    batch = program // tiles // kv_heads
    b = tl.cast(batch, tl.int64)
    g = tl.cast(kv_head, tl.int64)

    start = tile * COLUMNS
    stop = tl.minimum(start + COLUMNS, keys)
    columns = start + tl.arange(0, COLUMNS)
    inside = columns < keys
    kept = inside
    if padding is not None:
        kept = tl.load(padding + b * keys + columns, mask=inside, other=1) == 0
    if ranges is not None:
        ranges += b * ranges_b
        seen_by += b * seen_by_b
    low, left, right, high = queries_of_tile(
        seen_by, tile, start, stop, queries, keys, before, after, ROWS
    )
    wide = columns.to(tl.int64)
    k_tile = rows_at(k, b * k_b + g * k_h + wide * k_t, kept, WIDTH, WIDE_WIDTH)
    v_tile = rows_at(v, b * v_b + g * v_h + wide * v_t, kept, VALUES, WIDE_VALUES)

    grad_k_tile = tl.zeros((COLUMNS, WIDE_WIDTH), dtype=tl.float32)
    grad_v_tile = tl.zeros((COLUMNS, WIDE_VALUES), dtype=tl.float32)
    for member in tl.range(0, group):
        head = kv_head * group + member
        wide_head = tl.cast(head, tl.int64)
        row = (b * kv_heads * group + wide_head) * queries
        q_head = q
        grad_head = grad_out
        if not DESCRIBED:
            q_head = q + b * q_b + wide_head * q_h
            grad_head = grad_out + b * grad_b + wide_head * grad_h
        slope = None
        if slopes is not None:
            slope = tl.load(slopes + head).to(tl.float32)
        table_head = None
        if table is not None:
            table_head = table + head * table_h
        for part in tl.static_range(PARTS):
            grad_k_tile, grad_v_tile = _past_queries(
                grad_k_tile,
                grad_v_tile,
                k_tile,
                v_tile,
                q_head,
                grad_head,
                stats + row,
                along_rows + row,
                ranges,
                slope,
                table_head,
                batch,
                head,
                q_t,
                grad_t,
                low if part == 0 else (left if part == 1 else right),
                high if PARTS == 1 else (left if part == 0 else (right if part == 1 else high)),
                columns,
                kept,
                queries,
                keys,
                before,
                after,
                zero,
                table_size,
                scale,
                cap,
                unit,
                rows_in_all,
                part != 1,
                PADDED,
                ROWS,
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
    grad_k_tile = grad_k_tile * scale
    if cos is not None:
        places = wide + (b * angles_b + g * angles_h)
        grad_k_tile = turned(
            grad_k_tile, cos, sin, places, inside, WIDE_WIDTH, PAIRS, INTERLEAVED, True
        )
    offsets = b * grad_k_b + g * grad_k_h + wide * grad_k_t
    write_rows_at(grad_k, offsets, inside, grad_k_tile, WIDTH, WIDE_WIDTH)
    offsets = b * grad_v_b + g * grad_v_h + wide * grad_v_t
    write_rows_at(grad_v, offsets, inside, grad_v_tile, VALUES, WIDE_VALUES)


@triton.jit
def turn_kernel(
    x,
    out,
    cos,
    sin,
    x_b,
    x_h,
    x_t,
    out_b,
    out_h,
    out_t,
    angles_b,
    angles_h,
    heads,
    length,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE_WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Keys turned once, before the many tiles of queries that each of them meets."""
    tiles = tl.cdiv(length, ROWS)
    program = tl.program_id(0)
    b = tl.cast(program // tiles // heads, tl.int64)
    head = tl.cast(program // tiles % heads, tl.int64)
    rows = program % tiles * ROWS + tl.arange(0, ROWS)
    kept = rows < length
    wide = rows.to(tl.int64)
    tile = rows_at(x, b * x_b + head * x_h + wide * x_t, kept, WIDTH, WIDE_WIDTH)
    places = b * angles_b + head * angles_h + wide
    tile = turned(tile, cos, sin, places, kept, WIDE_WIDTH, PAIRS, INTERLEAVED, False)
    write_rows_at(out, b * out_b + head * out_h + wide * out_t, kept, tile, WIDTH, WIDE_WIDTH)
