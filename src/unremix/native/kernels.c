/* Sweeps over (B, M) arrays, each row read once while it lies in the first cache.
 *
 * The same mathematics as in Python, which says what each argument means; see native/__init__.py.
 * Built twice: with WIDE for double, without for float. Rows are shared among the threads of the
 * OpenMP that torch brought. Sums run in a fixed order: a number of threads always gives the same.
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
#else
typedef float real;
typedef int32_t whole;
typedef uint32_t natural;
#endif

#define LARGEST (WIDE ? (real)DBL_MAX : (real)FLT_MAX)
#define MOST_PARTS 8 /* components of a mix */
#define WORTHWHILE 16384 /* numbers; for fewer, waking a thread costs more than it saves */
#define UNROLL _Pragma("GCC unroll 8")
#define ALONE __attribute__((noinline)) /* put in line, its loop would stay scalar */

#if defined(_OPENMP)
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_max_threads(void) { return 1; }
static int omp_get_num_threads(void) { return 1; }
#endif

#if WIDE
#define LOWEST_POWER (-708.0)
#define HIGHEST_POWER 709.0
#define ROUNDER 6755399441055744.0 /* 1.5 × 2^52: adding it leaves the integer in the last bits */
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define DIGITS 52
#else
#define LOWEST_POWER (-87.0f)
#define HIGHEST_POWER 88.0f
#define ROUNDER 12582912.0f
#define LN2_HIGH 0.693359375f
#define LN2_LOW (-2.12194440e-4f)
#define DIGITS 23
#endif

/* e^x, to a unit or two in the last place; x is kept to where e^x is a normal number. */
static inline real exponential(real x) {
    x = x < LOWEST_POWER ? LOWEST_POWER : x;
    x = x > HIGHEST_POWER ? HIGHEST_POWER : x;
    union {
        real value;
        whole bits;
    } rounded, series;
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
    series.value = sum * rest + 1;
    series.bits += (whole)((natural)rounded.bits << DIGITS);
    return series.value;
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

/* The first of the sorted flat positions that is not below one of them. */
static integer first_from(const integer *positions, integer count, integer flat) {
    integer low = 0, high = count;
    while (low < high) {
        const integer middle = low + (high - low) / 2;
        if (positions[middle] < flat) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The rows of this thread: [*first, *last). */
static void my_rows(integer rows, integer *first, integer *last) {
    const integer threads = omp_get_num_threads(), thread = omp_get_thread_num();
    *first = rows * thread / threads;
    *last = rows * (thread + 1) / threads;
}

/* Least and largest value over columns [from, to), beside those found already. */
static ALONE void extremes(const real *values, integer from, integer to, real *low, real *high) {
    real least = *low, largest = *high;
#pragma omp simd reduction(min : least) reduction(max : largest)
    for (integer j = from; j < to; j++) {
        least = values[j] < least ? values[j] : least;
        largest = values[j] > largest ? values[j] : largest;
    }
    *low = least;
    *high = largest;
}

/* Where a value stands first; the last column if nowhere. */
static ALONE integer find(const real *values, integer columns, real wanted) {
    integer place = 0;
    for (; place + 32 <= columns; place += 32) {
        int found = 0;
        for (integer j = place; j < place + 32; j++) found |= values[j] == wanted;
        if (found) break;
    }
    while (place < columns - 1 && values[place] != wanted) place++;
    return place;
}

/* Σ_j values_j, four at a time, since one addition waits for the one before it. */
static ALONE real sum_of(const real *values, integer columns) {
    const integer part = columns / 4;
    const real *second = values + part, *third = second + part, *fourth = third + part;
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (integer j = 0; j < part; j++) sum += (values[j] + second[j]) + (third[j] + fourth[j]);
    for (integer j = 4 * part; j < columns; j++) sum += values[j];
    return sum;
}

/* Σ_j left_j (right_j - low). */
static ALONE real dot(const real *left, const real *right, real low, integer columns) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (integer j = 0; j < columns; j++) sum += left[j] * (right[j] - low);
    return sum;
}

static ALONE void multiply(real *values, const real *times, real plus, integer columns) {
#pragma omp simd
    for (integer j = 0; j < columns; j++) values[j] *= times[j] + plus;
}

/* f = z/|z| and |z|; both 0 where |z| is at most `smallest`. */
void normalise(integer rows, integer columns, const real *embeddings, real smallest, real *units,
               real *lengths) {
#pragma omp parallel for schedule(static) if (rows * columns >= WORTHWHILE)
    for (integer row = 0; row < rows; row++) {
        const real *z = embeddings + row * columns;
        real *f = units + row * columns;
        double square = 0; /* of numbers that float would not hold squared */
#pragma omp simd reduction(+ : square)
        for (integer j = 0; j < columns; j++) square += (double)z[j] * z[j];
        const real length = (real)sqrt(square);
        const int nothing = length <= smallest;
        const real inverse = nothing ? 0 : 1 / length;
        lengths[row] = nothing ? 0 : length;
#pragma omp simd
        for (integer j = 0; j < columns; j++) f[j] = z[j] * inverse;
    }
}

/* e^{s/t} over the classes, 0 elsewhere; its sum and the first place of its maximum, for each row
 * and, where asked, for each column. Not bounded: each row up to a factor. Returns 0 for want of
 * memory. */
int posterior(integer rows, integer columns, const real *similarity, real inverse_temperature,
              int bounded, const integer *masked, integer links, real *exponentials, real *row_total,
              integer *row_label, real *column_total, integer *column_label) {
    const integer most = omp_get_max_threads();
    real *totals = NULL, *maxima = NULL;
    whole *places = NULL;
    if (column_total) {
        totals = calloc(most * columns, sizeof(real));
        maxima = calloc(most * columns, sizeof(real));
        places = calloc(most * columns, sizeof(whole));
        if (!totals || !maxima || !places) {
            free(totals);
            free(maxima);
            free(places);
            return 0;
        }
    }
#pragma omp parallel if (rows * columns >= WORTHWHILE)
    {
        const integer thread = omp_get_thread_num();
        integer first, last;
        my_rows(rows, &first, &last);
        integer link = first_from(masked, links, first * columns);
        for (integer row = first; row < last; row++) {
            const integer start = row * columns, from = link;
            const real *s = similarity + start;
            real *e = exponentials + start;
            while (link < links && masked[link] < start + columns) link++;
            real highest = 0, lowest = 0;
            if (!bounded && link - from < columns) {
                integer column = 0;
                highest = -LARGEST;
                for (integer each = from; each < link; each++) {
                    extremes(s, column, masked[each] - start, &lowest, &highest);
                    column = masked[each] - start + 1;
                }
                extremes(s, column, columns, &lowest, &highest);
            }
#pragma omp simd
            for (integer j = 0; j < columns; j++) {
                e[j] = exponential((s[j] - highest) * inverse_temperature);
            }
            for (integer each = from; each < link; each++) e[masked[each] - start] = 0;
            const real total = sum_of(e, columns);
            real least = 0, largest = 0;
            extremes(e, 0, columns, &least, &largest);
            const integer place = find(e, columns, largest);
            row_total[row] = total;
            row_label[row] = place;
            if (!column_total) continue;
            real *sums = totals + thread * columns, *peaks = maxima + thread * columns;
            whole *peak_rows = places + thread * columns;
            const whole here = (whole)row;
#pragma omp simd
            for (integer j = 0; j < columns; j++) {
                sums[j] += e[j];
                peak_rows[j] = e[j] > peaks[j] ? here : peak_rows[j];
                peaks[j] = e[j] > peaks[j] ? e[j] : peaks[j];
            }
        }
    }
    if (!column_total) return 1;
    for (integer j = 0; j < columns; j++) {
        real total = 0, largest = 0;
        integer place = 0;
        for (integer thread = 0; thread < most; thread++) { /* in the order of their rows */
            const integer at = thread * columns + j;
            total += totals[at];
            if (maxima[at] > largest) {
                largest = maxima[at];
                place = places[at];
            }
        }
        column_total[j] = total;
        column_label[j] = place;
    }
    free(totals);
    free(maxima);
    free(places);
    return 1;
}

/* δ from Σ_k e_k f_k, in place: d = Σ_k e_k f_k - (Σ_k e_k) f_y; δ = (d - (d·f) f)/(t |z| Σ_k e_k).
 * 0 without class, without direction, or where d has none beside f but for rounding. */
void residual(integer rows, integer columns, real *d, const real *units, const real *lengths,
              const real *classes, const real *total, const integer *label,
              real inverse_temperature, real noise) {
#pragma omp parallel for schedule(static) if (rows * columns >= WORTHWHILE)
    for (integer row = 0; row < rows; row++) {
        real *delta = d + row * columns;
        const real *f = units + row * columns, *label_units = classes + label[row] * columns;
        const real sum = total[row];
        real along = 0, square = 0;
#pragma omp simd reduction(+ : along)
        for (integer j = 0; j < columns; j++) {
            delta[j] -= sum * label_units[j];
            along += delta[j] * f[j];
        }
#pragma omp simd reduction(+ : square)
        for (integer j = 0; j < columns; j++) {
            delta[j] -= along * f[j];
            square += delta[j] * delta[j];
        }
        const real limit = noise * sum;
        const int nothing = square <= limit * limit || lengths[row] == 0 || sum <= 0;
        const real scale = nothing ? 0 : inverse_temperature / (lengths[row] * sum);
#pragma omp simd
        for (integer j = 0; j < columns; j++) delta[j] *= scale;
    }
}

/* r of each candidate j where k alone is masked, at [k, j], from all f_k · f_j, in place; where k = j
 * the value of another candidate. Returns 0 for want of memory. */
int without(integer count, real *table) {
    const real inverse = (real)1 / (count - 2);
    real *apart = malloc(count * sizeof(real));
    if (!apart) return 0;
    for (integer j = 0; j < count; j++) { /* the table is symmetric */
        apart[j] = 1 + (table[j * count + j] - sum_of(table + j * count, count)) * inverse;
    }
    for (integer k = 0; k < count; k++) {
        real *row = table + k * count;
#pragma omp simd
        for (integer j = 0; j < count; j++) row[j] = row[j] * inverse + apart[j];
        row[k] = row[k ? 0 : 1];
    }
    free(apart);
    return 1;
}

/* The logits at some flat positions. */
void pick(integer columns, const real *similarity, real factor, const real *row_factor,
          const real *column_factor, const integer *positions, integer count, real *out) {
    for (integer i = 0; i < count; i++) {
        const integer row = positions[i] / columns, column = positions[i] - row * columns;
        real logit = similarity[positions[i]] * factor;
        if (row_factor) logit *= row_factor[row];
        if (column_factor) logit *= column_factor[column];
        out[i] = logit;
    }
}

/* What a row of `sweep` is made from. */
typedef struct {
    integer columns;
    real *scores[MOST_PARTS];
    real mix[MOST_PARTS], magnitude[MOST_PARTS], noise, floor;
    const integer *masked; /* the columns that are not negatives, and how many */
    integer links;
    const real *similarity, *column_factor;
    real factor;
    int estimate, bounded, extreme, normalised;
    real centre;
} Row;

enum { EXPONENTIAL = 0, JENSEN_SHANNON = 1 };

/* One row. `parts` is a constant wherever this is put in line, so that its loops are unrolled. */
static inline __attribute__((always_inline)) void sweep_row(
    const Row *in, const int parts, real *restrict value, real *restrict rise, real *total,
    real *sum, real *highest, real *along, integer stride) {
    const integer columns = in->columns, links = in->links, *masked = in->masked;
    const real *restrict s = in->similarity;
    const real *score[MOST_PARTS];
    real low[MOST_PARTS] = {0}, scale[MOST_PARTS] = {0}, share[MOST_PARTS] = {0};
    real constant = parts ? 0 : 1; /* what constant scores, which become 1, add up to */
    const real floor = in->floor;
    for (int k = 0; k < parts; k++) {
        real least = LARGEST, high = -LARGEST;
        score[k] = in->scores[k];
        extremes(score[k], 0, columns, &least, &high);
        real size = high > -least ? high : -least;
        size = in->magnitude[k] > size ? in->magnitude[k] : size;
        const real span = high - least;
        low[k] = least;
        if (span <= in->noise * size || links == columns) constant += in->mix[k];
        else scale[k] = 1 / span;
        share[k] = in->mix[k] * scale[k];
    }
#pragma omp simd
    for (integer j = 0; j < columns; j++) {
        real mixed = constant;
        UNROLL
        for (int k = 0; k < parts; k++) mixed += share[k] * (score[k][j] - low[k]);
        value[j] = mixed <= floor ? 0 : mixed; /* a NaN stays */
    }
    for (integer link = 0; link < links; link++) value[masked[link]] = 0;
    real weight = sum_of(value, columns), product = 0, offset = 0;
    const int replaced = parts && in->normalised && weight <= 0 && links < columns;
    if (replaced) { /* all weights are 0: uniform */
        for (integer j = 0; j < columns; j++) value[j] = 1;
        for (integer link = 0; link < links; link++) value[masked[link]] = 0;
        weight = (real)(columns - links);
    }
    const real factor = in->factor, *restrict column_factor = in->column_factor;
    if (column_factor) {
#pragma omp simd
        for (integer j = 0; j < columns; j++) rise[j] = s[j] * factor * column_factor[j];
    } else {
#pragma omp simd
        for (integer j = 0; j < columns; j++) rise[j] = s[j] * factor;
    }
    if (in->estimate == JENSEN_SHANNON) {
#pragma omp simd reduction(+ : product)
        for (integer j = 0; j < columns; j++) {
            const real x = rise[j], e = exponential(x < 0 ? x : -x), inverse = 1 / (1 + e);
            const real softplus = (x > 0 ? x : 0) + logarithm(e);
            rise[j] = softplus;
            product += value[j] * softplus;
            value[j] *= x < 0 ? e * inverse : inverse;
        }
    } else {
        real most = LARGEST;
        if (!in->bounded) {
            offset = -LARGEST;
            if (in->extreme) { /* a negative without weight must not drown the others */
                most = 0;
#pragma omp simd reduction(max : offset)
                for (integer j = 0; j < columns; j++) {
                    const real x = value[j] > 0 ? rise[j] : -LARGEST;
                    offset = x > offset ? x : offset;
                }
            } else {
                integer column = 0;
                real least = 0;
                for (integer link = 0; link < links; link++) {
                    extremes(rise, column, masked[link], &least, &offset);
                    column = masked[link] + 1;
                }
                extremes(rise, column, columns, &least, &offset);
            }
            offset = offset > -LARGEST ? offset : 0;
        }
#pragma omp simd reduction(+ : product)
        for (integer j = 0; j < columns; j++) {
            const real x = rise[j] - offset, e = exponential(x > most ? most : x);
            rise[j] = e;
            value[j] *= e;
            product += value[j];
        }
    }
    *total = weight;
    *sum = product;
    *highest = offset;
    if (!along || !parts) return;
    const real centre = !in->normalised ? in->centre : weight > 0 ? product / weight : 0;
    for (integer link = 0; link < links; link++) rise[masked[link]] = centre;
    real rest = 0;
    if (floor > 0) { /* no gradient flows through a mix below it */
        for (integer j = 0; j < columns; j++) {
            real mixed = constant;
            for (int k = 0; k < parts; k++) mixed += share[k] * (score[k][j] - low[k]);
            if (mixed <= floor) rise[j] = centre;
        }
    }
    /* The first three at once: each addition waits for the one before it. */
    const int second = parts > 1 ? 1 : 0, third = parts > 2 ? 2 : 0;
    const real *x = score[0], *y = score[second], *z = score[third];
    const real low_x = low[0], low_y = low[second], low_z = low[third];
    real along_x = 0, along_y = 0, along_z = 0;
#pragma omp simd reduction(+ : rest, along_x, along_y, along_z)
    for (integer j = 0; j < columns; j++) {
        const real above = rise[j] - centre;
        rest += above;
        along_x += above * (x[j] - low_x);
        along_y += above * (y[j] - low_y);
        along_z += above * (z[j] - low_z);
        rise[j] = above;
    }
    for (int k = 0; k < parts; k++) {
        const real inner = k == 0   ? along_x
                           : k == 1 ? along_y
                           : k == 2 ? along_z
                                    : dot(rise, score[k], low[k], columns);
        along[k * stride] = replaced ? 0 : scale[k] ? scale[k] * inner : rest;
    }
}

/* Weights w = max(Σ_k λ_k C^k, 0) of each row, C^k the scores to [0, 1] over the negatives, and with
 * φ = e^x or softplus(x) of the logits x: Σ_j w_j, Σ_j w_j φ_j, w_j φ'_j, and Σ_j (φ_j - c) C^k_j,
 * c the weighted mean of φ or a constant. Scores are overwritten where there is no negative, but for
 * those that come as lines of a table. Returns 0 for want of memory. */
int sweep(integer rows, integer columns, integer parts, real *const *scores,
          const integer *const *lines, const real *const *times, const real *plus,
          const real *mix, const real *magnitude, real noise, real floor,
          const integer *masked, integer links, const real *similarity, real factor,
          const real *row_factor, const real *column_factor, int estimate, int bounded,
          int extreme, int normalised, real centre, real *values, real *total, real *sum,
          real *highest, real *along) {
    const integer most = omp_get_max_threads(), width = columns + 64 / sizeof(real);
    integer *places = malloc(most * width * (sizeof(real) + sizeof(integer)));
    if (!places) return 0;
    real *buffers = (real *)(places + most * width);
#pragma omp parallel if (rows * columns >= WORTHWHILE)
    {
        real *rise = buffers + omp_get_thread_num() * width;
        integer *here = places + omp_get_thread_num() * width, first, last;
        my_rows(rows, &first, &last);
        integer link = first_from(masked, links, first * columns);
        Row in = {.columns = columns, .noise = noise, .floor = floor, .column_factor = column_factor,
                  .estimate = estimate, .bounded = bounded, .extreme = extreme,
                  .normalised = normalised, .centre = centre, .masked = here};
        for (integer k = 0; k < parts; k++) in.mix[k] = mix[k], in.magnitude[k] = magnitude[k];
        for (integer row = first; row < last; row++) {
            const integer start = row * columns;
            integer reference = 0; /* the first negative */
            in.links = 0;
            for (; link < links && masked[link] < start + columns; link++) {
                here[in.links++] = masked[link] - start;
                reference += masked[link] - start == reference;
            }
            in.similarity = similarity + start;
            in.factor = row_factor ? factor * row_factor[row] : factor;
            for (integer k = 0; k < parts; k++) {
                real *score = scores[k] + (lines[k] ? lines[k][row] * columns : start);
                if (times[k]) multiply(score, times[k] + start, plus[k], columns);
                if (!lines[k] && in.links < columns) {
                    for (integer i = 0; i < in.links; i++) score[here[i]] = score[reference];
                }
                in.scores[k] = score;
            }
            real *column = along ? along + row : NULL;
#define SWEEP(count) \
    sweep_row(&in, count, values + start, rise, total + row, sum + row, highest + row, column, rows)
            switch (parts) {
            case 0: SWEEP(0); break;
            case 1: SWEEP(1); break;
            case 2: SWEEP(2); break;
            case 3: SWEEP(3); break;
            default: SWEEP((int)parts);
            }
#undef SWEEP
        }
    }
    free(places);
    return 1;
}
