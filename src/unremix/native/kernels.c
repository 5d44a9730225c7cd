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
#define BIAS 1023
#else
#define LOWEST_POWER (-87.0f)
#define HIGHEST_POWER 88.0f
#define ROUNDER 12582912.0f
#define LN2_HIGH 0.693359375f
#define LN2_LOW (-2.12194440e-4f)
#define DIGITS 23
#define BIAS 127
#endif

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

/* Inner products of a few rows at a time with all columns, for columns that stay in the second cache.
 * A tile of TALL rows and STRIP columns is kept in registers over the whole depth. */
#define LANES ((integer)(32 / sizeof(real)))
#define STRIP (2 * LANES)
#define TALL 6
#define PANEL 24 /* rows at a time: they, and what is made of them, stay in the first cache */
typedef real vector __attribute__((vector_size(32)));
typedef real loose __attribute__((vector_size(32), aligned(sizeof(real)), may_alias));

static integer padded(integer columns) { return (columns + STRIP - 1) / STRIP * STRIP; }

/* out_r (+)= Σ_k left[r × across + k × along] right_k over one strip of columns. */
static inline __attribute__((always_inline)) void tile(
    const int rows, integer depth, const real *left, integer across, integer along,
    const real *right, integer step, real *out, integer stride, int add) {
    vector sum[TALL][2];
    UNROLL
    for (int r = 0; r < rows; r++) {
        sum[r][0] = sum[r][1] = (vector){0};
        if (add) {
            sum[r][0] = *(const loose *)(out + r * stride);
            sum[r][1] = *(const loose *)(out + r * stride + LANES);
        }
    }
    for (integer k = 0; k < depth; k++) {
        const vector low = *(const loose *)(right + k * step);
        const vector high = *(const loose *)(right + k * step + LANES);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const real each = left[r * across + k * along];
            sum[r][0] += each * low;
            sum[r][1] += each * high;
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        *(loose *)(out + r * stride) = sum[r][0];
        *(loose *)(out + r * stride + LANES) = sum[r][1];
    }
}

static inline __attribute__((always_inline)) void tiles(
    integer rows, integer depth, const real *left, integer across, integer along,
    const real *right, integer step, real *out, integer stride, int add) {
#define TILES(count) \
    for (; rows >= count; rows -= count, left += count * across, out += count * stride) \
        tile(count, depth, left, across, along, right, step, out, stride, add)
    TILES(TALL);
    TILES(2);
    TILES(1);
#undef TILES
}

/* out = left right over one strip of columns: left (rows, depth), a row every `across`. */
static ALONE void inner(integer rows, integer depth, const real *left, integer across,
                        const real *right, integer step, real *out, integer stride) {
    tiles(rows, depth, left, across, 1, right, step, out, stride, 0);
}

/* out += leftᵀ right over one strip of columns: left (depth, rows), a row every `along`. */
static ALONE void outer(integer rows, integer depth, const real *left, integer along,
                        const real *right, integer step, real *out, integer stride) {
    tiles(rows, depth, left, 1, along, right, step, out, stride, 1);
}

/* One strip of the transpose of vectors (count, depth), 0 beyond the last. */
static void pack(integer count, integer depth, const real *vectors, integer first, real *out) {
    for (integer j = 0; j < STRIP; j++) {
        const real *vector = vectors + (first + j) * depth;
        for (integer k = 0; k < depth; k++) out[k * STRIP + j] = first + j < count ? vector[k] : 0;
    }
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

/* e^{s/t} of one row over its classes, 0 elsewhere; its sum and the first place of its maximum. */
static inline void posterior_row(integer columns, const real *s, real highest,
                                 real inverse_temperature, const integer *masked, integer links,
                                 integer start, real *e, real *total, integer *label) {
#pragma omp simd
    for (integer j = 0; j < columns; j++) {
        e[j] = exponential((s[j] - highest) * inverse_temperature);
    }
    for (integer link = 0; link < links; link++) e[masked[link] - start] = 0;
    real least = 0, largest = 0;
    extremes(e, 0, columns, &least, &largest);
    *total = sum_of(e, columns);
    *label = find(e, columns, largest);
}

/* The same for the columns, of one row more. */
static inline void posterior_columns(integer columns, const real *e, integer row, real *totals,
                                     real *maxima, whole *places) {
    const whole here = (whole)row;
#pragma omp simd
    for (integer j = 0; j < columns; j++) {
        totals[j] += e[j];
        places[j] = e[j] > maxima[j] ? here : places[j];
        maxima[j] = e[j] > maxima[j] ? e[j] : maxima[j];
    }
}

/* Sum and place of one column, from those of the threads, in the order of their rows. */
static void posterior_column(integer threads, integer stride, const real *totals,
                             const real *maxima, const whole *places, real *total,
                             integer *label) {
    real sum = 0, largest = 0;
    integer place = 0;
    for (integer at = 0; at < threads * stride; at += stride) {
        sum += totals[at];
        if (maxima[at] > largest) {
            largest = maxima[at];
            place = places[at];
        }
    }
    *total = sum;
    *label = place;
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
            posterior_row(columns, s, highest, inverse_temperature, masked + from, link - from,
                          start, e, row_total + row, row_label + row);
            if (!column_total) continue;
            posterior_columns(columns, e, row, totals + thread * columns,
                              maxima + thread * columns, places + thread * columns);
        }
    }
    if (!column_total) return 1;
    for (integer j = 0; j < columns; j++) {
        posterior_column(most, columns, totals + j, maxima + j, places + j, column_total + j,
                         column_label + j);
    }
    free(totals);
    free(maxima);
    free(places);
    return 1;
}

/* δ from Σ_k e_k f_k, in place: d = Σ_k e_k f_k - (Σ_k e_k) f_y; δ = (d - (d·f) f)/(t |z| Σ_k e_k).
 * 0 without class, without direction, or where d has none beside f but for rounding. */
static inline void residual_row(integer depth, real *delta, const real *f, real length,
                                const real *label_units, real total, real inverse_temperature,
                                real noise) {
    real along = 0, square = 0;
#pragma omp simd reduction(+ : along)
    for (integer j = 0; j < depth; j++) {
        delta[j] -= total * label_units[j];
        along += delta[j] * f[j];
    }
#pragma omp simd reduction(+ : square)
    for (integer j = 0; j < depth; j++) {
        delta[j] -= along * f[j];
        square += delta[j] * delta[j];
    }
    const real limit = noise * total;
    const int nothing = square <= limit * limit || length == 0 || total <= 0;
    const real scale = nothing ? 0 : inverse_temperature / (length * total);
#pragma omp simd
    for (integer j = 0; j < depth; j++) delta[j] *= scale;
}

void residual(integer rows, integer columns, real *d, const real *units, const real *lengths,
              const real *classes, const real *total, const integer *label,
              real inverse_temperature, real noise) {
#pragma omp parallel for schedule(static) if (rows * columns >= WORTHWHILE)
    for (integer row = 0; row < rows; row++) {
        residual_row(columns, d + row * columns, units + row * columns, lengths[row],
                     classes + label[row] * columns, total[row], inverse_temperature, noise);
    }
}

/* δ of anchors, whose classes are the candidates, and of candidates, whose classes are the anchors,
 * with s, all of one pass over the anchors: s = f·f, e = e^{s/t}, Σ_k e_k f_k for both. Returns 0
 * for want of memory. */
int residuals(integer rows, integer columns, integer depth, const real *units,
              const real *lengths, const real *class_units, const real *class_lengths,
              real inverse_temperature, real noise, const integer *masked, integer links,
              real *similarity, real *delta, real *class_delta) {
    const integer most = omp_get_max_threads(), width = padded(columns), deep = padded(depth);
    const integer packed = width * depth, wide = columns * deep, own = 3 * width;
    const integer panels = PANEL * (2 * width + STRIP + 2 * deep);
    const integer apart = wide + own + panels;
    real *memory = malloc((packed + wide + most * apart) * sizeof(real));
    if (!memory) return 0;
    real *transposed = memory, *classes = transposed + packed, *mine = classes + wide;
#pragma omp parallel if (rows * columns >= WORTHWHILE)
    {
        real *sums = mine + omp_get_thread_num() * apart, *totals = sums + wide;
        real *maxima = totals + width, *s_room = maxima + 2 * width, *e = s_room + PANEL * width;
        whole *places = (whole *)(maxima + width);
        const integer lead = width + STRIP; /* or all rows of e would fall onto the same lines */
        real *d = e + PANEL * lead, *f_room = d + PANEL * deep;
        for (integer i = 0; i < wide + own; i++) sums[i] = 0;
#pragma omp for nowait
        for (integer first = 0; first < columns; first += STRIP) {
            pack(columns, depth, class_units, first, transposed + first * depth);
        }
#pragma omp for
        for (integer j = 0; j < columns; j++) {
            for (integer k = 0; k < deep; k++) {
                classes[j * deep + k] = k < depth ? class_units[j * depth + k] : 0;
            }
        }
        for (integer i = 0; i < PANEL * deep; i++) f_room[i] = 0;
        integer first, last;
        my_rows(rows, &first, &last);
        integer link = first_from(masked, links, first * columns);
        for (integer base = first; base < last; base += PANEL) {
            const integer tall = last - base < PANEL ? last - base : PANEL;
            const real *here = units + base * depth, *f = deep == depth ? here : f_room;
            real *s = width == columns ? similarity + base * columns : s_room;
            for (integer j = 0; j < columns; j += STRIP) {
                inner(tall, depth, here, depth, transposed + j * depth, STRIP, s + j, width);
            }
            real total[PANEL];
            integer label[PANEL];
            for (integer r = 0; r < tall; r++) {
                const integer start = (base + r) * columns, from = link;
                while (link < links && masked[link] < start + columns) link++;
                posterior_row(columns, s + r * width, 0, inverse_temperature, masked + from,
                              link - from, start, e + r * lead, total + r, label + r);
                posterior_columns(columns, e + r * lead, base + r, totals, maxima, places);
                for (integer j = 0; s == s_room && j < columns; j++) {
                    similarity[start + j] = s[r * width + j];
                }
                for (integer k = 0; f == f_room && k < depth; k++) {
                    f_room[r * deep + k] = here[r * depth + k];
                }
            }
            for (integer j = 0; j < deep; j += STRIP) {
                inner(tall, columns, e, lead, classes + j, deep, d + j, deep);
                outer(columns, tall, e, lead, f + j, deep, sums + j, deep);
            }
            for (integer r = 0; r < tall; r++) {
                real *out = delta + (base + r) * depth;
                for (integer k = 0; k < depth; k++) out[k] = d[r * deep + k];
                residual_row(depth, out, here + r * depth, lengths[base + r],
                             class_units + label[r] * depth, total[r], inverse_temperature, noise);
            }
        }
        const integer threads = omp_get_num_threads();
#pragma omp barrier
#pragma omp for
        for (integer j = 0; j < columns; j++) {
            real total, *out = class_delta + j * depth;
            integer label;
            for (integer k = 0; k < depth; k++) {
                out[k] = 0;
                for (integer t = 0; t < threads; t++) out[k] += mine[t * apart + j * deep + k];
            }
            const real *at = mine + wide + j;
            posterior_column(threads, apart, at, at + width, (const whole *)(at + 2 * width),
                             &total, &label);
            residual_row(depth, out, class_units + j * depth, class_lengths[j],
                         units + label * depth, total, inverse_temperature, noise);
        }
    }
    free(memory);
    return 1;
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
    for (integer link = 0; link < links; link++) rise[masked[link]] = 0; /* 0 × ∞ is no 0 */
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

/* A score: an array or lines of a table; times another array plus a constant; or both of them as
 * the vectors whose inner products they are. As in native/__init__.py. */
typedef struct {
    real *table;
    const integer *lines;
    const real *times, *left, *right, *times_left, *times_right;
    integer depth, times_depth;
    real plus;
} Part;

/* The scores of some rows from `row` on, of vectors; the candidates' are packed. */
static void multiply_vectors(const Part *part, integer row, integer rows, integer columns,
                             const real *right, const real *times_right, real *out, real *spare,
                             integer stride) {
    const integer depth = part->depth, times_depth = part->times_depth;
    for (integer j = 0; j < columns; j += STRIP) {
        inner(rows, depth, part->left + row * depth, depth, right + j * depth, STRIP, out + j,
              stride);
        if (!part->times_left) continue;
        inner(rows, times_depth, part->times_left + row * times_depth, times_depth,
              times_right + j * times_depth, STRIP, spare + j, stride);
    }
    for (integer r = 0; part->times_left && r < rows; r++) {
        multiply(out + r * stride, spare + r * stride, part->plus, columns);
    }
}

/* Weights w = max(Σ_k λ_k C^k, 0) of each row, C^k the scores to [0, 1] over the negatives, and with
 * φ = e^x or softplus(x) of the logits x: Σ_j w_j, Σ_j w_j φ_j, w_j φ'_j, and Σ_j (φ_j - c) C^k_j,
 * c the weighted mean of φ or a constant. Scores that come as arrays are overwritten. Returns 0 for
 * want of memory. */
int sweep(integer rows, integer columns, integer parts, const Part *scores, const real *mix,
          const real *magnitude, real noise, real floor, const integer *masked, integer links,
          const real *similarity, real factor, const real *row_factor, const real *column_factor,
          int estimate, int bounded, int extreme, int normalised, real centre, real *values,
          real *total, real *sum, real *highest, real *along) {
    const integer most = omp_get_max_threads(), width = padded(columns) + STRIP;
    integer packed = 0, made = 0; /* numbers of packed vectors, and arrays made of them */
    real *right[MOST_PARTS], *times_right[MOST_PARTS];
    for (integer k = 0; k < parts; k++) {
        made += scores[k].left ? 1 : 0;
        packed += (scores[k].depth + scores[k].times_depth) * padded(columns);
    }
    const integer apart = (made ? 1 + PANEL * (made + 1) : 1) * width;
    integer *places = malloc(most * columns * sizeof(integer) +
                             (packed + most * apart) * sizeof(real));
    if (!places) return 0;
    real *buffers = (real *)(places + most * columns), *next = buffers + most * apart;
    for (integer k = 0; k < parts; k++) {
        right[k] = next;
        times_right[k] = next + scores[k].depth * padded(columns);
        next = times_right[k] + scores[k].times_depth * padded(columns);
    }
#pragma omp parallel if (rows * columns >= WORTHWHILE)
    {
        real *rise = buffers + omp_get_thread_num() * apart, *spare = rise + width;
        integer *here = places + omp_get_thread_num() * columns, first, last;
        for (integer k = 0; k < parts; k++) {
            const Part *part = scores + k;
            if (!part->left) continue;
#pragma omp for
            for (integer j = 0; j < columns; j += STRIP) {
                pack(columns, part->depth, part->right, j, right[k] + j * part->depth);
                pack(columns, part->times_depth, part->times_right, j,
                     times_right[k] + j * part->times_depth);
            }
        }
        my_rows(rows, &first, &last);
        integer link = first_from(masked, links, first * columns);
        Row in = {.columns = columns, .noise = noise, .floor = floor, .column_factor = column_factor,
                  .estimate = estimate, .bounded = bounded, .extreme = extreme,
                  .normalised = normalised, .centre = centre, .masked = here};
        for (integer k = 0; k < parts; k++) in.mix[k] = mix[k], in.magnitude[k] = magnitude[k];
        for (integer row = first; row < last; row++) {
            const integer start = row * columns, turn = (row - first) % PANEL;
            integer reference = 0; /* the first negative */
            in.links = 0;
            for (; link < links && masked[link] < start + columns; link++) {
                here[in.links++] = masked[link] - start;
                reference += masked[link] - start == reference;
            }
            in.similarity = similarity + start;
            in.factor = row_factor ? factor * row_factor[row] : factor;
            real *panel = spare;
            for (integer k = 0; k < parts; k++) {
                const Part *part = scores + k;
                real *score;
                if (part->left) { /* several rows in one go */
                    panel += PANEL * width;
                    score = panel + turn * width;
                    if (!turn) {
                        multiply_vectors(part, row, last - row < PANEL ? last - row : PANEL,
                                         columns, right[k], times_right[k], panel, spare, width);
                    }
                } else {
                    score = part->table + (part->lines ? part->lines[row] * columns : start);
                }
                if (part->times) multiply(score, part->times + start, part->plus, columns);
                if (!part->lines && in.links < columns) {
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
