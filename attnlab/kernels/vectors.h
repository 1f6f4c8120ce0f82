/* The arithmetic under banded.c: vectors, the exponential, and the product of small matrices. */

#include <math.h>
#include <stdint.h>

#ifdef REAL_IS_DOUBLE
typedef double real;
typedef int64_t whole;
#define MANTISSA_BITS 52
#define ROUND_TO_INTEGER 6755399441055744.0 /* 1.5 * 2^52: adding it leaves n in the low bits */
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define LARGEST 1.7976931348623157e308
#define EXP_IS_ZERO_BELOW -700.0
#define EXP_TERMS 14
#define TANH_TERMS 10
#else
typedef float real;
typedef int32_t whole;
#define MANTISSA_BITS 23
#define ROUND_TO_INTEGER 12582912.0f
#define LN2_HIGH 6.93145752e-1f
#define LN2_LOW 1.42860677e-6f
#define LARGEST 3.402823466e38f
#define EXP_IS_ZERO_BELOW -86.0f
#define EXP_TERMS 8
#define TANH_TERMS 6
#endif
#define LOG2_E ((real)1.4426950408889634074)

/* A micro-tile of ROWS x VECTORS accumulators, sized to fill the registers without spilling. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define ROWS 8
#define VECTORS 3
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define ROWS 4
#define VECTORS 3
#elif defined(__aarch64__)
#define VECTOR_BYTES 16
#define ROWS 8
#define VECTORS 3
#else
#define VECTOR_BYTES 16
#define ROWS 4
#define VECTORS 2
#endif
#define LANES ((long)(VECTOR_BYTES / sizeof(real)))
#define PANEL (VECTORS * LANES)

typedef real vec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));
typedef whole wvec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));
#define INLINE static inline __attribute__((always_inline))

INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long most(long a, long b) { return a > b ? a : b; }
INLINE vec splat(real x) { return x - (vec){0}; }
INLINE vec load(const real *p) { return *(const vec *)p; }
INLINE void store(real *p, vec x) { *(vec *)p = x; }
INLINE vec choose(wvec mask, vec yes, vec no) {
    return (vec)((mask & (wvec)yes) | (~mask & (wvec)no));
}

INLINE vec lane_numbers(void) {
    vec n;
    for (int i = 0; i < LANES; i++) n[i] = (real)i;
    return n;
}

/* exp(x) for x <= 0 or a little above; exactly 0 for x far below, NaN for NaN. */
INLINE vec exponential(vec x) {
    static const real over_factorial[14] = {
        1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
        1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
    vec shifted = x * LOG2_E + ROUND_TO_INTEGER;
    vec n = shifted - ROUND_TO_INTEGER;
    vec r = (x - n * LN2_HIGH) - n * LN2_LOW;
    vec sum = splat(over_factorial[EXP_TERMS - 1]);
#pragma GCC unroll 16
    for (int term = EXP_TERMS - 2; term >= 0; term--) sum = sum * r + over_factorial[term];
    vec power = (vec)((wvec)sum + ((wvec)shifted << MANTISSA_BITS));
    return choose(x < splat(EXP_IS_ZERO_BELOW), splat(0), power);
}

/* tanh(x): near 0 its continued fraction x / (1 + x² / (3 + x² / (5 + …))), else from e^(-2|x|). */
INLINE vec tangent(vec x) {
    vec size = choose(x < splat(0), -x, x), square = x * x;
    vec above = splat(2 * TANH_TERMS - 1), below = splat(1);
#pragma GCC unroll 16
    for (int term = TANH_TERMS - 1; term > 0; term--) {
        vec next = above * (real)(2 * term - 1) + square * below;
        below = above, above = next;
    }
    vec decay = exponential(-2 * size), far = (1 - decay) / (1 + decay);
    return choose(size < splat((real)0.6), x * below / above, choose(x < splat(0), -far, far));
}

/* A score that overflowed to infinity counts as the largest number, not as NaN. */
INLINE vec at_most_zero(vec x) { return choose(x > splat(0), splat(0), x); }

/* Halving instead of lane after lane: the order of additions is a tree, the same everywhere. */
INLINE real sum_of(vec x) {
    real part[LANES];
    store(part, x);
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

INLINE real largest_of(vec x) {
    real part[LANES];
    store(part, x);
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) part[i] = part[i] > part[i + half] ? part[i] : part[i + half];
    return part[0];
}

/* c[rows, vectors] (+)= a[rows, depth] * b[depth, vectors]; a by any strides, b and c by rows. */
INLINE void micro(const int rows, const int vectors, long depth, const real *a, long a_row,
                  long a_col, const real *b, long b_row, real *c, long c_row, int add) {
    vec sum[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            sum[i][j] = splat(0); /* c comes last: short sums, then a sum of them, round less */
    for (long n = 0; n < depth; n++) {
        vec line[VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) line[j] = load(b + n * b_row + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            real factor = a[i * a_row + n * a_col];
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sum[i][j] += line[j] * factor;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            real *target = c + i * c_row + j * LANES;
            if (add) sum[i][j] += load(target);
            store(target, sum[i][j]);
        }
}

#define MICRO(R, V) micro(R, V, depth, a, a_row, a_col, b, b_row, c, c_row, add)

static void multiply_rows(int rows, int vectors, long depth, const real *a, long a_row, long a_col,
                          const real *b, long b_row, real *c, long c_row, int add) {
#define FOR_ROWS(R)                                                                               \
    case R:                                                                                       \
        if (vectors == 1) MICRO(R, 1);                                                            \
        else if (vectors == 2) MICRO(R, 2);                                                       \
        else if (VECTORS > 2) MICRO(R, VECTORS);                                                  \
        break;
    switch (rows) {
        FOR_ROWS(1)
        FOR_ROWS(2)
        FOR_ROWS(4)
#if ROWS > 4
        FOR_ROWS(8)
#endif
    }
}

/* c[m, n] (+)= a[m, depth] * b[depth, n], n a multiple of LANES. */
static void multiply(long m, long n, long depth, const real *a, long a_row, long a_col,
                     const real *b, long b_row, real *c, long c_row, int add) {
    for (long column = 0; column < n;) {
        long left = (n - column) / LANES;
        /* four vectors go better as two and two than as three and one */
        int vectors = (int)(left == 4 ? 2 : least(left, VECTORS));
        for (long row = 0; row < m;) {
            int rows = ROWS;
            while (rows > m - row) rows /= 2;
            multiply_rows(rows, vectors, depth, a + row * a_row, a_row, a_col, b + column, b_row,
                          c + row * c_row + column, c_row, add);
            row += rows;
        }
        column += vectors * LANES;
    }
}
