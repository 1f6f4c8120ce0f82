/* Banded attention on the CPU: every query attends to a contiguous range of keys, and neither end
   of the range ever goes back from one query to the next.

   Axes: b batch, h query heads, g key/value heads, t time, d head width, e value width.
   Cost: O(t * band) time, and beside the results a few tiles a thread.  Scores are never stored:
   the backward pass computes them again from each row's maximum and sum.

   The plan: all five products are one register-blocked micro-kernel, c += a * b, with a read number
   by number and b vector by vector.  For scores that needs the keys side by side, so a tile of keys
   is transposed ("packed") when it comes up, and serves a whole run of queries.

   native.py compiles this once for float and once for double (-DREAL_IS_DOUBLE) and fills in struct
   job.  Widths d and e are multiples of the vector length: native.py pads them. */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "vectors.h"

#define PANELS_PER_TILE 8
#define QUERY_TILE 64
#define KEY_TILE (PANELS_PER_TILE * PANEL)
#define GRAIN (LANES > ROWS ? LANES : ROWS) /* scores are computed for whole grains of keys */
#define ROW_STRIDE (KEY_TILE + LANES) /* not a power of two: rows must not share cache sets */

typedef void (*parallel_region)(void (*)(void *), void *, unsigned, unsigned);

struct tensor { /* [batch, head, time, width], width side by side, the others by strides */
    real *data;
    long batch, head, time;
};

struct job {
    struct tensor q, k, v, out, grad_out, grad_q, grad_k, grad_v;
    const long *ranges; /* for each query: its first key, the one after its last, its position */
    const real *table;  /* by head: the bias of a key, by how far it stands after the query */
    const real *sinks, *padding;
    real *softmax; /* for each row: its largest score, and 1 / the sum of its weights */
    real *along, *partial;
    double *partial_table; /* the table's gradient, from each run of queries and head; or NULL */
    long batch, heads, kv_heads, queries, keys, width, value_width;
    long ranges_stride; /* from row to row of the batch: 0 if all have the same */
    long table_stride, zero; /* from head to head, and where distance 0 is */
    long run;          /* queries of one unit of work */
    long parts;        /* going back: units that share out the query heads of a key head */
    long threads;
    long partial_stride;
    real scale, cap; /* on scores; 0: none */
    parallel_region region; /* PyTorch's own thread pool, or NULL for threads of our own */
    long next;  /* the next unit of work to take */
    int failed; /* a thread could not get its scratch memory */
    int phase;
};

INLINE real *at(struct tensor x, long b, long h, long t) {
    return x.data + b * x.batch + h * x.head + t * x.time;
}

/* The keys that query number i attends to: [first_key, end_key). */
INLINE const long *range_of(const struct job *job, long b, long i) {
    return job->ranges + b * job->ranges_stride + 3 * i;
}
INLINE long first_key(const struct job *job, long b, long i) { return range_of(job, b, i)[0]; }
INLINE long end_key(const struct job *job, long b, long i) { return range_of(job, b, i)[1]; }

/* Columns [from, to) of: rows of a times a tile of keys or values packed by panels. */
static void against_panels(int rows, long width, const real *a, long a_row, const real *tile,
                           long from, long to, real *c) {
    for (long column = from; column < to;) {
        long panel = column / PANEL, inside = column % PANEL;
        int vectors = (int)(least(to - column, PANEL - inside) / LANES);
        for (int row = 0; row < rows;) {
            int block = ROWS;
            while (block > rows - row) block /= 2;
            multiply_rows(block, vectors, width, a + row * a_row, a_row, 1,
                          tile + panel * width * PANEL + inside, PANEL, c + row * ROW_STRIDE + column,
                          ROW_STRIDE, 0);
            row += block;
        }
        column += vectors * LANES;
    }
}

struct line { /* one row of scores and what its query attends to in a key tile */
    long from, to, seen_from, seen_to;
    real cap;
    const real *bias, *padding; /* from the first key of the tile on */
};

static struct line line_of(const struct job *job, long b, long h, long i, long tile_start, long from,
                           long to) {
    struct line line = {from, to, 0, 0, job->cap, NULL, NULL};
    const long *range = range_of(job, b, i);
    /* other rows of its block may see all of [from, to) and this one nothing */
    line.seen_from = least(most(range[0] - tile_start, from), to);
    line.seen_to = most(least(range[1] - tile_start, to), line.seen_from);
    if (job->table) line.bias = job->table + h * job->table_stride + job->zero + tile_start - range[2];
    if (job->padding) line.padding = job->padding + b * (job->keys + KEY_TILE) + tile_start;
    return line;
}

/* Products become scores: capped, biased, and minus infinity where the query may not look. `bend`
   gets the derivative of the cap, unless it is NULL. */
INLINE void finish_scores(real *row, const struct line *line, real *bend) {
    if (line->cap != 0)
        for (long c = line->from; c < line->to; c += LANES) {
            vec part = tangent(load(row + c) / line->cap);
            if (bend) store(bend + c, 1 - part * part);
            store(row + c, part * line->cap);
        }
    if (line->bias)
        for (long c = line->from; c < line->to; c += LANES)
            store(row + c, load(row + c) + load(line->bias + c));
    if (line->padding)
        for (long c = line->from; c < line->to; c += LANES)
            store(row + c, load(row + c) + load(line->padding + c));
    for (long c = line->from; c < line->seen_from; c++) row[c] = -INFINITY;
    for (long c = line->seen_to; c < line->to; c++) row[c] = -INFINITY;
}

/* The next count rows of queries, scaled, one after another. */
static void scaled_queries(const struct job *job, long b, long h, long from, long to, real *target) {
    for (long i = from; i < to; i++)
        for (long c = 0; c < job->width; c += LANES, target += LANES)
            store(target, load(at(job->q, b, h, i) + c) * job->scale);
}

/* A tile of keys or values as panels: PANEL of them side by side, width by width, then 0. */
static void pack_tile(const real *source, long stride, long count, long width, real *target) {
    for (long panel = 0; panel * PANEL < count; panel++, target += width * PANEL)
        for (long c = 0; c < PANEL; c++) {
            long row = panel * PANEL + c;
            if (row < count)
                for (long n = 0; n < width; n++) target[n * PANEL + c] = source[row * stride + n];
            else
                for (long n = 0; n < width; n++) target[n * PANEL + c] = 0;
        }
}

/* ---- forward: a unit is a run of queries of one head; key tiles pass by it once ---- */

/* Scores become weights relative to the running maximum; returns the factor by which what was
   summed before must shrink. */
static real soften(real *row, const struct line *line, real *maximum, real *total) {
    finish_scores(row, line, NULL);
    vec highest = load(row + line->from);
    for (long c = line->from + LANES; c < line->to; c += LANES) {
        vec score = load(row + c);
        highest = choose(score > highest, score, highest);
    }
    real before = *maximum, now = largest_of(highest);
    now = now > before ? now : before;
    now = now > LARGEST ? LARGEST : now; /* inf - inf would be NaN */
    real shift = now == -INFINITY ? 0 : now;
    real shrink = before == shift ? 1 : before == -INFINITY ? 0 : exponential(splat(before - shift))[0];
    vec sum = splat(0);
    for (long c = line->from; c < line->to; c += LANES) {
        vec weight = exponential(at_most_zero(load(row + c) - shift));
        sum += weight;
        store(row + c, weight);
    }
    *maximum = now;
    *total = *total * shrink + sum_of(sum);
    return shrink;
}

static void forward_unit(struct job *job, long unit, real *scratch) {
    long runs = (job->queries + job->run - 1) / job->run;
    long start = unit % runs * job->run, stop = least(start + job->run, job->queries);
    long h = unit / runs % job->heads, b = unit / runs / job->heads;
    long g = h / (job->heads / job->kv_heads), d = job->width, e = job->value_width;
    real *scores = scratch, *keys_t = scores + ROWS * ROW_STRIDE, *q = keys_t + KEY_TILE * d;
    real *sums = q + job->run * d, *maximum = sums + job->run * e, *total = maximum + job->run;

    scaled_queries(job, b, h, start, stop, q);
    memset(sums, 0, sizeof(real) * (stop - start) * e);
    for (long n = 0; n < stop - start; n++) maximum[n] = -INFINITY, total[n] = 0;
    long last = end_key(job, b, stop - 1);
    for (long base = first_key(job, b, start) / GRAIN * GRAIN; base < last; base += KEY_TILE) {
        pack_tile(at(job->k, b, g, base), job->k.time, least(KEY_TILE, last - base), d, keys_t);
        for (long i = start; i < stop; i += ROWS) {
            int rows = (int)least(ROWS, stop - i);
            long from = most(first_key(job, b, i) - base, 0), n = i - start;
            long to = least(end_key(job, b, i + rows - 1) - base, KEY_TILE);
            if (from >= to) continue;
            long wide_from = from / GRAIN * GRAIN, wide_to = (to + GRAIN - 1) / GRAIN * GRAIN;
            against_panels(rows, d, q + n * d, d, keys_t, wide_from, wide_to, scores);
            for (int r = 0; r < rows; r++) {
                struct line line = line_of(job, b, h, i + r, base, wide_from, wide_to);
                real shrink = soften(scores + r * ROW_STRIDE, &line, maximum + n + r, total + n + r);
                if (shrink != 0 && shrink != 1) /* 0: nothing was summed before */
                    for (real *sum = sums + (n + r) * e; sum < sums + (n + r + 1) * e; sum += LANES)
                        store(sum, load(sum) * shrink);
            }
            multiply(rows, e, to - from, scores + from, ROW_STRIDE, 1, at(job->v, b, g, base + from),
                     job->v.time, sums + n * e, e, 1);
        }
    }
    for (long i = start; i < stop; i++) {
        long n = i - start;
        real *softmax = job->softmax + 2 * ((b * job->heads + h) * job->queries + i);
        /* a query without keys gives 0 and has weights of 0 */
        softmax[0] = maximum[n] == -INFINITY ? 0 : maximum[n];
        real shrink = 1;
        if (job->sinks) { /* one more score, of a value of 0 */
            real sink = job->sinks[h], now = maximum[n] > sink ? maximum[n] : sink;
            shrink = maximum[n] == -INFINITY ? 0 : exponential(splat(maximum[n] - now))[0];
            total[n] = total[n] * shrink + exponential(splat(sink - now))[0];
            softmax[0] = now;
        }
        softmax[1] = total[n] == 0 ? 0 : 1 / total[n];
        for (long c = 0; c < e; c += LANES)
            store(at(job->out, b, h, i) + c, load(sums + n * e + c) * (softmax[1] * shrink));
    }
}

/* ---- backward: a unit is a run of queries of heads that share a key head: all, or a part ---- */

struct tile { /* what a query tile and a key tile have in common */
    long b, h, base;
    const real *keys_t, *values_t, *along;
    real *q, *weights, *slants;
    double *grad_table; /* of this head, or NULL; it sums over many pairs */
};

/* The weights of a block of rows again, and their gradients before the softmax ("slants"). */
static void recompute(const struct job *job, const struct tile *tile, long top, long i, int rows,
                      long from, long to) {
    const real *softmax = job->softmax + 2 * (tile->b * job->heads + tile->h) * job->queries;
    real *weights = tile->weights + (i - top) * ROW_STRIDE;
    real *slants = tile->slants + (i - top) * ROW_STRIDE, bend[ROW_STRIDE];
    against_panels(rows, job->width, tile->q + (i - top) * job->width, job->width, tile->keys_t, from,
                   to, weights);
    against_panels(rows, job->value_width, at(job->grad_out, tile->b, tile->h, i), job->grad_out.time,
                   tile->values_t, from, to, slants);
    for (long r = i; r < i + rows; r++, weights += ROW_STRIDE, slants += ROW_STRIDE) {
        struct line line = line_of(job, tile->b, tile->h, r, tile->base, from, to);
        finish_scores(weights, &line, bend);
        vec mean = splat(0);
        for (long c = from; c < to; c += LANES) {
            vec score = load(weights + c) - softmax[2 * r];
            vec weight = exponential(at_most_zero(score)) * softmax[2 * r + 1];
            mean += weight * load(slants + c);
            store(weights + c, weight);
        }
        /* from a whole row the mean is more exact than from the output: 0 stays 0 */
        long row_from = tile->base + from, row_to = tile->base + to;
        int whole_row = first_key(job, tile->b, r) >= row_from && end_key(job, tile->b, r) <= row_to;
        real along = whole_row ? sum_of(mean) : tile->along[r];
        if (tile->grad_table) { /* the bias is added after the scale, and after the cap */
            double *sums = tile->grad_table + job->zero + tile->base - range_of(job, tile->b, r)[2];
            for (long c = line.seen_from; c < line.seen_to; c++)
                sums[c] += weights[c] * (slants[c] - along);
        }
        for (long c = from; c < to; c += LANES)
            store(slants + c, load(weights + c) * (load(slants + c) - along) * job->scale);
        if (job->cap != 0)
            for (long c = from; c < to; c += LANES) store(slants + c, load(slants + c) * load(bend + c));
    }
}

static void backward_tile(const struct job *job, const struct tile *tile, long top, long bottom,
                          struct tensor grad_k, struct tensor grad_v) {
    long d = job->width, e = job->value_width, base = tile->base, b = tile->b, h = tile->h;
    long g = h / (job->heads / job->kv_heads);
    for (long i = top; i < bottom; i += ROWS) {
        int rows = (int)least(ROWS, bottom - i);
        long from = most(first_key(job, b, i) - base, 0);
        long to = least(end_key(job, b, i + rows - 1) - base, KEY_TILE);
        if (from >= to) { /* no keys at all: the grain that is looked at below holds nothing */
            for (long r = i - top; r < i - top + rows && from < KEY_TILE; r++) {
                memset(tile->weights + r * ROW_STRIDE + from / GRAIN * GRAIN, 0, sizeof(real) * GRAIN);
                memset(tile->slants + r * ROW_STRIDE + from / GRAIN * GRAIN, 0, sizeof(real) * GRAIN);
            }
            continue;
        }
        recompute(job, tile, top, i, rows, from / GRAIN * GRAIN, (to + GRAIN - 1) / GRAIN * GRAIN);
        multiply(rows, d, to - from, tile->slants + (i - top) * ROW_STRIDE + from, ROW_STRIDE, 1,
                 at(job->k, b, g, base + from), job->k.time, at(job->grad_q, b, h, i),
                 job->grad_q.time, 1);
    }
    /* blocks of keys, none across a grain, against the queries that see any of them: one range,
       since first and end key only grow with the query */
    long end = least(base + KEY_TILE, end_key(job, b, bottom - 1)), i = top, j = top, rows;
    for (long key = most(base, first_key(job, b, top)); key < end; key += rows) {
        rows = least(ROWS - (key - base) % ROWS, end - key);
        while (i < bottom && end_key(job, b, i) <= key) i++;
        while (j < bottom && first_key(job, b, j) < key + rows) j++;
        if (i >= j) continue;
        long corner = (i - top) * ROW_STRIDE + (key - base);
        multiply(rows, e, j - i, tile->weights + corner, 1, ROW_STRIDE, at(job->grad_out, b, h, i),
                 job->grad_out.time, at(grad_v, b, g, key), grad_v.time, 1);
        multiply(rows, d, j - i, tile->slants + corner, 1, ROW_STRIDE, at(job->q, b, h, i),
                 job->q.time, at(grad_k, b, g, key), grad_k.time, 1);
    }
}

/* the keys that a run of queries attends to */
static void keys_of_run(const struct job *job, long b, long run, long *from, long *to) {
    long start = run * job->run, stop = least(start + job->run, job->queries);
    *from = first_key(job, b, start);
    *to = most(end_key(job, b, stop - 1), *from);
}

static long runs_of(const struct job *job) { return (job->queries + job->run - 1) / job->run; }

static void clear(struct tensor x, long b, long h, long from, long to, long width) {
    for (long t = from; t < to; t++) memset(at(x, b, h, t), 0, sizeof(real) * width);
}

static void backward_unit(struct job *job, long unit, real *scratch) {
    long runs = runs_of(job), run = unit % runs, part = unit / runs % job->parts;
    long g = unit / runs / job->parts % job->kv_heads, b = unit / runs / job->parts / job->kv_heads;
    long group = job->heads / job->kv_heads;
    long first_head = g * group + part * group / job->parts;
    long end_head = g * group + (part + 1) * group / job->parts;
    long d = job->width, e = job->value_width, first, last;
    long start = run * job->run, stop = least(start + job->run, job->queries);
    real *weights = scratch, *slants = weights + QUERY_TILE * ROW_STRIDE;
    real *keys_t = slants + QUERY_TILE * ROW_STRIDE, *values_t = keys_t + KEY_TILE * d;
    real *q = values_t + KEY_TILE * e;
    keys_of_run(job, b, run, &first, &last);

    /* a key head's only unit adds straight into the result; several each into keys of their own */
    struct tensor grad_k = job->grad_k, grad_v = job->grad_v;
    if (runs * job->parts > 1) {
        real *own = job->partial + unit * job->partial_stride;
        memset(own, 0, sizeof(real) * (last - first) * (d + e));
        grad_k = (struct tensor){own - first * d, 0, 0, d};
        grad_v = (struct tensor){own + (last - first) * d - first * e, 0, 0, e};
    } else {
        clear(grad_k, b, g, 0, job->keys, d);
        clear(grad_v, b, g, 0, job->keys, e);
    }
    for (long h = first_head; h < end_head; h++) clear(job->grad_q, b, h, start, stop, d);
    double *tables = NULL;
    if (job->partial_table) { /* one for each query head of the unit */
        tables = job->partial_table + (((b * runs + run) * job->heads) + first_head) * job->table_stride;
        memset(tables, 0, sizeof(double) * (end_head - first_head) * job->table_stride);
    }
    for (long base = first / GRAIN * GRAIN; base < last; base += KEY_TILE) {
        long count = least(KEY_TILE, last - base);
        pack_tile(at(job->k, b, g, base), job->k.time, count, d, keys_t);
        pack_tile(at(job->v, b, g, base), job->v.time, count, e, values_t);
        for (long h = first_head; h < end_head; h++)
            for (long top = start; top < stop; top += QUERY_TILE) {
                long bottom = least(top + QUERY_TILE, stop);
                if (first_key(job, b, top) >= base + count || end_key(job, b, bottom - 1) <= base)
                    continue;
                const real *along = job->along + (b * job->heads + h) * job->queries;
                double *table = tables ? tables + (h - first_head) * job->table_stride : NULL;
                struct tile tile = {b, h, base, keys_t, values_t, along, q, weights, slants, table};
                scaled_queries(job, b, h, top, bottom, q);
                backward_tile(job, &tile, top, bottom, grad_k, grad_v);
            }
    }
}

/* How far each output points along its gradient, the mean of the weights' gradients. */
static void along_unit(struct job *job, long unit) {
    long h = unit % job->heads, b = unit / job->heads;
    for (long i = 0; i < job->queries; i++) {
        const real *go = at(job->grad_out, b, h, i), *out = at(job->out, b, h, i);
        vec sum = splat(0);
        for (long c = 0; c < job->value_width; c += LANES) sum += load(go + c) * load(out + c);
        job->along[unit * job->queries + i] = sum_of(sum);
    }
}

static void gather_unit(struct job *job, long unit) {
    long g = unit % job->kv_heads, b = unit / job->kv_heads, runs = runs_of(job);
    clear(job->grad_k, b, g, 0, job->keys, job->width);
    clear(job->grad_v, b, g, 0, job->keys, job->value_width);
    for (long n = 0; n < runs * job->parts; n++) {
        long from, to;
        keys_of_run(job, b, n % runs, &from, &to);
        const real *own = job->partial + (unit * runs * job->parts + n) * job->partial_stride;
        for (long t = from; t < to; t++)
            for (long c = 0; c < job->width; c++) at(job->grad_k, b, g, t)[c] += *own++;
        for (long t = from; t < to; t++)
            for (long c = 0; c < job->value_width; c++) at(job->grad_v, b, g, t)[c] += *own++;
    }
}

/* ---- threads: every phase is a count of independent units that threads take one by one ---- */

enum { FORWARD, ALONG, BACKWARD, GATHER };

static long units(const struct job *job) {
    switch (job->phase) {
        case FORWARD: return job->batch * job->heads * runs_of(job);
        case ALONG: return job->batch * job->heads;
        case BACKWARD: return job->batch * job->kv_heads * job->parts * runs_of(job);
        default: return job->batch * job->kv_heads;
    }
}

/* A thread keeps its scratch memory for the next call: getting it anew would cost small problems
   more than their arithmetic. */
static _Thread_local real *kept;
static _Thread_local size_t kept_numbers;

static real *scratch_of(const struct job *job) {
    size_t packed = KEY_TILE * (job->width + job->value_width), numbers = 1;
    if (job->phase == FORWARD)
        numbers = ROWS * ROW_STRIDE + packed + job->run * (job->width + job->value_width + 2);
    if (job->phase == BACKWARD) numbers = QUERY_TILE * (2 * ROW_STRIDE + job->width) + packed;
    if (numbers > kept_numbers) {
        free(kept);
        kept_numbers = posix_memalign((void **)&kept, 64, numbers * sizeof(real)) ? 0 : numbers;
        if (!kept_numbers) kept = NULL;
    }
    return kept;
}

static void work(void *data) {
    struct job *job = data;
    long count = units(job), unit;
    real *scratch = scratch_of(job);
    if (!scratch) {
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    while ((unit = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED)) < count) {
        if (job->phase == FORWARD) forward_unit(job, unit, scratch);
        else if (job->phase == ALONG) along_unit(job, unit);
        else if (job->phase == BACKWARD) backward_unit(job, unit, scratch);
        else gather_unit(job, unit);
    }
}

static void *work_as_thread(void *data) {
    work(data);
    free(kept);
    kept = NULL, kept_numbers = 0;
    return NULL;
}

static void run_phase(struct job *job, int phase) {
    job->phase = phase;
    job->next = 0;
    long threads = least(job->threads, units(job));
    if (threads <= 1) work(job);
    else if (job->region) job->region(work, job, (unsigned)threads, 0);
    else {
        pthread_t other[64];
        long started = 0;
        while (started < least(threads, 64) - 1 &&
               pthread_create(other + started, NULL, work_as_thread, job) == 0)
            started++;
        work(job);
        while (started > 0) pthread_join(other[--started], NULL);
    }
}

long attnlab_lanes(void) { return LANES; }
long attnlab_key_tile(void) { return KEY_TILE; }
long attnlab_job_size(void) { return (long)sizeof(struct job); }

/* the numbers that one run's own gradients need at most */
long attnlab_partial_stride(struct job *job) {
    long longest = 0;
    for (long b = 0; b < (job->ranges_stride ? job->batch : 1); b++)
        for (long run = 0; run < runs_of(job); run++) {
            long from, to;
            keys_of_run(job, b, run, &from, &to);
            longest = most(longest, to - from);
        }
    return longest * (job->width + job->value_width);
}

/* Fresh memory is mapped page by page as it is written; large pages make that many times cheaper. */
static void want_large_pages(const struct job *job, struct tensor x, long heads, long times, long width) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 1 << 21;
    long numbers = (job->batch - 1) * x.batch + (heads - 1) * x.head + (times - 1) * x.time + width;
    uintptr_t from = ((uintptr_t)x.data + page - 1) & ~(page - 1);
    uintptr_t to = (uintptr_t)(x.data + numbers) & ~(page - 1);
    if (from < to) madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)job, (void)x, (void)heads, (void)times, (void)width;
#endif
}

int attnlab_forward(struct job *job) {
    want_large_pages(job, job->out, job->heads, job->queries, job->value_width);
    run_phase(job, FORWARD);
    return job->failed;
}

int attnlab_backward(struct job *job) {
    want_large_pages(job, job->grad_q, job->heads, job->queries, job->width);
    want_large_pages(job, job->grad_k, job->kv_heads, job->keys, job->width);
    want_large_pages(job, job->grad_v, job->kv_heads, job->keys, job->value_width);
    run_phase(job, ALONG);
    run_phase(job, BACKWARD);
    if (runs_of(job) * job->parts > 1) run_phase(job, GATHER);
    return job->failed;
}

/* A small problem with a known answer (all keys alike: the output is the mean value, and the
   gradient of each value is the share it got), for a first run in a process that may die. */
int attnlab_trial(void) {
    enum { T = 24 };
    long d = LANES;
    real *memory = calloc(8 * T * d + 3 * T, sizeof(real));
    if (!memory) return 1;
    struct job job = {0};
    struct tensor *all[] = {&job.q, &job.k, &job.v, &job.out, &job.grad_out, &job.grad_q, &job.grad_k,
                            &job.grad_v};
    for (int n = 0; n < 8; n++) *all[n] = (struct tensor){memory + n * T * d, 0, 0, d};
    job.softmax = memory + 8 * T * d, job.along = job.softmax + 2 * T;
    job.batch = job.heads = job.kv_heads = job.threads = job.parts = 1;
    job.queries = job.keys = job.run = T, job.width = job.value_width = d;
    job.scale = 1;
    long ranges[T][3];
    for (long i = 0; i < T; i++) ranges[i][0] = most(i - 2, 0), ranges[i][1] = i + 1, ranges[i][2] = i;
    job.ranges = ranges[0];
    for (long i = 0; i < T * d; i++) job.v.data[i] = (real)(i / d), job.grad_out.data[i] = 1;
    int wrong = attnlab_forward(&job) || attnlab_backward(&job);
    for (long i = 2; i < T - 2; i++) {
        wrong |= fabs(at(job.out, 0, 0, i)[0] - (double)(i - 1)) > 1e-4;
        wrong |= fabs(at(job.grad_v, 0, 0, i)[0] - 1.0) > 1e-4;
    }
    free(memory);
    return wrong;
}
