/* One token of every row through the layers of a transformer: what decoding does at each step.

   Weights are read where PyTorch keeps them, [outputs, inputs]; nothing is packed or copied. A
   number of the result is added up in the same order whatever the threads. */

#include <stddef.h>
#include <string.h>

#include "vectors.h"

#define ALONE 8 /* outputs at once: as many streams of weights */
#define FEW (LANES * 5 / 8) /* from so many rows on each gets a lane, though some lanes are empty */
#define GRAIN 32 /* outputs that a thread takes at a time */

typedef void (*parallel_region)(void (*)(void *), void *, unsigned, unsigned);

enum { NO_NORM, RMS_NORM, LAYER_NORM };
enum { GELU, GELU_TANH, SQUARED_RELU, SILU };

struct linear { /* y = W x + b */
    const real *weight, *bias;
    long inputs, outputs;
};

struct norm {
    const real *gains, *bias;
    long kind;
    real offset, epsilon; /* gains are offset + gains */
};

struct layer {
    struct norm attention_norm, attended_norm, feedforward_norm, forwarded_norm, query_norm, key_norm;
    struct linear project, merge, gate, up, down;
    const real *cos, *sin; /* [position, pair]; NULL: nothing turns */
    const real *sinks, *slopes; /* [head], or NULL */
    const real *mask; /* [batch, key], added to scores, or NULL */
    real *k, *v;      /* [batch, head, key, head width] */
    long positions, pairs, interleaved;
    long mask_row, k_row, k_head, v_row, v_head;
    long first, last; /* of the keys that are attended to; the new one is the last */
    long heads, kv_heads, head_width;
    long activation, parallel;
    real scale, cap;
};

struct step {
    struct layer *layers;
    struct norm norm;
    struct linear head;
    const long *at; /* the position of each row */
    real *x;        /* [batch, width]: token vectors, and what the layers make of them */
    real *logits;
    real *normed, *projected, *attended, *gated, *inner, *added, *scores, *turned; /* scratch */
    long depth, batch, width, keys; /* scores have room for so many keys of every head */
    long threads, work_per_thread;
    real cap;
    parallel_region region; /* PyTorch's own thread pool */
    /* the phase that threads share */
    const struct layer *layer;
    const struct linear *linear[2];
    const real *from;
    real *to[2];
    long next;
};

typedef real quad __attribute__((vector_size(16)));

/* sum_of, in the same order but in a third of the instructions: each score needs one */
INLINE real folded(vec x) {
    union {
        vec whole;
        quad part[VECTOR_BYTES / 16];
    } u = {x};
#pragma GCC unroll 2
    for (int half = VECTOR_BYTES / 32; half > 0; half /= 2)
#pragma GCC unroll 2
        for (int n = 0; n < half; n++) u.part[n] += u.part[n + half];
#ifdef REAL_IS_DOUBLE
    return u.part[0][0] + u.part[0][1];
#else
    return (u.part[0][0] + u.part[0][2]) + (u.part[0][1] + u.part[0][3]);
#endif
}

INLINE real dot(const real *a, const real *b, long n) {
    vec sum = splat(0);
    long i = 0;
    for (; i + LANES <= n; i += LANES) sum += load(a + i) * load(b + i);
    real total = folded(sum);
    for (; i < n; i++) total += a[i] * b[i];
    return total;
}

/* y[output] of one row */
INLINE void tile(const int outputs, const struct linear *l, const real *x, real *y, long first) {
    vec sum[ALONE];
    const real *weight = l->weight + first * l->inputs;
    const long n = l->inputs;
#pragma GCC unroll 8
    for (int o = 0; o < outputs; o++) sum[o] = splat(0);
    long i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec line = load(x + i);
#pragma GCC unroll 8
        for (int o = 0; o < outputs; o++) {
            sum[o] += line * load(weight + o * n + i);
            __builtin_prefetch(weight + (o + outputs) * n + i);
        }
    }
    real total[ALONE];
#pragma GCC unroll 8
    for (int o = 0; o < outputs; o++) total[o] = folded(sum[o]);
    for (; i < n; i++)
        for (int o = 0; o < outputs; o++) total[o] += x[i] * weight[o * n + i];
    for (int o = 0; o < outputs; o++) y[o] = l->bias ? total[o] + l->bias[first + o] : total[o];
}

/* The same for as many rows as a vector has lanes: x[input, row], each row in a lane of its own, so
   that nothing is added up across lanes. */
INLINE void tile_of_lanes(const int outputs, const struct linear *l, const real *x, long stride,
                          real *y, long rows, long first) {
    vec sum[ALONE];
    const real *weight = l->weight + first * l->inputs;
#pragma GCC unroll 8
    for (int o = 0; o < outputs; o++) sum[o] = splat(l->bias ? l->bias[first + o] : 0);
    long i = 0;
    for (; i + LANES <= l->inputs; i += LANES) {
        real piece[ALONE][LANES]; /* rows of weights may share their place in the cache */
#pragma GCC unroll 8
        for (int o = 0; o < outputs; o++) {
            store(piece[o], load(weight + o * l->inputs + i));
            __builtin_prefetch(weight + (o + outputs) * l->inputs + i);
        }
        for (int j = 0; j < LANES; j++) {
            vec line = load(x + (i + j) * stride);
#pragma GCC unroll 8
            for (int o = 0; o < outputs; o++) sum[o] += line * piece[o][j];
        }
    }
    for (; i < l->inputs; i++)
        for (int o = 0; o < outputs; o++) sum[o] += load(x + i * stride) * weight[o * l->inputs + i];
    for (int o = 0; o < outputs; o++) {
        real part[LANES];
        store(part, sum[o]);
        for (long r = 0; r < rows; r++) y[r * l->outputs + o] = part[r];
    }
}

/* outputs from … to of every row; a few weights serve all rows while they are in the cache */
static void multiply_by(const struct linear *l, const real *x, real *y, long batch, long from, long to) {
    long o = from;
    if (batch >= FEW) {
        const long stride = (batch + LANES - 1) / LANES * LANES;
        for (; o + ALONE <= to; o += ALONE)
            for (long row = 0; row < batch; row += LANES)
                tile_of_lanes(ALONE, l, x + row, stride, y + row * l->outputs + o, least(batch - row, LANES), o);
        for (; o < to; o++)
            for (long row = 0; row < batch; row += LANES)
                tile_of_lanes(1, l, x + row, stride, y + row * l->outputs + o, least(batch - row, LANES), o);
        return;
    }
    for (; o + ALONE <= to; o += ALONE)
        for (long row = 0; row < batch; row++)
            tile(ALONE, l, x + row * l->inputs, y + row * l->outputs + o, o);
    for (; o < to; o++)
        for (long row = 0; row < batch; row++)
            tile(1, l, x + row * l->inputs, y + row * l->outputs + o, o);
}

/* x[row, input] as x[input, row], in whole vectors of rows */
static void transpose(const real *x, real *to, long batch, long inputs) {
    const long stride = (batch + LANES - 1) / LANES * LANES;
    for (long i = 0; i < inputs; i++) {
        for (long row = 0; row < batch; row++) to[i * stride + row] = x[row * inputs + i];
        for (long row = batch; row < stride; row++) to[i * stride + row] = 0;
    }
}

static void normalise(const struct norm *norm, const real *x, real *y, long n) {
    if (norm->kind == NO_NORM) {
        if (x != y) memcpy(y, x, n * sizeof(real));
        return;
    }
    real mean = 0, square = 0;
    if (norm->kind == LAYER_NORM) {
        for (long i = 0; i < n; i++) mean += x[i];
        mean /= (real)n;
        for (long i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    } else square = dot(x, x, n);
    real by = 1 / (real)sqrt((double)(square / (real)n + norm->epsilon));
    for (long i = 0; i < n; i++) {
        real gain = norm->gains ? norm->offset + norm->gains[i] : 1;
        y[i] = (x[i] - mean) * by * gain + (norm->bias ? norm->bias[i] : 0);
    }
}

INLINE vec activated(vec x, long kind) {
    if (kind == SQUARED_RELU) {
        vec positive = choose(x < splat(0), splat(0), x);
        return positive * positive;
    }
    if (kind == GELU_TANH)
        return (real)0.5 * x *
               (1 + tangent((real)0.7978845608028654 * (x + (real)0.044715 * x * x * x)));
    if (kind == SILU) {
        vec decay = exponential(choose(x < splat(0), x, -x)); /* e^-|x| */
        return x * choose(x < splat(0), decay, splat(1)) / (1 + decay);
    }
    vec y;
    for (int i = 0; i < LANES; i++)
        y[i] = sizeof(real) == 4 ? (real)(0.5f * (float)x[i] * (1 + erff((float)x[i] * 0.70710678f)))
                                 : (real)(0.5 * x[i] * (1 + erf(x[i] * 0.70710678118654752440)));
    return y;
}

/* gated = activation(gated) · inner, or inner = activation(inner) */
static void activate(const real *gated, real *inner, long n, long kind) {
    const real *from = gated ? gated : inner;
    long i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec y = activated(load(from + i), kind);
        if (gated) y *= load(inner + i);
        store(inner + i, y);
    }
    for (; i < n; i++) {
        real y = activated(splat(from[i]), kind)[0];
        inner[i] = gated ? y * inner[i] : y;
    }
}

static void turn(const struct layer *l, real *x, long at) {
    const real *cos = l->cos + at * l->pairs, *sin = l->sin + at * l->pairs;
    for (long p = 0; p < l->pairs; p++) {
        long a = l->interleaved ? 2 * p : p, b = l->interleaved ? 2 * p + 1 : p + l->pairs;
        real first = x[a], second = x[b];
        x[a] = first * cos[p] - second * sin[p];
        x[b] = second * cos[p] + first * sin[p];
    }
}

/* out = Σ weights[j] · v[j] */
INLINE void add_values(const int vectors, const real *weights, const real *v, long width, long keys,
                       real *out) {
    vec sum[4];
#pragma GCC unroll 4
    for (int n = 0; n < vectors; n++) sum[n] = splat(0);
    for (long j = 0; j < keys; j++)
#pragma GCC unroll 4
        for (int n = 0; n < vectors; n++) sum[n] += load(v + j * width + n * LANES) * weights[j];
#pragma GCC unroll 4
    for (int n = 0; n < vectors; n++) store(out + n * LANES, sum[n]);
}

static void attend(const struct step *s, const struct layer *l, long row, long head) {
    const long width = l->head_width, group = l->heads / l->kv_heads, keys = l->last - l->first + 1;
    const long all = (l->heads + 2 * l->kv_heads) * width;
    const real *k = l->k + row * l->k_row + (head / group) * l->k_head + l->first * width;
    const real *v = l->v + row * l->v_row + (head / group) * l->v_head + l->first * width;
    const real *mask = l->mask ? l->mask + row * l->mask_row + l->first : NULL;
    real *q = s->projected + row * all + head * width, *out = s->attended + (row * l->heads + head) * width;
    real *scores = s->scores + (row * l->heads + head) * s->keys;
    real largest = -LARGEST;
    if (l->query_norm.kind) normalise(&l->query_norm, q, q, width);
    if (l->cos) turn(l, q, s->at[row]);
    for (long j = 0; j < keys; j++) {
        real score = l->scale * dot(q, k + j * width, width);
        if (l->cap > 0) score = l->cap * (real)tanh((double)(score / l->cap));
        if (l->slopes) score -= l->slopes[head] * (real)(keys - 1 - j);
        score = score > LARGEST ? LARGEST : score < -LARGEST ? -LARGEST : score; /* inf - inf is NaN */
        if (mask) score += mask[j];
        scores[j] = score;
        largest = score > largest ? score : largest;
    }
    real total = 0;
    if (l->sinks) {
        largest = l->sinks[head] > largest ? l->sinks[head] : largest;
        total = (real)exp((double)(l->sinks[head] - largest));
    }
    for (long j = keys; j % LANES; j++) scores[j] = -INFINITY;
    vec sum = splat(0);
    for (long j = 0; j < keys; j += LANES) {
        vec weight = exponential(load(scores + j) - largest);
        store(scores + j, weight);
        sum += weight;
    }
    total += folded(sum);
    long e = 0;
    for (; e + 4 * LANES <= width; e += 4 * LANES) add_values(4, scores, v + e, width, keys, out + e);
    for (; e + 2 * LANES <= width; e += 2 * LANES) add_values(2, scores, v + e, width, keys, out + e);
    for (; e + LANES <= width; e += LANES) add_values(1, scores, v + e, width, keys, out + e);
    for (; e < width; e++) {
        real one = 0;
        for (long j = 0; j < keys; j++) one += v[j * width + e] * scores[j];
        out[e] = one;
    }
    for (e = 0; e < width; e++) out[e] /= total;
}

/* The new key and value go into the cache; then each head of the group attends. */
static void attend_unit(const struct step *s, long unit) {
    const struct layer *l = s->layer;
    const long row = unit / l->kv_heads, head = unit % l->kv_heads, width = l->head_width;
    const long group = l->heads / l->kv_heads, all = (l->heads + 2 * l->kv_heads) * width;
    const real *made = s->projected + row * all + (l->heads + head) * width;
    real *k = l->k + row * l->k_row + head * l->k_head + l->last * width;
    real *v = l->v + row * l->v_row + head * l->v_head + l->last * width;
    memcpy(v, made + l->kv_heads * width, width * sizeof(real));
    normalise(&l->key_norm, made, k, width);
    if (l->cos) turn(l, k, s->at[row]);
    for (long h = head * group; h < (head + 1) * group; h++) attend(s, l, row, h);
}

/* A phase is attention, or one or two products of the same vectors; threads take units of it. */
static void work(void *data) {
    struct step *s = data;
    const long units = s->layer ? s->batch * s->layer->kv_heads : 0;
    long unit;
    if (s->layer) {
        while ((unit = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < units) attend_unit(s, unit);
        return;
    }
    long outputs = s->linear[0]->outputs, grains = (outputs + GRAIN - 1) / GRAIN;
    long products = s->linear[1] ? 2 : 1;
    while ((unit = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < products * grains) {
        long which = unit / grains, from = unit % grains * GRAIN;
        multiply_by(s->linear[which], s->from, s->to[which], s->batch, from, least(from + GRAIN, outputs));
    }
}

static void run(struct step *s, long numbers) {
    long threads = least(s->threads, numbers / s->work_per_thread);
    s->next = 0;
    if (threads <= 1 || !s->region) work(s);
    else s->region(work, s, (unsigned)threads, 0);
}

static void multiply_all(struct step *s, const struct linear *l, const real *x, real *y,
                         const struct linear *other, real *z) {
    if (s->batch >= FEW) {
        transpose(x, s->turned, s->batch, l->inputs);
        x = s->turned;
    }
    s->layer = NULL;
    s->linear[0] = l, s->linear[1] = other;
    s->from = x, s->to[0] = y, s->to[1] = z;
    run(s, (other ? 2 : 1) * l->inputs * l->outputs * (s->batch + 3) / 4);
}

static void attend_all(struct step *s, const struct layer *l) {
    s->layer = l;
    run(s, s->batch * l->heads * (l->last - l->first + 1) * l->head_width * 2);
}

static void normalise_all(const struct step *s, const struct norm *norm, const real *x, real *y) {
    for (long row = 0; row < s->batch; row++)
        normalise(norm, x + row * s->width, y + row * s->width, s->width);
}

static void add_all(const struct step *s, const struct norm *norm, real *added) {
    if (norm->kind) normalise_all(s, norm, added, added);
    for (long i = 0; i < s->batch * s->width; i++) s->x[i] += added[i];
}

/* Nonzero where a position is beyond the table of rotations. */
int attnlab_step(struct step *s) {
    for (long n = 0; n < s->depth; n++)
        for (long row = 0; s->layers[n].cos && row < s->batch; row++)
            if (s->at[row] < 0 || s->at[row] >= s->layers[n].positions) return 1;
    for (long n = 0; n < s->depth; n++) {
        const struct layer *l = s->layers + n;
        const struct linear *gate = l->gate.weight ? &l->gate : NULL;
        normalise_all(s, &l->attention_norm, s->x, s->normed);
        multiply_all(s, &l->project, s->normed, s->projected, NULL, NULL);
        attend_all(s, l);
        multiply_all(s, &l->merge, s->attended, s->added, NULL, NULL);
        if (l->parallel) normalise_all(s, &l->feedforward_norm, s->x, s->normed);
        add_all(s, &l->attended_norm, s->added);
        if (!l->parallel) normalise_all(s, &l->feedforward_norm, s->x, s->normed);
        multiply_all(s, &l->up, s->normed, s->inner, gate, s->gated);
        activate(gate ? s->gated : NULL, s->inner, s->batch * l->up.outputs, l->activation);
        multiply_all(s, &l->down, s->inner, s->added, NULL, NULL);
        add_all(s, &l->forwarded_norm, s->added);
    }
    normalise_all(s, &s->norm, s->x, s->normed);
    multiply_all(s, &s->head, s->normed, s->logits, NULL, NULL);
    for (long i = 0; s->cap > 0 && i < s->batch * s->head.outputs; i++)
        s->logits[i] = s->cap * (real)tanh((double)(s->logits[i] / s->cap));
    return 0;
}

long attnlab_step_size(void) { return (long)sizeof(struct step); }
long attnlab_layer_size(void) { return (long)sizeof(struct layer); }

/* One layer of ones and zeros with a known answer, for a first run in a process that may die. */
int attnlab_step_trial(void) {
    enum { N = 80 }; /* every kind of tile, and a rest */
    static real ones[3 * N * N];
    for (long i = 0; i < 3 * N * N; i++) ones[i] = (real)1 / N;
    static real turned[N * (5 + LANES)];
    int wrong = 0;
    for (long batch = 1; batch <= 5; batch += 4) {
        static real x[5 * N], scratch[7][5 * 4 * N], k[5 * N], v[5 * N], logits[5 * N];
        const long at[5] = {0};
        for (long i = 0; i < 5 * N; i++) x[i] = 1;
        struct layer layer = {.k = k, .v = v, .k_row = N, .k_head = N, .v_row = N, .v_head = N};
        layer.heads = layer.kv_heads = 1, layer.head_width = N, layer.scale = 1;
        layer.attention_norm = layer.feedforward_norm = (struct norm){.kind = RMS_NORM};
        layer.project = (struct linear){ones, NULL, N, 3 * N};
        layer.merge = layer.up = layer.down = (struct linear){ones, NULL, N, N};
        layer.activation = SQUARED_RELU;
        struct step step = {.layers = &layer, .depth = 1, .batch = batch, .width = N, .x = x, .at = at};
        step.head = (struct linear){ones, NULL, N, N};
        step.normed = scratch[0], step.projected = scratch[1], step.attended = scratch[2];
        step.inner = scratch[4], step.added = scratch[5], step.scores = scratch[6];
        step.turned = turned;
        step.logits = logits, step.keys = N, step.threads = 1, step.work_per_thread = 1;
        wrong |= attnlab_step(&step);
        for (long i = 0; i < batch * N; i++) wrong |= !(fabs((double)logits[i] - 3) < 1e-3);
    }
    return wrong;
}
