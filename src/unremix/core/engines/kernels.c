/* A sweep over the rows of (B, M) arrays, each row finished while it lies in cache.
 *
 * The mathematics is that of weights.py and objectives.py; native.py says what each
 * argument means. Built twice: with WIDE for double, without for float. Rows are shared among the
 * threads of the OpenMP that torch brought; sums run in a fixed order, so that a number of threads
 * always gives the same result.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef int64_t integer;
#if WIDE
typedef double real;
typedef int64_t whole; /* as wide as real */
typedef uint64_t natural;
#define LARGEST DBL_MAX
#define TINY 0x1p-768
#define LOWEST_POWER (-708.0)
#define HIGHEST_POWER 709.0
#define ROUNDER 6755399441055744.0 /* 1.5 × 2^52: adding it leaves the integer in the last bits */
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define DIGITS 52
#define BIAS 1023
#else
typedef float real;
typedef int32_t whole;
typedef uint32_t natural;
#define LARGEST FLT_MAX
#define TINY 0x1p-96f
#define LOWEST_POWER (-87.0f)
#define HIGHEST_POWER 88.0f
#define ROUNDER 12582912.0f
#define LN2_HIGH 0.693359375f
#define LN2_LOW (-2.12194440e-4f)
#define DIGITS 23
#define BIAS 127
#endif

#if defined(_OPENMP)
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_max_threads(void) { return 1; }
#endif

#define MOST_PARTS 8     /* components of a mix */
#define WORTHWHILE 16384 /* numbers; for fewer, waking a thread costs more than it saves */
#define UNROLL _Pragma("GCC unroll 8")
#define ALONE __attribute__((noinline)) /* inlined, its loop would stay scalar */

enum { INFO_NCE = 0, JENSEN_SHANNON = 1 };

/* e^x, to a unit or two in the last place; x is kept to where e^x is a normal number. */
static inline real exponential(real x) {
    x = x < LOWEST_POWER ? LOWEST_POWER : x;
    x = x > HIGHEST_POWER ? HIGHEST_POWER : x;
    union {
        real value;
        whole bits;
    } rounded, scale;
    rounded.value = x * (real)1.4426950408889634 + ROUNDER;
    const real power = rounded.value - ROUNDER;
    const real rest = (x - power * LN2_HIGH) - power * LN2_LOW;
    real sum = (real)(1 / 5040.0);
#if WIDE
    sum = 1 / 6227020800.0;
    sum = sum * rest + 1 / 479001600.0;
    sum = sum * rest + 1 / 39916800.0;
    sum = sum * rest + 1 / 3628800.0;
    sum = sum * rest + 1 / 362880.0;
    sum = sum * rest + 1 / 40320.0;
    sum = sum * rest + 1 / 5040.0;
#endif
    sum = sum * rest + (real)(1 / 720.0);
    sum = sum * rest + (real)(1 / 120.0);
    sum = sum * rest + (real)(1 / 24.0);
    sum = sum * rest + (real)(1 / 6.0);
    sum = sum * rest + (real)0.5;
    sum = sum * rest + 1;
    sum = sum * rest + 1;
    scale.bits = (whole)(((natural)rounded.bits + BIAS) << DIGITS); /* of a NaN: anything */
    return sum * scale.value;
}

/* log(1 + x) for 0 ≤ x ≤ 1: 2 atanh(x/(2 + x)). */
static inline real logarithm(real x) {
    const real ratio = x / (2 + x), square = ratio * ratio;
    real series = 0;
#if WIDE
    series = 1 / 33.0;
    series = series * square + 1 / 31.0;
    series = series * square + 1 / 29.0;
    series = series * square + 1 / 27.0;
    series = series * square + 1 / 25.0;
    series = series * square + 1 / 23.0;
    series = series * square + 1 / 21.0;
    series = series * square + 1 / 19.0;
    series = series * square + 1 / 17.0;
#endif
    series = series * square + (real)(1 / 15.0);
    series = series * square + (real)(1 / 13.0);
    series = series * square + (real)(1 / 11.0);
    series = series * square + (real)(1 / 9.0);
    series = series * square + (real)(1 / 7.0);
    series = series * square + (real)(1 / 5.0);
    series = series * square + (real)(1 / 3.0);
    series = series * square + 1;
    return 2 * ratio * series;
}

/* Least and largest of the kept values. */
static ALONE void extremes(integer columns, const real *values, const real *keep, real *low,
                           real *high) {
    real least = LARGEST, largest = -LARGEST;
#pragma omp simd reduction(min : least) reduction(max : largest)
    for (integer j = 0; j < columns; j++) {
        const real small = keep[j] != 0 ? values[j] : LARGEST;
        const real large = keep[j] != 0 ? values[j] : -LARGEST;
        least = small < least ? small : least;
        largest = large > largest ? large : largest;
    }
    *low = least;
    *high = largest;
}

/* Σ_j values_j, four at a time, since one addition waits for the one before it. */
static ALONE real sum_of(integer columns, const real *values) {
    const integer part = columns / 4;
    const real *second = values + part, *third = second + part, *fourth = third + part;
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (integer j = 0; j < part; j++) sum += (values[j] + second[j]) + (third[j] + fourth[j]);
    for (integer j = 4 * part; j < columns; j++) sum += values[j];
    return sum;
}

/* Σ_j left_j (right_j - low) lift over the kept columns, where left is 0 elsewhere. */
static ALONE real dot(integer columns, const real *left, const real *right, const real *keep,
                      real low, real lift) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (integer j = 0; j < columns; j++)
        sum += left[j] * (keep[j] != 0 ? (right[j] - low) * lift : 0);
    return sum;
}

/* What a row of `sweep` is made from. */
typedef struct {
    integer columns;
    const real *scores[MOST_PARTS], *mix, *magnitude, *logits;
    real noise, temperature, overflow;
    int objective, normalized;
} Row;

/* One row; `keep` is 1 for its negatives and 0 elsewhere. `value` is first w_j = Σ_k λ_k C^k_j, then
 * the derivative by the logits. `parts` is a constant wherever this is inlined, so that its loops
 * are unrolled. */
static inline __attribute__((always_inline)) void sweep_row(
    const Row *in, const int parts, const real *restrict keep, real *restrict value,
    real *restrict rise, real *sums, real *mass_of_row, real *by_mix) {
    const integer columns = in->columns;
    const real count = sum_of(columns, keep);
    const real *score[MOST_PARTS];
    real low[MOST_PARTS] = {0}, lift[MOST_PARTS], scale[MOST_PARTS] = {0}, factor[MOST_PARTS] = {0};
    real constant = parts ? 0 : 1; /* what constant scores, which become 1, add up to */
    for (int k = 0; k < parts; k++) {
        real high;
        score[k] = in->scores[k];
        extremes(columns, score[k], keep, &low[k], &high);
        real size = high > -low[k] ? high : -low[k];
        size = in->magnitude[k] > size ? in->magnitude[k] : size;
        const real span = high - low[k];
        lift[k] = span < TINY ? 1 / TINY : 1; /* 1 / span would overflow */
        if (count == 0 || (span <= in->noise * size && size <= LARGEST)) constant += in->mix[k];
        else scale[k] = 1 / (span * lift[k]);
        factor[k] = in->mix[k] * scale[k];
    }
#pragma omp simd
    for (integer j = 0; j < columns; j++) {
        real mixed = constant;
        UNROLL
        for (int k = 0; k < parts; k++) mixed += factor[k] * ((score[k][j] - low[k]) * lift[k]);
        value[j] = keep[j] != 0 ? mixed : 0;
    }
    real total = sum_of(columns, value), sum = 0;
    const int replaced = parts && in->normalized && total <= 0;
    if (replaced) { /* all weights are 0: uniform */
        for (integer j = 0; j < columns; j++) value[j] = keep[j];
        total = count;
    }
    *mass_of_row = total;
    const real inverse_mass = in->normalized && count > 0 ? 1 / total : 0;
    const real mass = in->normalized && count > 0 ? count / total : 1;
    const real temperature = in->temperature, *restrict logits = in->logits;
#pragma omp simd
    for (integer j = 0; j < columns; j++) rise[j] = keep[j] != 0 ? logits[j] / temperature : 0;
    real scale_of_mix;
    if (in->objective == JENSEN_SHANNON) {
#pragma omp simd reduction(+ : sum)
        for (integer j = 0; j < columns; j++) {
            const real x = rise[j], e = exponential(x < 0 ? x : -x), inverse = 1 / (1 + e);
            const real above = (x > 0 ? x : 0) + logarithm(e) - (real)0.69314718055994530942;
            rise[j] = above;
            sum += value[j] * above;
            value[j] *= (x < 0 ? e * inverse : inverse) * mass;
        }
        *sums = sum * mass;
        scale_of_mix = mass;
    } else {
        real highest = -LARGEST;
#pragma omp simd reduction(max : highest)
        for (integer j = 0; j < columns; j++) {
            const real x = value[j] > 0 ? rise[j] : -LARGEST;
            highest = x > highest ? x : highest;
        }
        highest = highest > -LARGEST ? highest : 0;
        const real overflow = in->overflow;
#pragma omp simd reduction(+ : sum)
        for (integer j = 0; j < columns; j++) {
            const real x = rise[j] - highest, e = exponential(x > overflow ? overflow : x);
            rise[j] = e;
            value[j] *= e;
            sum += value[j];
        }
        const int nothing = sum == 0;
        const real inverse = nothing ? 0 : 1 / sum;
        *sums = nothing ? -LARGEST : (real)log(sum * mass) + highest;
#pragma omp simd
        for (integer j = 0; j < columns; j++) value[j] *= inverse;
        scale_of_mix = inverse;
    }
    if (!by_mix || !parts) return;
    /* ∂/∂λ_k = Σ_j C^k_j (rise_j - mean rise), the mean only where the mass is normalized. */
    const real mean = replaced ? 0 : sum * inverse_mass;
#pragma omp simd
    for (integer j = 0; j < columns; j++) rise[j] = keep[j] != 0 ? rise[j] - mean : 0;
    for (int k = 0; k < parts; k++) {
        const real inner = scale[k] == 0
                               ? sum_of(columns, rise)
                               : scale[k] * dot(columns, rise, score[k], keep, low[k], lift[k]);
        by_mix[k] = replaced ? 0 : inner * scale_of_mix;
    }
}

/* What the negatives of each anchor add up to under the weights of a mix scaled to [0, 1], with its
 * derivatives by the logits and by the mix. Returns 0 if memory cannot be allocated. */
int sweep(integer rows, integer columns, integer parts, const real *const *scores, const real *mix,
          const real *magnitude, real noise, const uint8_t *negatives, const real *logits,
          real temperature, real overflow, int objective, int normalized, real *slopes,
          real *sums, real *total, real *by_mix) {
    const integer threads = omp_get_max_threads();
    real *memory = malloc(2 * threads * columns * sizeof(real));
    if (!memory) return 0;
#pragma omp parallel for schedule(static) if (rows * columns >= WORTHWHILE)
    for (integer row = 0; row < rows; row++) {
        const integer start = row * columns;
        real *keep = memory + 2 * omp_get_thread_num() * columns, *rise = keep + columns;
        Row in = {.columns = columns, .mix = mix, .magnitude = magnitude, .logits = logits + start,
                  .noise = noise, .temperature = temperature, .overflow = overflow,
                  .objective = objective, .normalized = normalized};
        for (integer k = 0; k < parts; k++) in.scores[k] = scores[k] + start;
#pragma omp simd
        for (integer j = 0; j < columns; j++) keep[j] = negatives[start + j];
        real *derivatives = by_mix ? by_mix + row * parts : NULL;
#define SWEEP(count) \
    sweep_row(&in, count, keep, slopes + start, rise, sums + row, total + row, derivatives)
        switch (parts) {
        case 0: SWEEP(0); break;
        case 1: SWEEP(1); break;
        case 2: SWEEP(2); break;
        case 3: SWEEP(3); break;
        default: SWEEP((int)parts);
        }
#undef SWEEP
    }
    free(memory);
    return 1;
}
