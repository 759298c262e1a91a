/* The squared norm in digits (HD_SUM_DIGITS): sums of whole numbers, so threads add to them as they come. */
#include "kernels/rows.h"
#include <math.h>

enum { GRAIN = 32 };
enum { LARGE = 1, NO_NUMBER = 2, LARGEST = HD_SUM_SHIFT + HD_SUM_SHIFT - 52 };

struct digits {
    uint64_t at[HD_SUM_DIGITS];
    uint64_t odd; /* LARGE, NO_NUMBER: of its squares */
    double value;
};

/* The state. Segments of equal value are a group. */
struct list {
    int64_t count, groups;
    struct digits *digits; /* by group */
    int64_t *group;        /* by segment */
    struct cpu_segment s[];
};

struct squares { /* m 2^(e - HD_SUM_SHIFT) */
    uint64_t m[CPU_CHUNK];
    int64_t e[CPU_CHUNK];
    int64_t lowest, highest; /* digits that have something */
};

CPU_CLONES(void, split_squares, (struct squares * t, const float *x, int64_t n), (t, x, n))
{
    int64_t least = LARGEST, most = -53;
    for (int64_t i = 0; i < n; i++) {
        union {
            double square;
            uint64_t bits;
        } v = {(double)x[i] * (double)x[i]};
        int64_t e = (int64_t)(v.bits >> 52) - 1023 - 52 + HD_SUM_SHIFT, low = e > -53 ? e : LARGEST;
        t->m[i] = (v.bits & (UINT64_MAX >> 12)) | UINT64_C(1) << 52;
        t->e[i] = e;
        least = low < least ? low : least;
        most = e > most ? e : most;
    }
    t->lowest = least > 0 ? least / 16 : 0;
    t->highest = most > -53 ? (most + 52) / 16 : -1;
}

/* Removes infinities, NaNs and squares of 2^HD_SUM_SHIFT and more from the list. */
static uint64_t take_odd(struct squares *t, int64_t n)
{
    uint64_t odd = 0;
    for (int64_t i = 0; i < n; i++)
        if (t->e[i] >= LARGEST) {
            odd |= t->e[i] == 2047 - 1023 - 52 + HD_SUM_SHIFT && t->m[i] << 12 ? NO_NUMBER : LARGE;
            t->e[i] = -53;
        }
    t->highest = HD_SUM_DIGITS - 1;
    return odd;
}

CPU_CLONES(uint64_t, digit_of, (const struct squares *t, int64_t n, int64_t k), (t, n, k))
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) { /* shifts beyond 16 and 53 leave nothing of m in the digit */
        int64_t up = t->e[i] - 16 * k, down = -up;
        up = up < 0 ? 0 : up < 16 ? up : 16;
        down = down < 0 ? 0 : down < 63 ? down : 63;
        sum += t->m[i] << up >> down & 0xffff;
    }
    return sum;
}

static void add_digits(struct digits *sum, struct squares *t, const float *x, int64_t n)
{
    split_squares(t, x, n);
    if (t->highest >= HD_SUM_DIGITS)
        __atomic_fetch_or(&sum->odd, take_odd(t, n), __ATOMIC_RELAXED);
    for (int64_t d = t->lowest; d <= t->highest; d++)
        __atomic_fetch_add(&sum->at[d], digit_of(t, n, d), __ATOMIC_RELAXED);
}

static void digits_chunks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct list *list = k->state;
    struct squares t;
    float buf[CPU_CHUNK];
    for (int64_t s = 0; s < list->count; s++) {
        int64_t to = cpu_min(list->s[s].last, last * CPU_CHUNK), next;
        int64_t from = list->s[s].first > first * CPU_CHUNK ? list->s[s].first : first * CPU_CHUNK;
        for (int64_t at = from; at < to && list->s[s].value > 0; at = next) {
            next = cpu_min((at / CPU_CHUNK + 1) * CPU_CHUNK, to);
            add_digits(&list->digits[list->group[s]], &t, cpu_read(&k->in[0], at, next - at, buf), next - at);
        }
    }
}

static void run_digits(struct hd_kernel *k)
{
    struct list *list = k->state;
    double *y = k->out[0].data;
    for (int64_t g = 0; g < list->groups; g++) {
        memset(list->digits[g].at, 0, sizeof list->digits[g].at);
        list->digits[g].odd = 0;
    }
    cpu_parallel(k->device, cpu_chunks(hd_operand_count(&k->in[0])), GRAIN, digits_chunks, k);
    for (int64_t g = 0; g < list->groups; g++) {
        for (int d = 0; d < HD_SUM_DIGITS; d++)
            y[d] += list->digits[g].value * ldexp((double)list->digits[g].at[d], 16 * d - HD_SUM_SHIFT);
        if (list->digits[g].odd)
            y[HD_SUM_DIGITS - 1] += list->digits[g].odd & NO_NUMBER ? (double)NAN : (double)INFINITY;
    }
}

static void group(struct list *list)
{
    for (int64_t i = 0; i < list->count; i++) {
        int64_t g = 0;
        while (g < list->groups && list->digits[g].value != list->s[i].value)
            g++;
        list->group[i] = g;
        list->digits[g].value = list->s[i].value;
        list->groups += g == list->groups;
    }
}

int32_t cpu_fast_digits(struct hd_kernel *k, struct hd_error *err)
{
    size_t n = k->d.attrs.n_ranges, each = sizeof(struct cpu_segment) + sizeof(struct digits) + sizeof(int64_t);
    int32_t rc = cpu_kernel_state(k, sizeof(struct list) + n * each, err);
    if (rc)
        return rc;
    struct list *list = k->state;
    list->digits = (struct digits *)(list->s + n);
    list->group = (int64_t *)(list->digits + n);
    list->count = cpu_segments(k, &k->in[0], list->s);
    group(list);
    k->run = run_digits;
    return HD_OK;
}
